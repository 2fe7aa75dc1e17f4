package api

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandboxd"
)

// concrete fills in a route's parameters.
func concrete(path string) string {
	return strings.NewReplacer("{id}", boxID, "{cid}", "c1", "{port}", "8000").Replace(path)
}

func TestEveryRouteRefusesEveryWrongSecret(t *testing.T) {
	for k, mine := range map[kind]string{controlListener: testToken, hostListener: otherToken} {
		r := newRig(t, k, func(c *Config, _ *pace) {
			c.HostFor = func(req *http.Request) (sandboxd.Host, error) {
				t.Errorf("%s %s reached the host", req.Method, req.URL.Path)
				return nil, sandboxd.Errorf(sandboxd.ClassInternal, "reached")
			}
		})
		theirs := map[string]string{testToken: otherToken, otherToken: testToken}[mine]
		paths := []string{"GET /v1/none", "GET /none", "GET /v1"}
		for _, row := range routes() {
			paths = append(paths, row.op.Method+" "+concrete(row.op.Path))
		}
		for _, line := range paths {
			method, path, _ := strings.Cut(line, " ")
			for name, header := range map[string]string{
				"no": "Authorization: ", "empty": "Authorization: Bearer ", "wrong": "Authorization: Bearer " + mine + "x",
				"a part of the": "Authorization: Bearer " + mine[:len(mine)-1], "the other listener's": "Authorization: Bearer " + theirs,
				"another scheme's": "Authorization: Basic " + mine,
			} {
				got := r.do(method, path, "", header)
				if got.status != http.StatusUnauthorized {
					t.Fatalf("%s with %s secret: %d", line, name, got.status)
				}
				if env := got.envelope(t); env.Code != "unauthorized" || env.Hint == "" || strings.Contains(got.body, mine) || strings.Contains(got.body, theirs) {
					t.Fatalf("%s with %s secret: %s", line, name, got.body)
				}
			}
		}
	}
}

func TestTheSecretOpens(t *testing.T) {
	control, host := newRig(t, controlListener, nil), newRig(t, hostListener, nil)
	if got := control.do("GET", "/v1/sandboxes", ""); got.status != 200 || got.body != "{\"sandboxes\":[]}\n" {
		t.Errorf("%+v", got)
	}
	if got := host.do("GET", "/v1/sandboxes", "", "Authorization: Bearer "+otherToken); got.status != 200 {
		t.Errorf("%+v", got)
	}
	if got := host.do("GET", "/v1/sandboxes", "", "Authorization: ", "X-Sandbox-Token: "+otherToken); got.status != 200 {
		t.Errorf("%+v", got)
	}
	if got := control.do("GET", "/v1/sandboxes", "", "Authorization: ", "X-Sandbox-Token: "+testToken); got.status != 401 {
		t.Errorf("%+v", got)
	}
	closed := newRig(t, controlListener, func(c *Config, _ *pace) { c.Token, c.OtherToken = "", "" })
	if got := closed.do("GET", "/v1/sandboxes", "", "Authorization: Bearer "); got.status != 401 {
		t.Errorf("a listener without a secret opened: %+v", got)
	}
}

func TestHealth(t *testing.T) {
	control, host := newRig(t, controlListener, nil), newRig(t, hostListener, nil)
	if got := control.do("GET", "/healthz", "", "Authorization: "); got.status != 200 || got.body != "ok" {
		t.Errorf("%+v", got)
	}
	want := "{\"status\":\"ok\",\"version\":\"test\",\"roles\":[\"host\"]}\n"
	if got := control.do("GET", "/healthz", "", "Accept: application/json"); got.body != want {
		t.Errorf("%+v", got)
	}
	if got := host.do("GET", "/healthz", "", "Authorization: "); got.body != want {
		t.Errorf("%+v", got)
	}
	if got := control.do("GET", "/openapi.json", "", "Authorization: "); got.status != 200 || !strings.Contains(got.body, `"openapi": "3.1.0"`) {
		t.Errorf("status %d", got.status)
	}
}

