package hostlistener

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/host"
	"sandboxd/internal/leaktest"
	"sandboxd/internal/store"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	serviceToken = "the-service-token"
	apiKey       = "sk_the-key-of-the-other-listener"
)

type rig struct {
	t     *testing.T
	srv   *httptest.Server
	ready error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t}
	st := store.NewMemory()
	world := fake.NewWorld(fake.Config{})
	d := fake.New(world)
	uid := uint32(os.Geteuid())
	h, err := host.New(t.Context(), host.Config{DataDir: t.TempDir(), Store: st, Drivers: []sandboxd.Driver{d}, UIDs: sandboxd.UIDPool{First: uid, Last: uid, Shared: true}})
	if err != nil {
		t.Fatal(err)
	}
	r.srv = httptest.NewServer(New(Config{Machine: h, Sessions: st, Token: serviceToken, OtherToken: apiKey, SessionKey: []byte("key"),
		Ready: func(context.Context) error { return r.ready }, Version: "v1", Roles: []string{"host"}}))
	t.Cleanup(func() {
		r.srv.Close()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		d.Close()
		world.Close()
	})
	return r
}

func (r *rig) do(method, path, header, body string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.srv.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Host = "sandboxd:8080" // as containers beside it call it
	if name, value, ok := strings.Cut(header, ": "); ok {
		req.Header.Set(name, value)
	}
	res, err := r.srv.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

const (
	wireHeader = "X-Sandbox-Token: " + serviceToken
	bearer     = "Authorization: Bearer " + serviceToken
)

func TestEveryFaceTakesBothHeadersAndNoOtherSecret(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/v1/sandboxes", "/policy", "/sessions", "/metrics"} {
		for _, header := range []string{wireHeader, bearer} {
			if code, body := r.do("GET", path, header, ""); code != 200 {
				t.Errorf("%s with %s: %d %s", path, header, code, body)
			}
		}
		for _, header := range []string{"", "X-Sandbox-Token: " + apiKey, "Authorization: Bearer " + apiKey, "X-Sandbox-Token: x"} {
			if code, body := r.do("GET", path, header, ""); code != 401 || strings.Contains(body, serviceToken) {
				t.Errorf("%s with %q: %d %s", path, header, code, body)
			}
		}
	}
	if code, _ := r.do("POST", "/drain", "X-Sandbox-Token: "+apiKey, ""); code != 401 {
		t.Errorf("drain: %d", code)
	}
}

func TestWhatProbesAreTold(t *testing.T) {
	r := newRig(t)
	if code, body := r.do("GET", "/readyz", "", ""); code != 200 || body != "{\"ready\":true}\n" {
		t.Errorf("%d %s", code, body)
	}
	var health map[string]any
	_, body := r.do("GET", "/healthz", "", "")
	if err := json.Unmarshal([]byte(body), &health); err != nil || health["status"] != "ok" || health["version"] != "v1" || health["limit"] != 20.0 || health["capabilities"] == nil {
		t.Errorf("%s", body)
	}
	var index struct {
		Endpoints []string `json:"endpoints"`
	}
	_, body = r.do("GET", "/", "", "")
	if err := json.Unmarshal([]byte(body), &index); err != nil || !strings.Contains(strings.Join(index.Endpoints, " "), "/drain") {
		t.Errorf("%s", body)
	}
	if code, body := r.do("GET", "/ui", "", ""); code != 404 || body != "{\"detail\":\"Not Found\"}\n" {
		t.Errorf("%d %s", code, body)
	}
	broken := newRig(t)
	broken.ready = sandboxd.Errorf(sandboxd.ClassUnavailable, "the process driver cannot isolate sandboxes: cgroups: none")
	if code, body := broken.do("GET", "/readyz", "", ""); code != 503 || body != "{\"ready\":false,\"detail\":\"the process driver cannot isolate sandboxes: cgroups: none\"}\n" {
		t.Errorf("%d %s", code, body)
	}
}

func TestDrain(t *testing.T) {
	r := newRig(t)
	if code, body := r.do("POST", "/sessions", wireHeader, `{"session_id":"there"}`); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	for range 2 {
		if code, body := r.do("POST", "/drain", bearer, ""); code != 202 || body != "{\"draining\":true}\n" {
			t.Errorf("%d %s", code, body)
		}
	}
	if code, body := r.do("POST", "/sessions", wireHeader, `{}`); code != 503 || !strings.Contains(body, "being drained") {
		t.Errorf("a new session: %d %s", code, body)
	}
	if code, body := r.do("POST", "/v1/sandboxes", bearer, `{"key":"new"}`); code != 503 {
		t.Errorf("a new sandbox: %d %s", code, body)
	}
	if code, body := r.do("POST", "/sessions", wireHeader, `{"session_id":"there","attach":true}`); code != 200 {
		t.Errorf("what is open: %d %s", code, body)
	}
	if code, body := r.do("POST", "/sessions/there/run", wireHeader, `{"argv":["echo","on"],"run_id":"0123456789abcdef0123456789abcdef"}`); code != 200 || !strings.Contains(body, `"on\n"`) {
		t.Errorf("its work: %d %s", code, body)
	}
	if code, body := r.do("GET", "/readyz", "", ""); code != 503 || !strings.Contains(body, "draining") {
		t.Errorf("%d %s", code, body)
	}
	_, figures := r.do("GET", "/metrics", bearer, "")
	for _, line := range []string{"sandboxd_info{version=\"v1\"} 1", "sandboxd_sandboxes{state=\"running\"} 1", "sandboxd_sessions_open 1", "sandboxd_max_running 20", "sandboxd_draining 1", "# TYPE sandboxd_draining gauge"} {
		if !strings.Contains(figures, line+"\n") {
			t.Errorf("no %s in\n%s", line, figures)
		}
	}
}
