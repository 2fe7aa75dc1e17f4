package sessions

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

var update = flag.Bool("update", false, "write the recorded exchanges anew")

// exchange is one request of the published client and its answer, by their shapes: names
// and kinds of values, none of the values.
type exchange struct {
	Request string `json:"request"` // method, template of the path, names of the query
	Body    any    `json:"body,omitempty"`
	Status  int    `json:"status"`
	Answer  any    `json:"answer,omitempty"`
}

// recorder is a proxy that keeps the first exchange of each kind.
type recorder struct {
	next *httputil.ReverseProxy

	mu   sync.Mutex
	seen map[string]exchange
}

var (
	sessionIn = regexp.MustCompile(`^/(sessions|workspaces)/([^/]+)`)
	runIn     = regexp.MustCompile(`/runs/[0-9a-f]{32}/`)
)

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	r.next.ServeHTTP(answer, req)
	path := req.URL.Path
	if path != "/workspaces/trees" {
		path = sessionIn.ReplaceAllString(path, "/$1/{session_id}")
	}
	path = runIn.ReplaceAllString(path, "/runs/{run_id}/")
	var names []string
	for name := range req.URL.Query() {
		names = append(names, name)
	}
	slices.Sort(names)
	e := exchange{Request: strings.TrimSpace(req.Method + " " + path + " " + strings.Join(names, ",")),
		Body: shape(body), Status: answer.Code, Answer: shape(answer.Body.Bytes())}
	key := fmt.Sprint(e.Request, " ", e.Status)
	r.mu.Lock()
	if _, known := r.seen[key]; !known {
		r.seen[key] = e
	}
	r.mu.Unlock()
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// shape is data with the kind of each value in its place; nil for none.
func shape(data []byte) any {
	if len(data) == 0 {
		return nil
	}
	var v any
	if json.Unmarshal(data, &v) != nil {
		return "bytes"
	}
	return kind(v)
}

func kind(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = kind(v[name])
		}
		return v
	case []any:
		if len(v) == 0 {
			return v
		}
		return []any{kind(v[0])}
	case string:
		return "string"
	case float64:
		return "number"
	case bool:
		return "boolean"
	}
	return nil
}

// TestExchanges has the published clients use every route once and compares what they
// said, and what they were answered, with what was recorded.
func TestExchanges(t *testing.T) {
	captest.Root(t)
	m := newMachine(t, server.Environ(), "--driver", "process")
	to := &url.URL{Scheme: "http", Host: m.host}
	token, err := os.ReadFile(filepath.Join(m.spec.Data, "host-token"))
	if err != nil {
		t.Fatal(err)
	}
	recorded := map[string]bool{} // method and template
	for _, generation := range generations {
		r := &recorder{next: httputil.NewSingleHostReverseProxy(to), seen: map[string]exchange{}}
		proxy := httptest.NewServer(r)
		cmd := exec.CommandContext(t.Context(), published(t, generation)+"/bin/python", "-B", "exchange_"+generation+".py")
		cmd.Dir = filepath.Join(server.Repository(), "test", "sessions", "python")
		cmd.Env = server.Environ("SESSIONS_URL="+proxy.URL, "SESSIONS_TOKEN="+strings.TrimSpace(string(token)))
		out, err := cmd.CombinedOutput()
		proxy.Close()
		if err != nil {
			t.Fatalf("%s: %v\n%s", generation, err, out)
		}
		var list []exchange
		for _, e := range r.seen {
			list = append(list, e)
			words := strings.Fields(e.Request)
			recorded[words[0]+" "+words[1]] = true
		}
		slices.SortFunc(list, func(a, b exchange) int {
			return strings.Compare(fmt.Sprint(a.Request, a.Status), fmt.Sprint(b.Request, b.Status))
		})
		text, err := json.MarshalIndent(list, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", generation+".json")
		if *update {
			if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != string(text)+"\n" {
			t.Errorf("%s says something else than was recorded; look at it, then go test ./test/sessions -run Exchanges -update\n%s", generation, text)
		}
	}
	for _, template := range append(m.endpoints(), "/") {
		if others.MatchString(template) {
			continue
		}
		for _, method := range m.methods(template) {
			if !recorded[method+" "+template] {
				t.Errorf("no exchange of %s %s is recorded", method, template)
			}
		}
	}
}

// others are what the listener serves beside the wire, which no client of the wire asks
// for: our own API, and what an operator's tools ask.
var others = regexp.MustCompile(`^/(v1/.*|openapi\.json|readyz|metrics|drain)$`)

// methods are those that a path takes.
func (m *machine) methods(template string) []string {
	m.t.Helper()
	path := strings.NewReplacer("{session_id}", "x", "{run_id}", strings.Repeat("0", 32)).Replace(template)
	req, err := http.NewRequestWithContext(m.t.Context(), "PATCH", "http://"+m.host+path, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") == "" {
		m.t.Errorf("PATCH %s is %d and does not say what is allowed", path, res.StatusCode)
	}
	return strings.Split(res.Header.Get("Allow"), ", ")
}

// endpoints are the templates that the index lists.
func (m *machine) endpoints() []string {
	m.t.Helper()
	res, err := http.Get("http://" + m.host + "/")
	if err != nil {
		m.t.Fatal(err)
	}
	defer res.Body.Close()
	var index struct{ Endpoints []string }
	if err := json.NewDecoder(res.Body).Decode(&index); err != nil || len(index.Endpoints) == 0 {
		m.t.Fatalf("%v, %v", index, err)
	}
	return index.Endpoints
}