func TestHostAndOrigin(t *testing.T) {
	r := newRig(t, controlListener, func(c *Config, _ *pace) { c.AllowedHosts = []string{"box.example"} })
	for _, tc := range []struct {
		host, origin string
		want         int
	}{
		{"", "", 200},
		{"localhost:1", "", 200},
		{"[::1]:9090", "", 200},
		{"192.0.2.1", "", 200},
		{"Box.Example:9090", "", 200},
		{"evil.example", "", 403},
		{"localhost.evil.example", "", 403},
		{"127.0.0.1.evil.example:9090", "", 403},
		{"box.example", "http://box.example", 200},
		{"box.example:81", "http://box.example", 403},
		{"box.example", "http://evil.example", 403},
		{"box.example", "null", 403},
		{"box.example", "file://", 403},
	} {
		header := []string{}
		if tc.host != "" {
			header = append(header, "Host: "+tc.host)
		}
		if tc.origin != "" {
			header = append(header, "Origin: "+tc.origin)
		}
		got := r.do("GET", "/v1/sandboxes", "", header...)
		if got.status != tc.want {
			t.Errorf("Host %q Origin %q: %d, want %d", tc.host, tc.origin, got.status, tc.want)
		}
		if got.status == 403 && got.envelope(t).Code != "forbidden" {
			t.Errorf("%s", got.body)
		}
	}
}

func TestRoutesThatAreNot(t *testing.T) {
	r := newRig(t, controlListener, nil)
	for path, want := range map[string]int{
		"GET /v1/none": 404, "GET /": 404, "GET /v1/sandboxes/": 404, "GET /v1//sandboxes": 404, "GET /v1/runtimes/../sandboxes": 404,
		"GET /v1/sandboxes/" + strings.ToUpper(boxID): 404, "GET /v1/sandboxes/x": 404, "GET /v1/sandboxes/%2e%2e": 404,
		"GET " + boxURL + "/files/%2e%2e/stat": 404,
		"PATCH /v1/sandboxes":                  405, "DELETE /v1/runtimes": 405, "POST " + boxURL + "/files/content": 405, "PUT /healthz": 405,
		"GET " + boxURL + "/commands/a%2Fb":  404,
		"GET " + boxURL + "/commands/-x":     404,
		"GET " + boxURL + "/commands/%00":    404,
		"DELETE " + boxURL + "/files":        400,
		"DELETE " + boxURL + "?keeep=files":  400,
		"DELETE " + boxURL + "?keep=nothing": 400,
	} {
		method, target, _ := strings.Cut(path, " ")
		got := r.do(method, target, "")
		if got.status != want {
			t.Errorf("%s: %d, want %d: %s", path, got.status, want, got.body)
			continue
		}
		got.envelope(t)
		if want == 405 && got.header.Get("Allow") == "" {
			t.Errorf("%s: no Allow", path)
		}
	}
}

func TestAPanicIsAnEnvelope(t *testing.T) {
	r := newRig(t, controlListener, nil)
	r.double.get = func(string) (sandboxd.Sandbox, error) { panic("secret-in-a-panic") }
	got := r.do("GET", boxURL, "")
	if env := got.envelope(t); got.status != 500 || env.Code != "internal" || strings.Contains(got.body, "secret-in-a-panic") {
		t.Fatalf("%+v", got)
	}
	if !strings.Contains(r.log.String(), "secret-in-a-panic") {
		t.Error("the log does not have the cause")
	}
}

