package sessions

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sandboxd/internal/driver/fake"
)

type fakeConfig = fake.Config

func contextOf(req *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(req.Context())
	return req.WithContext(ctx), cancel
}

// concrete fills in a route's parameters.
func concrete(path, id string) string {
	if strings.HasSuffix(path, "/files/write") {
		path += "?path=/workspace/x"
	}
	return strings.NewReplacer("{session_id}", id, "{run_id}", runID()).Replace(path)
}

// bodyFor is a body that the route takes.
func bodyFor(rt route) any {
	switch {
	case rt.body == 0:
		return nil
	case strings.HasSuffix(rt.path, "/run"):
		return m{"argv": []string{"true"}, "run_id": runID()}
	}
	return m{"path": "x", "content_b64": "", "old_string": "a", "new_string": "b", "pattern": "x", "command": "true", "sessions": []string{"a"}}
}

func TestEveryRouteKnowsWhoAsks(t *testing.T) {
	r := newRig(t)
	_, mine := r.open(m{"session_id": "mine"})
	_, other := r.open(m{"session_id": "other"})
	for _, rt := range routes() {
		if rt.access == forAll {
			if got := r.do(rt.method, rt.path, "", nil); got.status != 200 {
				t.Errorf("%s %s: %d", rt.method, rt.path, got.status)
			}
			continue
		}
		name := rt.method + " " + rt.path
		ask := func(id, token string) reply { return r.do(rt.method, concrete(rt.path, id), token, bodyFor(rt)) }
		if rt.method == "PUT" {
			ask = func(_, token string) reply { return r.do("PUT", rt.path, token, m{}) }
		}
		for _, token := range []string{"", "wrong", "w\u00fcrong", serviceToken + "x", other[:42]} {
			for _, id := range []string{"mine", "unknown"} {
				got := ask(id, token)
				if got.status != 401 || got.detail(t) != "Invalid or missing sandbox token" {
					t.Fatalf("%s of %s with %q: %d %s", name, id, token, got.status, got.body)
				}
			}
		}
		if got := ask("mine", other); got.status != 401 {
			t.Errorf("%s with another session's token: %d", name, got.status)
		}
		if got := ask("unknown", mine); got.status != 401 {
			t.Errorf("%s of an unknown session with a session's token: %d", name, got.status)
		}
		if rt.access == forService {
			if got := ask("mine", mine); got.status != 401 {
				t.Errorf("%s with a session's token: %d", name, got.status)
			}
		}
		badID, want := ask("-bad", ""), 422
		if rt.access == forService {
			want = 401
		}
		if strings.Contains(rt.path, "{session_id}") && badID.status != want {
			t.Errorf("%s of an impossible name: %d %s", name, badID.status, badID.body)
		}
		if rt.access == forSession {
			if got := ask("unknown", serviceToken); got.status != 404 || got.detail(t) != "No such session: unknown" {
				t.Errorf("%s of an unknown session: %d %s", name, got.status, got.body)
			}
		}
		if rt.body > 0 {
			// Broken JSON is seen before the secret; a wrong field after it.
			if got := r.do(rt.method, concrete(rt.path, "mine"), "", "{"); got.status != 422 {
				t.Errorf("%s with broken JSON: %d", name, got.status)
			}
			if got := r.do(rt.method, concrete(rt.path, "mine"), "", "[]"); got.status != 401 {
				t.Errorf("%s with a list: %d", name, got.status)
			}
			if got := r.do(rt.method, concrete(rt.path, "mine"), serviceToken, "[]"); got.status != 422 {
				t.Errorf("%s with a list: %d", name, got.status)
			}
		}
	}
}

func TestASecretOfTheOtherHeader(t *testing.T) {
	r := newRig(t)
	req, err := http.NewRequestWithContext(t.Context(), "GET", r.srv.URL+"/policy", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "bearer "+serviceToken)
	res, err := r.srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("%d", res.StatusCode)
	}
}

