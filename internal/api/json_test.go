package api

import (
	"strings"
	"testing"

	"sandboxd"
)

func TestBadJSONNamesTheFieldAndNeverTheValue(t *testing.T) {
	r := newRig(t, controlListener, nil)
	const canary = "canary-5e1f"
	open, exec, cmd := "/v1/sandboxes", boxURL+"/exec", boxURL+"/commands/c1"
	for _, tc := range []struct{ path, body, field string }{
		{open, `{"key":"` + canary, "body"},
		{open, canary, "body"},
		{open, `{"key":"a"} ` + canary, "body"},
		{open, `["` + canary + `"]`, "body"},
		{open, `"` + canary + `"`, "body"},
		{open, `null`, "body"},
		{open, "{\"key\":\"\xff" + canary + "\"}", "body"},
		{open, strings.Repeat("[", 5000), "body"},
		{open, `{"key":"` + canary + `\u0000"}`, "key"},
		{open, `{"env":{"A":"` + canary + `\u0000"}}`, "env.A"},
		{open, `{"key":["` + canary + `"]}`, "key"},
		{open, `{"key":"` + canary + strings.Repeat("k", 64) + `"}`, "key"},
		{open, `{"labels":"` + canary + `"}`, "labels"},
		{open, `{"limits":{"cpus":"` + canary + `"}}`, "limits.cpus"},
		{open, `{"limits":{"memory_bytes":-1}}`, "limits.memory_bytes"},
		{open, `{"limits":{"memory_bytes":1.5}}`, "limits.memory_bytes"},
		{open, `{"limits":{"memory_bytes":1e300}}`, "limits.memory_bytes"},
		{open, `{"limits":{"memory_bytes":1e999}}`, "limits.memory_bytes"},
		{open, `{"limits":{"unknown":"` + canary + `"}}`, "limits.unknown"},
		{open, `{"nonsense":"` + canary + `"}`, "nonsense"},
		{open, `{"KEY":"` + canary + `"}`, "KEY"},
		{open, `{"key":"a","key":"` + canary + `"}`, "key"},
		{open, `{"start":"` + canary + `"}`, "start"},
		{exec, ``, "body"},
		{exec, `{"argv":"` + canary + `"}`, "argv"},
		{exec, `{"argv":["a",7]}`, "argv[1]"},
		{exec, `{"argv":["a","` + canary + `\u0000"]}`, "argv[1]"},
		{exec, `{"argv":["a"],"stdin":"` + canary + `!"}`, "stdin"},
		{exec, `{"argv":["a"],"timeout_s":"` + canary + `"}`, "timeout_s"},
		{exec, `{"argv":["a"],"no_output_timeout_s":-1}`, "no_output_timeout_s"},
		{exec, `{"argv":["a"],"wait":"` + canary + `"}`, "wait"},
		{exec, `{"argv":["a"],"tty":{"cols":0,"rows":1}}`, "tty.cols"},
		{exec, `{"argv":["a"],"tty":{"cols":70000,"rows":1}}`, "tty.cols"},
		{cmd + "/signal", `{}`, "signal"},
		{cmd + "/stop", `{"grace_s":-1}`, "grace_s"},
		{cmd + "/resize", `{"cols":80}`, "rows"},
		{boxURL + "/files/rename", `{"from":"` + canary + `"}`, "to"},
		{boxURL + "/files/rename", `{"from":"a","to_b64":"AGE="}`, "to_b64"},
	} {
		got := r.do("POST", tc.path, tc.body)
		if got.status != 400 {
			t.Errorf("%s %.80s: %d %s", tc.path, tc.body, got.status, got.body)
			continue
		}
		env := got.envelope(t)
		if env.Code != "invalid_request" || env.Field != tc.field || !strings.HasPrefix(env.Message, tc.field) {
			t.Errorf("%s %.80s: field %q in %s, want %q", tc.path, tc.body, env.Field, got.body, tc.field)
		}
		if strings.Contains(got.body, canary) || strings.Contains(r.log.String(), canary) {
			t.Errorf("%s %.80s: the value is told: %s", tc.path, tc.body, got.body)
		}
	}
}

func TestBadQueriesNameTheField(t *testing.T) {
	r := newRig(t, controlListener, nil)
	const canary = "canary-5e1f"
	for target, field := range map[string]string{
		"GET " + boxURL + "/files?path=%zz" + canary:             "query",
		"GET " + boxURL + "/files?path=%00" + canary:             "path",
		"GET " + boxURL + "/files?depth=" + canary:               "depth",
		"GET " + boxURL + "/files?max=-1":                        "max",
		"GET " + boxURL + "/files?recursive=" + canary:           "recursive",
		"GET " + boxURL + "/files?path=a&path=" + canary:         "path",
		"GET " + boxURL + "/files?paht=" + canary:                "paht",
		"PUT " + boxURL + "/files":                               "path",
		"GET " + boxURL + "/files/content":                       "path",
		"GET " + boxURL + "/commands/c1/output?offset=" + canary: "offset",
		"GET " + boxURL + "/commands/c1/output?offset=9e9":       "offset",
		"GET " + boxURL + "/commands/c1/output?follow=" + canary: "follow",
		"PUT " + boxURL + "/files/tar?max_bytes=" + canary:       "max_bytes",
		"GET " + boxURL + "/terminal":                            "Upgrade",
		"DELETE " + boxURL + "?keep=" + canary:                   "keep",
		"GET /v1/sandboxes?kee=" + canary:                        "kee",
		"POST " + boxURL + "/commands/c1/stdin?eof=" + canary:    "eof",
	} {
		method, path, _ := strings.Cut(target, " ")
		got := r.do(method, path, "")
		if env := got.envelope(t); got.status != 400 || env.Field != field || strings.Contains(got.body, canary) {
			t.Errorf("%s: %d %s, want field %q", target, got.status, got.body, field)
		}
	}
}

func TestWhatCannotBeAnIDNamesNothing(t *testing.T) {
	r := newRig(t, controlListener, nil)
	for _, path := range []string{"/v1/sandboxes/canary", boxURL + "/commands/-canary", boxURL + "/commands/" + strings.Repeat("x", 65) + "/output"} {
		if got := r.do("GET", path, ""); got.status != 404 || strings.Contains(got.body, "canary") {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func TestABodyIsReadWhateverItsContentType(t *testing.T) {
	r := newRig(t, controlListener, nil)
	var got sandboxd.OpenRequest
	r.double.open = func(req sandboxd.OpenRequest) (sandboxd.Sandbox, bool, error) {
		got = req
		return sandboxd.Sandbox{ID: boxID, Key: req.Key, State: sandboxd.StateRunning}, req.Key == "new", nil
	}
	for _, ct := range []string{"Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded", "Content-Type: nonsense", "Content-Type: "} {
		res := r.do("POST", "/v1/sandboxes", `{"key":"new","start":false,"limits":{"pids":64}}`, ct, "Accept: text/html")
		if res.status != 201 || got.Key != "new" || got.Start == nil || *got.Start || got.Limits.PIDs != 64 {
			t.Fatalf("%s: %+v, %+v", ct, res, got)
		}
		if strings.Count(res.body, `"id"`) != 1 || strings.Count(res.body, "\n") != 1 || strings.Contains(res.body, "$schema") {
			t.Fatalf("%s", res.body)
		}
	}
	if res := r.do("POST", "/v1/sandboxes", ""); res.status != 200 || got.Key != "" {
		t.Fatalf("%+v", res)
	}
}