func TestErrorsKeepWhatTheySay(t *testing.T) {
	r := newRig(t, controlListener, nil)
	for _, class := range []sandboxd.Class{sandboxd.ClassConflict, sandboxd.ClassGone, sandboxd.ClassCapacity, sandboxd.ClassNoSpace,
		sandboxd.ClassBusy, sandboxd.ClassUnavailable, sandboxd.ClassUnsupported, sandboxd.ClassInternal} {
		r.double.get = func(string) (sandboxd.Sandbox, error) {
			return sandboxd.Sandbox{}, fmt.Errorf("layer: %w", &sandboxd.Error{Class: class, Message: "what happened", Hint: "what to do",
				Ending: &sandboxd.Ending{Cause: sandboxd.CauseMemory}, Err: fmt.Errorf("cause-%s", class)})
		}
		got := r.do("GET", boxURL, "")
		env := got.envelope(t)
		if got.status != class.HTTPStatus() || env.Code != string(class) || env.Retryable != class.Retryable() ||
			env.Message != "what happened" || env.Hint != "what to do" || env.Ending == nil || env.Ending.Cause != sandboxd.CauseMemory {
			t.Errorf("%s: %d %+v", class, got.status, env)
		}
		if (class == sandboxd.ClassCapacity) != (got.header.Get("Retry-After") != "") {
			t.Errorf("%s: Retry-After %q", class, got.header.Get("Retry-After"))
		}
		if strings.Contains(got.body, "cause-") || !strings.Contains(r.log.String(), "cause-"+string(class)) {
			t.Errorf("%s: the cause belongs in the log and not in %s", class, got.body)
		}
	}
}

func TestTheLogHasNoSecrets(t *testing.T) {
	r := newRig(t, controlListener, nil)
	r.double.open = func(sandboxd.OpenRequest) (sandboxd.Sandbox, bool, error) {
		return sandboxd.Sandbox{ID: boxID}, true, nil
	}
	got := r.do("POST", "/v1/sandboxes", `{"env":{"KEY":"env-secret"}}`, "X-Request-Id: req-17")
	if got.status != 201 || got.header.Get("X-Request-Id") != "req-17" {
		t.Fatalf("%+v", got)
	}
	if got := r.do("POST", "/v1/sandboxes", `{"env":{"KEY":["env-secret"]}}`, "X-Request-Id: no\tgood"); !sandboxd.ValidID(got.header.Get("X-Request-Id")) {
		t.Fatalf("%+v", got)
	}
	r.do("GET", boxURL+"/files/content?path=name-secret", "", "Authorization: Bearer wrong-secret")
	text := r.log.String()
	if strings.Contains(text, "env-secret") || strings.Contains(text, "name-secret") ||
		strings.Contains(text, "wrong-secret") || strings.Contains(text, testToken) {
		t.Fatalf("%s", text)
	}
	if strings.Count(text, "msg=request") != 3 || !strings.Contains(text, "request=req-17") || !strings.Contains(text, "status=401") {
		t.Fatalf("%s", text)
	}
}