func TestWhatIsNoRoute(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		method, path string
		status       int
		header       string // of the answer, as "Name: value"
	}{
		{"GET", "/ui", 404, ""},
		{"GET", "/docs", 404, ""},
		{"GET", "/sessions/a/nothing", 404, ""},
		{"POST", "/sessions/a/run/x", 404, ""},
		{"PATCH", "/policy", 405, "Allow: GET, PUT"},
		{"DELETE", "/sessions", 405, "Allow: POST, GET"},
		{"GET", "/sessions/a/run", 405, "Allow: POST"},
		{"GET", "/policy/?a=b%20c", 307, "Location: /policy?a=b%20c"},
		{"POST", "/sessions/a/run/", 307, "Location: /sessions/a/run"},
		{"GET", "//evil.example/", 404, ""},
		{"GET", "/nothing/", 404, ""},
	} {
		got := r.do(c.method, c.path, "", nil)
		if got.status != c.status {
			t.Errorf("%s %s: %d %s", c.method, c.path, got.status, got.body)
		}
		if c.status == 404 && got.body != "{\"detail\":\"Not Found\"}\n" || c.status == 405 && got.body != "{\"detail\":\"Method Not Allowed\"}\n" {
			t.Errorf("%s %s: %q", c.method, c.path, got.body)
		}
		if name, value, ok := strings.Cut(c.header, ": "); ok && got.header.Get(name) != value {
			t.Errorf("%s %s: %s: %q", c.method, c.path, name, got.header.Get(name))
		}
	}
}

func TestTheIndexListsTheTemplates(t *testing.T) {
	r := newRig(t)
	var i index
	r.do("GET", "/", "", nil).json(t, &i)
	for _, want := range []string{"/sessions/{session_id}/run", "/sessions/{session_id}/runs/{run_id}/stop", "/workspaces/{session_id}/tree", "/policy", "/healthz", "/readyz"} {
		if !slices.Contains(i.Endpoints, want) {
			t.Errorf("%s is not in %v", want, i.Endpoints)
		}
	}
	if !slices.IsSorted(i.Endpoints) || slices.Contains(i.Endpoints, "/") || slices.Contains(i.Endpoints, "/ui") || i.UIURL != nil || i.Service != "sandboxd" ||
		i.Version != "test" || len(i.Capabilities) == 0 || i.Health.Status != "ok" || *i.Health.Limit != 20 {
		t.Errorf("%+v", i)
	}
}

// TestDecodedCountsAsThePeerDoes compares with the peer's own decoding of every sequence
// of at most four of the bytes that begin, continue or break a character:
//
//	for n in 1..4: for t in itertools.product(B, repeat=n):
//	    h.update(bytes(t).decode('utf-8', 'replace').encode() + b'\n')
func TestDecodedCountsAsThePeerDoes(t *testing.T) {
	alphabet, _ := hex.DecodeString("41808f909fa0bfc0c2dfe0e1edeef0f1f4f5ff")
	sum := sha256.New()
	var all func(prefix []byte, n int)
	all = func(prefix []byte, n int) {
		if n == 0 {
			sum.Write([]byte(decoded(prefix) + "\n"))
			return
		}
		for _, b := range alphabet {
			all(append(prefix[:len(prefix):len(prefix)], b), n-1)
		}
	}
	for n := 1; n <= 4; n++ {
		all(nil, n)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != "457911be0bcc220d7cd6f5429407b679601dce53827156c3a11f397af8d9656d" {
		t.Errorf("another decoding: %s", got)
	}
}

func TestTexts(t *testing.T) {
	for in, want := range map[string]string{"a": "'a'", "it's": `"it's"`, `both ' and "`: `'both \' and "'`, "a\nb\\\t\x01ü": `'a\nb\\\t\x01ü'`} {
		if got := quoted(in); got != want {
			t.Errorf("quoted(%q) = %s", in, got)
		}
	}
	if got := shellJoin([]string{"/bin/sh", "-c", "echo 'it' $x", "", "a=b,c:d@e%f+g"}); got != `/bin/sh -c 'echo '"'"'it'"'"' $x' '' a=b,c:d@e%f+g` {
		t.Errorf("%s", got)
	}
	if got := cut(strings.Repeat("ü", 201), 200); got != strings.Repeat("ü", 200)+"…" || cut(strings.Repeat("ü", 200), 200) != strings.Repeat("ü", 200) {
		t.Errorf("%d", len(got))
	}
	if got := splitLines("a\r\nb\rc\n\nd\u2028e\x1cf"); !slices.Equal(got, []string{"a", "b", "c", "", "d", "e", "f"}) {
		t.Errorf("%q", got)
	}
}
