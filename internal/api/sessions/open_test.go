package sessions

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
)

func TestOpenDecidesInOrder(t *testing.T) {
	r := newRig(t)
	first, token := r.open(m{"session_id": "a", "runtime": nil, "tenant": "acme", "reuse": false, "attach": false})
	if first.ID != "a" || first.Runtime != "machine" || *first.Tenant != "acme" || !first.Alive || first.State != "running" || first.IdleSeconds != 0 || first.Usage != nil {
		t.Errorf("%+v", first)
	}
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`).MatchString(token) {
		t.Errorf("token %q", token)
	}
	made, _ := r.open(m{})
	if !regexp.MustCompile(`^s-[0-9a-f]{16}$`).MatchString(made.ID) {
		t.Errorf("made up %q", made.ID)
	}
	for _, c := range []struct {
		name   string
		body   any
		status int
		detail string
	}{
		{"unknown runtime first", m{"session_id": "a", "runtime": "it's", "attach": true}, 400, `Unknown runtime "it's". Allowed: machine, python`},
		{"attach without id", m{"attach": true, "session_id": nil}, 400, "attach needs the session_id to attach to"},
		{"open, and not to be shared", m{"session_id": "a"}, 409, "Session exists: a"},
		{"another runtime", m{"session_id": "a", "reuse": true, "runtime": "python"}, 409, "Session a is open on runtime 'machine', not 'python'. Close it before changing runtime."},
		{"nothing kept", m{"session_id": "gone-1", "attach": true}, 404, "Nothing to attach to: gone-1"},
		{"attach wins over reuse", m{"session_id": "gone-1", "attach": true, "reuse": true}, 404, "Nothing to attach to: gone-1"},
	} {
		if got := r.do("POST", "/sessions", serviceToken, c.body); got.status != c.status || got.detail(t) != c.detail {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
		}
	}
	// The empty runtime and null are the default, which any session takes on attaching.
	for _, body := range []m{{"session_id": "a", "reuse": true}, {"session_id": "a", "attach": true, "runtime": nil, "tenant": "other"}} {
		again, same := r.open(body)
		if same != token || again.ID != "a" || *again.Tenant != "acme" {
			t.Errorf("attached: %+v with %q", again, same)
		}
	}
	// Names that differ only in case are two.
	if upper, other := r.open(m{"session_id": "A", "reuse": true, "runtime": "python"}); other == token || upper.Runtime != "python" {
		t.Errorf("%+v", upper)
	}
}

func TestOpenRefusesWhatIsNoRequest(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct{ body, want string }{
		{`{`, `[{"ctx":{"error":"unexpected end of JSON input"},"input":{},"loc":["body",0],"msg":"JSON decode error","type":"json_invalid"}]`},
		{``, `[{"input":null,"loc":["body"],"msg":"Field required","type":"missing"}]`},
		{`[]`, `[{"input":[],"loc":["body"],"msg":"Input should be a valid dictionary or object to extract fields from","type":"model_attributes_type"}]`},
		{`{"session_id":"../x"}`, `[{"ctx":{"pattern":"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},"input":"../x","loc":["body","session_id"],"msg":"String should match pattern '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'","type":"string_pattern_mismatch"}]`},
		{`{"session_id":7,"reuse":"maybe","tenant":"` + strings.Repeat("t", 65) + `"}`, ``},
	} {
		got := r.do("POST", "/sessions", serviceToken, c.body)
		if got.status != 422 || c.want != "" && got.detail(t) != c.want {
			t.Errorf("%s: %d %s", c.body, got.status, got.detail(t))
		}
		if c.want == "" && strings.Count(got.body, `"type"`) != 3 {
			t.Errorf("not all that is wrong: %s", got.body)
		}
	}
	if list, err := r.List(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
}

func TestTheTokenIsTheSameForTheWholeLifeAndOnlyForIt(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	r.restart()
	if got := r.do("GET", "/sessions/a", token, nil); got.status != 200 {
		t.Errorf("after a restart: %d %s", got.status, got.body)
	}
	if _, again := r.open(m{"session_id": "a", "attach": true}); again != token {
		t.Error("the token changed with a restart")
	}
	if got := r.do("DELETE", "/sessions/a", token, nil); got.status != 204 || got.body != "" {
		t.Errorf("close: %d %q", got.status, got.body)
	}
	if got := r.do("GET", "/sessions/a", token, nil); got.status != 401 {
		t.Errorf("the old token: %d", got.status)
	}
	if got := r.do("GET", "/sessions/a", serviceToken, nil); got.status != 404 || got.detail(t) != "No such session: a" {
		t.Errorf("closed: %d %s", got.status, got.body)
	}
	r.pass(time.Hour)
	reopened, other := r.open(m{"session_id": "a", "attach": true})
	if other == token || reopened.CreatedAt != seconds(r.time()) {
		t.Errorf("opened again: %+v, same token %v", reopened, other == token)
	}
	if got := r.do("GET", "/sessions/a", token, nil); got.status != 401 {
		t.Errorf("the token of the life before: %d", got.status)
	}
	r.restart(func(c *Config) { c.Key = []byte("another") })
	if got := r.do("GET", "/sessions/a", other, nil); got.status != 401 {
		t.Errorf("with another key: %d", got.status)
	}
}

func TestAKeptSessionKeepsItsRuntime(t *testing.T) {
	r := newRig(t)
	r.open(m{"session_id": "a", "runtime": "python"})
	r.do("DELETE", "/sessions/a", serviceToken, nil)
	if got := r.do("POST", "/sessions", serviceToken, m{"session_id": "a", "attach": true, "runtime": "machine"}); got.status != 409 {
		t.Errorf("another runtime: %d %s", got.status, got.body)
	}
	if again, _ := r.open(m{"session_id": "a", "attach": true}); again.Runtime != "python" {
		t.Errorf("opened again on %s", again.Runtime)
	}
}

// An opening that a purge overtakes begins anew, and not for ever.
func TestAPurgeThatOvertakesAnOpening(t *testing.T) {
	for _, c := range []struct {
		body   m
		gone   int
		status int
	}{{m{}, 1, 200}, {m{}, 2, 200}, {m{}, 3, 502}, {m{"attach": true}, 1, 200}} {
		r := newRig(t)
		r.open(m{"session_id": "a"})
		if got := r.do("DELETE", "/sessions/a", serviceToken, nil); got.status != 204 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		r.mu.Lock()
		r.refuse = sandboxd.Errorf(sandboxd.ClassGone, "the sandbox was deleted")
		opens := 0
		r.opens = func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if opens++; opens == c.gone {
				r.refuse = nil
			}
		}
		r.mu.Unlock()
		c.body["session_id"] = "a"
		if got := r.do("POST", "/sessions", serviceToken, c.body); got.status != c.status {
			t.Errorf("%v, gone %d times: %d %s", c.body, c.gone, got.status, got.body)
		}
	}
}

// Whoever opens a session again, the label of its first opener stays.
func TestAKeptSessionKeepsItsTenant(t *testing.T) {
	r := newRig(t)
	r.open(m{"session_id": "a", "tenant": "first"})
	for _, body := range []m{{"tenant": "second", "reuse": true}, {"tenant": "second"}, {"tenant": "second", "attach": true}, {}} {
		if got := r.do("DELETE", "/sessions/a", serviceToken, nil); got.status != 204 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		body["session_id"] = "a"
		if s, _ := r.open(body); s.Tenant == nil || *s.Tenant != "first" {
			t.Errorf("%v: %+v", body, s)
		}
	}
}

func TestAKeyOfAnotherFaceIsNoSession(t *testing.T) {
	r := newRig(t)
	if _, _, err := r.lifetimes.Host.Open(t.Context(), sandboxd.OpenRequest{Key: "theirs"}); err != nil {
		t.Fatal(err)
	}
	for _, body := range []m{{"session_id": "theirs", "reuse": true}, {"session_id": "theirs", "attach": true}} {
		if got := r.do("POST", "/sessions", serviceToken, body); got.status != 400 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	for _, path := range []string{"/workspaces/theirs/ls", "/workspaces/theirs/read"} {
		if got := r.do("POST", path, serviceToken, m{"path": "."}); got.status != 404 || got.detail(t) != "No workspace for session: theirs" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	if got := r.do("DELETE", "/sessions/theirs?purge=true", serviceToken, nil); got.status != 404 {
		t.Errorf("purge: %d", got.status)
	}
}

func TestTwoOpeningsOfOneID(t *testing.T) {
	r := newRig(t)
	held, entered := make(chan struct{}), make(chan struct{}, 16)
	r.opens = func() { entered <- struct{}{}; <-held }
	var all sync.WaitGroup
	tokens := make([]string, 5)
	for i := range tokens {
		all.Go(func() {
			got := r.do("POST", "/sessions", serviceToken, m{"session_id": "one", "reuse": true})
			if got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
				return
			}
			var c created
			got.json(t, &c)
			tokens[i] = c.Token
		})
	}
	<-entered
	if got := r.do("POST", "/sessions", serviceToken, m{"session_id": "one"}); got.status != 409 || got.detail(t) != "Session is opening: one" {
		t.Errorf("not to be shared: %d %s", got.status, got.body)
	}
	if got := r.do("GET", "/sessions/one", serviceToken, nil); got.status != 404 {
		t.Errorf("while it opens: %d", got.status)
	}
	// Others are not held up.
	if got := r.do("GET", "/healthz", "", nil); got.status != 200 {
		t.Errorf("healthz: %d", got.status)
	}
	close(held)
	all.Wait()
	for _, token := range tokens {
		if token != tokens[0] || token == "" {
			t.Errorf("tokens %q", tokens)
		}
	}
	if list, _ := r.List(t.Context(), ""); len(list) != 1 || len(entered) != 0 {
		t.Errorf("%d sandboxes, %d more openings", len(list), len(entered))
	}
}

func TestAnOpeningThatTakesTooLongIsNotWaitedFor(t *testing.T) {
	r := newRig(t)
	r.face.wait.opening = 20 * time.Millisecond
	held, entered := make(chan struct{}), make(chan struct{})
	r.opens = func() { close(entered); <-held }
	first := make(chan reply, 1)
	go func() { first <- r.do("POST", "/sessions", serviceToken, m{"session_id": "slow"}) }()
	<-entered
	got := r.do("POST", "/sessions", serviceToken, m{"session_id": "slow", "reuse": true})
	if got.status != 409 || got.detail(t) != "Session is opening: slow" || got.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
	close(held)
	if got := <-first; got.status != 200 {
		t.Errorf("the first: %d %s", got.status, got.body)
	}
}

func TestFailedStartsLeaveNothing(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		err    error
		status int
		detail string
	}{
		{sandboxd.Errorf(sandboxd.ClassUnavailable, "the engine does not answer"), 502, "Could not start sandbox: the engine does not answer"},
		{errors.New("secret inside"), 502, "Could not start sandbox: the sandbox did not start"},
		{&sandboxd.Error{Class: sandboxd.ClassUnavailable, Field: Draining, Message: "this host takes no new sandboxes"}, 503, "this host takes no new sandboxes"},
		{&sandboxd.Error{Class: sandboxd.ClassCapacity, Ceiling: &sandboxd.Ceiling{Name: sandboxd.CeilingOpen, Limit: 4}}, 429,
			"Service holds its ceiling of 4 open sessions and all of them are in use. Close one before opening another."},
	} {
		r.refuse = c.err
		if got := r.do("POST", "/sessions", serviceToken, m{"session_id": "a"}); got.status != c.status || got.detail(t) != c.detail {
			t.Errorf("%v: %d %s", c.err, got.status, got.body)
		}
	}
	r.refuse = nil
	r.fake.Configure(func(c *fakeConfig) { c.StartError = errors.New("boom") })
	if got := r.do("POST", "/sessions", serviceToken, m{"session_id": "a"}); got.status != 502 || !strings.HasPrefix(got.detail(t), "Could not start sandbox: ") {
		t.Errorf("%d %s", got.status, got.body)
	}
	r.fake.Configure(func(c *fakeConfig) { c.StartError = nil })
	if got := r.do("POST", "/sessions", serviceToken, m{"session_id": "a", "attach": true}); got.status != 404 {
		t.Errorf("what failed was kept: %d %s", got.status, got.body)
	}
	r.open(m{"session_id": "a"})
}

func TestCeilings(t *testing.T) {
	r := newRig(t)
	two, three := 2, 3
	r.policy.MaxPerTenant, r.policy.MaxRunning = &two, &three
	var all sync.WaitGroup
	codes := make(chan reply, 6)
	for i := range 6 {
		all.Go(func() {
			codes <- r.do("POST", "/sessions", serviceToken, m{"tenant": "oneil", "session_id": fmt.Sprint("s", i)})
		})
	}
	all.Wait()
	close(codes)
	opened := 0
	for got := range codes {
		switch {
		case got.status == 200:
			opened++
		case got.status != 429:
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if opened < 2 {
		t.Fatalf("%d were opened", opened)
	}
	got := r.do("POST", "/sessions", serviceToken, m{"tenant": "oneil"})
	if got.status != 429 || !strings.HasPrefix(got.detail(t), "Tenant 'oneil' already holds ") || !strings.HasSuffix(got.detail(t), " of 2 sessions. Release an idle session before opening another.") {
		t.Errorf("%d %s", got.status, got.body)
	}
	for range 3 - opened {
		r.open(m{"tenant": "other"})
	}
	got = r.do("POST", "/sessions", serviceToken, m{})
	if got.status != 429 || got.detail(t) != "Session limit of 3 reached. Release an idle session before opening another." || got.header.Get("Retry-After") != "3" {
		t.Errorf("%d %s %v", got.status, got.body, got.header)
	}
}

func TestAnOpeningGoesOnWhenItsCallerLeaves(t *testing.T) {
	r := newRig(t)
	held, entered := make(chan struct{}), make(chan struct{})
	r.opens = sync.OnceFunc(func() { close(entered); <-held })
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.srv.URL+"/sessions", strings.NewReader(`{"session_id":"left"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Sandbox-Token", serviceToken)
	ctx, leave := contextOf(req)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if res, err := r.srv.Client().Do(ctx); err == nil {
			res.Body.Close()
		}
	}()
	<-entered
	leave()
	<-gone
	close(held)
	until(t, "the session is open", func() bool { return r.do("GET", "/sessions/left", serviceToken, nil).status == 200 })
}