// dial opens a bare connection, which is closed with t.
func (r *rig) dial(head string) (net.Conn, *bufio.Reader) {
	r.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		r.Fatal(err)
	}
	if _, err := io.WriteString(conn, head); err != nil {
		r.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

func head(method, path string, more ...string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + testToken + "\r\n" + strings.Join(more, "\r\n") + "\r\n\r\n"
}

func TestAStalledBodyIsCut(t *testing.T) {
	r := newRig(t, controlListener, func(_ *Config, p *pace) { p.bodyIdle = 100 * time.Millisecond })
	for _, tc := range []string{head("PUT", boxURL+"/files?path=f", "Content-Length: 100"), head("POST", "/v1/sandboxes", "Content-Length: 100")} {
		conn, br := r.dial(tc + "x")
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(res.Body)
		if res.StatusCode != 400 || !strings.Contains(string(data), "body: no byte") {
			t.Fatalf("%d %s", res.StatusCode, data)
		}
		if _, err := br.ReadByte(); err != io.EOF {
			t.Fatalf("the connection is kept: %v", err)
		}
		conn.Close()
	}
	// A body that creeps is slow and not stalled.
	conn, br := r.dial(head("PUT", boxURL+"/files?path=f", "Content-Length: 10"))
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for i := range 10 {
		<-tick.C
		if _, err := fmt.Fprint(conn, i); err != nil {
			t.Fatal(err)
		}
	}
	if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 200 || string(r.double.content) != "0123456789" {
		t.Fatalf("%v %v %q", res, err, r.double.content)
	}
}

func TestAStrangerWithAPromisedBodyIsNotWaitedFor(t *testing.T) {
	r := newRig(t, controlListener, nil)
	_, br := r.dial("PUT " + boxURL + "/files?path=f HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n")
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 401 || !res.Close {
		t.Fatalf("%v %v", res, err)
	}
	if _, err := io.ReadAll(br); err != nil {
		t.Fatal(err)
	}
}

func TestAShortBodyChangesNothing(t *testing.T) {
	r := newRig(t, controlListener, nil)
	r.double.content = []byte("before")
	conn, br := r.dial(head("PUT", boxURL+"/files?path=f", "Content-Length: 10") + "half")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(br, nil); err == nil && res.StatusCode < 400 {
		t.Fatalf("half a body was taken: %d", res.StatusCode)
	}
	if string(r.double.content) != "before" {
		t.Fatalf("%q", r.double.content)
	}
}

func TestAReaderThatStandsStillIsCut(t *testing.T) {
	r := newRig(t, controlListener, func(_ *Config, p *pace) { p.writeStall = 200 * time.Millisecond })
	stream := &endless{closed: make(chan struct{})}
	r.double.frames = func() sandboxd.CommandStream { return stream }
	r.dial(head("GET", boxURL+"/commands/c1/output?follow=1")) // and never reads
	select {
	case <-stream.closed:
	case <-time.After(20 * time.Second):
		t.Fatal("the stream of a client that does not read is still open")
	}
}

func TestHeadersAndBodiesHaveBounds(t *testing.T) {
	r := newRig(t, controlListener, nil)
	_, br := r.dial(head("GET", "/v1/sandboxes", "X-Big: "+strings.Repeat("x", 70<<10)))
	if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Fatalf("%v %v", res, err)
	}
	big := `{"key":"` + strings.Repeat("k", jsonBody) + `"}`
	if got := r.do("POST", "/v1/sandboxes", big); got.status != 413 || got.envelope(t).Code != "too_large" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	r.double.frames = plays(ended(0))
	if got := r.do("POST", boxURL+"/exec", `{"argv":["cat"],"stdin":"`+strings.Repeat("AAAA", jsonBody/4)+`"}`); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := r.do("POST", boxURL+"/exec", `{"argv":["cat"],"stdin":"`+strings.Repeat("AAAA", execBody/4)+`"}`); got.status != 413 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := r.do("POST", boxURL+"/commands/c1/stdin", strings.Repeat("x", execBody+1)); got.status != 413 {
		t.Fatalf("%d %s", got.status, got.body)
	}
}

// Who sends all of a body before reading the answer gets an answer that came first, and
// not a broken connection.
func TestAnEarlyRefusalArrives(t *testing.T) {
	r := newRig(t, controlListener, nil)
	body := bytes.Repeat([]byte(" "), 24<<20)
	for _, tc := range []struct {
		method, path, header string
		status               int
	}{
		{"PUT", boxURL + "/files?path=a", `If-None-Match: "v1"`, 400},
		{"PUT", boxURL + "/files/tar?max_entries=x", "X: y", 400},
		{"POST", boxURL + "/exec", "Content-Type: application/json", 413},
		{"PUT", "/v1/policy", "X: y", 501},
		{"PUT", "/v1/nothing", "X: y", 404},
		{"PUT", boxURL + "/exec", "X: y", 405},
	} {
		for range 5 {
			conn, br := r.dial(head(tc.method, tc.path, fmt.Sprint("Content-Length: ", len(body)), tc.header))
			if _, err := conn.Write(body); err != nil {
				t.Errorf("%s %s: %v", tc.method, tc.path, err)
				continue
			}
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Errorf("%s %s: %v", tc.method, tc.path, err)
				continue
			}
			text, err := io.ReadAll(res.Body)
			if res.StatusCode != tc.status || err != nil || !res.Close {
				t.Errorf("%s %s: %d, %v, closes %v: %s", tc.method, tc.path, res.StatusCode, err, res.Close, text)
			}
		}
	}
	// A short one costs no connection.
	got := r.do("PUT", "/v1/nothing", "x")
	if got.status != 404 || got.header.Get("Connection") != "" {
		t.Errorf("%+v", got)
	}
}
