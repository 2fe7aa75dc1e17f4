package docker

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"sandboxd"
)

// pretender answers in an engine's place: right where nothing is said, else as the
// test says.
func pretender(t *testing.T, odd map[string]http.HandlerFunc) *Driver {
	t.Helper()
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Unread, it would keep the server from seeing that the client has left.
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("Api-Version", "1.41")
		path := r.URL.Path
		if rest, ok := strings.CutPrefix(path, "/v1.41"); ok {
			path = rest
		}
		for part, answer := range odd {
			if strings.Contains(path, part) {
				answer(w, r)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case path == "/_ping":
			fmt.Fprint(w, "OK")
		case path == "/events":
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-release:
			}
		case path == "/containers/json":
			fmt.Fprint(w, "[]")
		case path == "/images/create":
			fmt.Fprint(w, `{"status":"sha256:0123456789abcdef"}`)
		case strings.HasPrefix(path, "/images/"):
			fmt.Fprint(w, `{"Id":"sha256:0123456789abcdef","Os":"linux","Config":{}}`)
		case path == "/containers/create":
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"Id":"0123456789abcdef0123456789abcdef","Warnings":[]}`)
		case strings.HasSuffix(path, "/archive"):
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message":"No such file"}`)
		case path == "/info":
			fmt.Fprint(w, `{"OSType":"linux","ServerVersion":"20.10.24","Runtimes":{"runc":{}},"DefaultRuntime":"runc","SecurityOptions":["name=seccomp"]}`)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	dir := t.TempDir()
	d, err := New(Config{Host: strings.Replace(srv.URL, "http://", "tcp://", 1), DataDir: dir, Image: "tools", Patience: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		close(release)
		srv.CloseClientConnections()
		srv.Close()
	})
	return d
}

func answer(status int, kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// half begins an answer and breaks off.
func half(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"Id":"0123`)
	panic(http.ErrAbortHandler)
}

const page = `<!DOCTYPE html><html><body>It works!</body></html>`

// Whatever answers in an engine's place, each failure has a class and a name, a
// start that fails leaves nothing here, and nothing is taken for gone that is not.
func TestPretenders(t *testing.T) {
	html := func(status int) http.HandlerFunc { return answer(status, "text/html", page) }
	for _, test := range []struct {
		name, at string
		answer   http.HandlerFunc
		says     string
	}{
		{"a page for an image", "/images/", html(200), "what answers in the container engine's place is none"},
		{"a missing page for an image", "/images/", html(404), "what answers in the container engine's place is none"},
		{"half an image", "/images/", half, "broke off in the middle"},
		{"no end of an image", "/images/", hang, "nothing came within 300ms"},
		{"an image without an id", "/images/", answer(200, "application/json", "{}"), "is none"},
		{"a list for an image", "/images/", answer(200, "application/json", "[1,2]"), "is none"},
		{"a page for a container", "/create", html(200), "is none"},
		{"half a container", "/create", half, "broke off in the middle"},
		{"no end of a container", "/create", hang, "nothing came within 300ms"},
		{"a container without an id", "/create", answer(201, "application/json", "{}"), "is none"},
		{"no disk", "/create", answer(500, "application/json", `{"message":"no space left on device"}`), "failed: no space left on device"},
		{"a page for a stream", "/attach", html(200), "the container engine"},
		{"no end of a stream", "/attach", hang, "nothing came within 300ms"},
		{"a page for events", "/events", html(200), "is none"},
		{"no events", "/events", hang, "nothing came within 300ms"},
		{"a page for a list", "/containers/json", html(200), "is none"},
		{"mounts", "/create", answer(400, "application/json", `{"message":"invalid mount config for type \"bind\": bind source path does not exist: /x"}`), "mounts denied"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := pretender(t, map[string]http.HandlerFunc{test.at: test.answer})
			spec := newUnownedSpec(d.cfg.DataDir)
			_, err := d.Start(t.Context(), spec)
			wantFault(t, "start", err, test.says)
			if _, err := d.Inspect(t.Context(), spec.ID); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
				t.Errorf("inspect: %v", err)
			}
		})
	}
}

// newUnownedSpec describes an environment that will not be made.
func newUnownedSpec(dir string) sandboxd.EnvironmentSpec {
	return sandboxd.EnvironmentSpec{ID: sandboxd.NewID(), Generation: 1, UID: 230_000, Limits: sandboxd.DefaultLimits(),
		Workspace: filepath.Join(dir, "w"), Home: filepath.Join(dir, "h")}
}

// An environment is not given up for an engine that answers nonsense.
func TestAdoptFromAPretender(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a page": answer(404, "text/html", page), "half": half, "nothing": hang, "no state": answer(200, "application/json", `{"Id":"x"}`),
	} {
		t.Run(name, func(t *testing.T) {
			d := pretender(t, map[string]http.HandlerFunc{"/containers/0123456789ab/json": answer})
			raw, err := json.Marshal(handle{Container: "0123456789ab", Generation: 1})
			if err != nil {
				t.Fatal(err)
			}
			err = d.Adopt(t.Context(), sandboxd.NewID(), raw)
			if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
				t.Errorf("class %s: %v", sandboxd.ClassOf(err), err)
			}
		})
	}
}

