package sessions

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"sandboxd"
)

// statuses is the wire's own table: what each route may answer. What is not in it is ours.
var statuses = map[string][]int{
	"GET /":                             {200},
	"GET /healthz":                      {200},
	"GET /policy":                       {200, 401},
	"PUT /policy":                       {200, 400, 401, 422},
	"POST /sessions":                    {200, 400, 401, 404, 409, 410, 422, 429, 502},
	"GET /sessions":                     {200, 401, 422},
	"GET /sessions/{session_id}":        {200, 401, 404, 422},
	"GET /sessions/{session_id}/events": {200, 401, 404, 422},
	"DELETE /sessions/{session_id}":     {204, 401, 404, 422},
	"POST /sessions/{session_id}/run":   {200, 401, 404, 410, 422, 429, 500, 501},
	"POST /sessions/{session_id}/runs/{run_id}/stop": {204, 401, 404, 422},
	"POST /sessions/{session_id}/exec":               {200, 401, 404, 422, 429, 504},
	"POST /sessions/{session_id}/read":               {200, 401, 404, 422, 429, 504},
	"POST /sessions/{session_id}/read_bytes":         {200, 401, 404, 422, 429, 504},
	"POST /sessions/{session_id}/write":              {200, 400, 401, 404, 422, 429, 504},
	"POST /sessions/{session_id}/edit":               {200, 401, 404, 422, 429, 504},
	"POST /sessions/{session_id}/exists":             {200, 401, 404, 422, 429, 504},
	"POST /sessions/{session_id}/ls":                 {200, 401, 404, 422, 429, 504},
	"POST /sessions/{session_id}/glob":               {200, 401, 404, 422, 429, 504},
	"POST /sessions/{session_id}/grep":               {200, 401, 404, 422, 429, 504},
	"POST /workspaces/{session_id}/ls":               {200, 400, 401, 404, 409, 422},
	"POST /workspaces/{session_id}/read":             {200, 400, 401, 404, 409, 422},
	"POST /workspaces/{session_id}/read_bytes":       {200, 400, 401, 404, 409, 422},
}

// never are the lines of the table that cannot be met here, and why.
var never = map[string]string{
	"exec 504":       "a command that takes too long ends with 124",
	"ls 409":         "there is no host that keeps no files",
	"read 409":       "there is no host that keeps no files",
	"read_bytes 409": "there is no host that keeps no files",
}

// meet asks a route for one of its answers, of a world of its own with the session "a",
// which has a file "x".
func meet(t *testing.T, rt route, status int) (got reply, detail string) {
	r := newRig(t)
	r.open(m{"session_id": "a"})
	if got := r.do("POST", "/sessions/a/write", serviceToken, m{"path": "x", "content_b64": "eA=="}); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	id, token, query, run := "a", serviceToken, "", runID()
	fields := m{"argv": []string{"true"}, "run_id": runID(), "session_id": "b",
		"path": "x", "content_b64": "", "old_string": "a", "new_string": "b", "pattern": "x", "command": "true"}
	switch {
	case rt.path == "/policy":
		fields = m{}
	case strings.HasSuffix(rt.path, "}/ls"):
		fields["path"] = "."
	}
	var body any = fields
	asleep := func(wakes error) {
		rec, err := r.store.GetSession(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		r.sleep(t, rec.SandboxID)
		r.mu.Lock()
		r.wakes = wakes
		r.mu.Unlock()
		fields["session_id"], fields["attach"] = "a", true
		fields["path"] = "/tmp/x" // the files of one that sleeps are there
	}
	switch opens := rt.path == "/sessions"; status {
	case 400:
		switch {
		case opens:
			fields["runtime"], detail = "evil", "Unknown runtime 'evil'. Allowed: machine, python"
		case rt.path == "/policy":
			fields["default_runtime"], detail = "evil", "Unknown runtime 'evil'. The default has to be one of: machine, python"
		case strings.HasPrefix(rt.path, "/workspaces"):
			fields["path"], detail = "../y", "Path '../y' is outside the workspace"
		default:
			fields["content_b64"], detail = "!", "content_b64 is not valid base64: "
		}
	case 401:
		token, detail = "", "Invalid or missing sandbox token"
	case 404:
		id, detail = "none", "No such session: none"
		switch {
		case opens:
			fields["session_id"], fields["attach"], detail = "none", true, "Nothing to attach to: none"
		case strings.HasPrefix(rt.path, "/workspaces"):
			detail = "No workspace for session: none"
		}
	case 409:
		fields["session_id"], detail = "a", "Session exists: a"
	case 410:
		asleep(sandboxd.Errorf(sandboxd.ClassGone, "it went"))
		if detail = stoppedUnder; opens {
			detail = "The sandbox of session a is gone, and its files with it"
		}
	case 422:
		body, detail, query, run = "[]", "[{", "?usage=x&after=x&purge=x", "x"
	case 429:
		asleep(&sandboxd.Error{Class: sandboxd.ClassCapacity, Ceiling: &sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Limit: 20}})
		detail = "Cannot wake session a: Session limit of 20 reached. Release an idle session before opening another."
	case 500:
		asleep(errors.New("secret inside"))
	case 501:
		asleep(sandboxd.Errorf(sandboxd.ClassUnsupported, "the process driver has no OCI runtime"))
		detail = "the process driver has no OCI runtime"
	case 502:
		r.refuse, detail = sandboxd.Errorf(sandboxd.ClassUnavailable, "the engine does not answer"), "Could not start sandbox: the engine does not answer"
	case 504:
		r.policy.CommandTimeoutS, detail = 1e-9, "Operation exceeded the 1e-09s service ceiling"
	}
	if rt.body == 0 {
		body = nil
	}
	return r.do(rt.method, strings.NewReplacer("{session_id}", id, "{run_id}", run).Replace(rt.path)+query, token, body), detail
}

func TestEveryStatusOfTheWire(t *testing.T) {
	table := routes()
	for _, rt := range table {
		if statuses[rt.method+" "+rt.path] == nil && !strings.Contains(rt.path, "/files/") && !strings.Contains(rt.path, "/tree") {
			t.Errorf("%s %s is neither the wire's nor ours", rt.method, rt.path)
		}
	}
	for name, all := range statuses {
		i := slices.IndexFunc(table, func(rt route) bool { return rt.method+" "+rt.path == name })
		if i < 0 {
			t.Errorf("%s is no route", name)
			continue
		}
		for _, status := range all {
			if never[fmt.Sprint(path.Base(name), " ", status)] != "" {
				continue
			}
			got, detail := meet(t, table[i], status)
			if got.status != status || detail != "" && !strings.HasPrefix(got.detail(t), detail) {
				t.Errorf("%s: %d %s, want %d %s", name, got.status, got.body, status, detail)
			}
		}
	}
}