// An engine that was away, lists nothing and is not clear about a container has not
// said that it ended.
func TestNoEndingByAPretender(t *testing.T) {
	const running = `{"Id":"0123456789ab","State":{"Running":true,"Status":"running"},"Config":{"Labels":{"sandboxd":%q,"sandboxd.data":%q,"sandboxd.generation":"1"}}}`
	const ended = `{"Id":"0123456789ab","State":{"Running":false,"Status":"exited","ExitCode":137},"Config":{"Labels":{}}}`
	for name, odd := range map[string]http.HandlerFunc{"a page": answer(404, "text/html", page), "half": half, "nothing": hang, "running": nil} {
		t.Run(name, func(t *testing.T) {
			var says atomic.Pointer[http.HandlerFunc]
			looks, cut := make(chan struct{}, 64), make(chan struct{})
			d := pretender(t, map[string]http.HandlerFunc{
				"/containers/0123456789ab/json": func(w http.ResponseWriter, r *http.Request) {
					select {
					case looks <- struct{}{}:
					default:
					}
					(*says.Load())(w, r)
				},
				"/events": func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					w.(http.Flusher).Flush()
					select {
					case <-cut:
					case <-r.Context().Done():
					}
				},
			})
			looked := func() {
				t.Helper()
				select {
				case <-looks:
				case e := <-d.Events():
					t.Fatalf("an ending that nobody told of: %+v", e)
				}
			}
			id := sandboxd.NewID()
			alive := answer(200, "application/json", fmt.Sprintf(running, id, d.data))
			says.Store(&alive)
			raw, err := json.Marshal(handle{Container: "0123456789ab", Generation: 1})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Adopt(t.Context(), id, raw); err != nil {
				t.Fatal(err)
			}
			looked()
			if odd != nil {
				says.Store(&odd)
			}
			cut <- struct{}{}
			looked()
			if odd == nil {
				cut <- struct{}{} // it has seen enough, and listens again
			}
			looked() // for another time: nothing was decided
			if status, err := d.Inspect(t.Context(), id); err != nil || !status.Running {
				t.Errorf("%+v, %v", status, err)
			}
			over := answer(200, "application/json", ended)
			says.Store(&over)
			if odd == nil {
				cut <- struct{}{}
			}
			if e := nextEvent(t, d); e.Ending.Cause != sandboxd.CauseEngine {
				t.Errorf("%+v", e)
			}
		})
	}
}

// An environment may be asked about while it is being started. Only the race detector
// sees when it may not.
func TestEnvironDuringAStart(t *testing.T) {
	asked := make(chan struct{})
	environ := answer(200, "application/json", `{"Id":"sha256:0123456789abcdef","Os":"linux","Config":{"Env":["A=b"]}}`)
	d := pretender(t, map[string]http.HandlerFunc{"/images/": environ, "/containers/create": func(w http.ResponseWriter, r *http.Request) {
		<-asked
		answer(500, "application/json", `{"message":"no"}`)(w, r)
	}})
	spec := newUnownedSpec(d.cfg.DataDir)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if _, err := d.Start(t.Context(), spec); err == nil {
			t.Error("started")
		}
	}()
	var once sync.Once
	for {
		if d.Environ(spec.ID) != nil {
			once.Do(func() { close(asked) })
		}
		select {
		case <-over:
			return
		default:
		}
	}
}

func TestFingerprintOfAPretender(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"a page":         {answer(200, "text/html", page), "is none"},
		"nothing":        {hang, "does not answer"},
		"another system": {answer(200, "application/json", `{"OSType":"windows","ServerVersion":"1"}`), "engine: windows"},
		"other files": {answer(200, "application/json", `{"OSType":"linux","ServerVersion":"1","DefaultRuntime":"runc","Runtimes":{"runc":{}},"SecurityOptions":["name=seccomp"]}`),
			"mounts denied"}, // its archive of the marked directory is empty
		"no seccomp": {answer(200, "application/json", `{"OSType":"linux","ServerVersion":"1","DefaultRuntime":"runc","Runtimes":{"runc":{}}}`), "seccomp"},
	} {
		t.Run(name, func(t *testing.T) {
			found := pretender(t, map[string]http.HandlerFunc{"/info": test.answer}).Fingerprint(t.Context())
			if found.Works || !strings.Contains(found.Reason, test.says) || found.Hint == "" {
				t.Errorf("%+v", found)
			}
		})
	}
}

// The oldest engine that is supported speaks 1.41.
func TestClientSpeaksToOldEngines(t *testing.T) {
	if client.MinAPIVersion > "1.41" {
		t.Errorf("the client needs API %s; Docker 20.10 has 1.41", client.MinAPIVersion)
	}
}
