// Package sessions has the published Python client of the sessions wire work with the
// shipped program: the last release of each generation of the wire, as it is in the
// package index. What it asserts is in python/; here is what it needs.
package sessions

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/test/server"
)

func TestMain(m *testing.M) { os.Exit(server.Main(m)) }

// machine is a server that tests of another language end and start again.
type machine struct {
	t    *testing.T
	spec server.Spec
	host string

	mu sync.Mutex
	p  *server.Process
}

func newMachine(t *testing.T, env []string, args ...string) *machine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, host: l.Addr().String(), spec: server.Spec{Data: filepath.Join(t.TempDir(), "data"), Env: env, Log: &server.Record{},
		Args: append([]string{"--host-listen", l.Addr().String(), "--ready", "0"}, args...)}}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.empty()
		if err := m.p.End(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		for _, line := range panics.FindAllString(m.spec.Log.String(), -1) {
			t.Errorf("a panic: %s", line)
		}
	})
	return m
}

// panics are lines that tell of one; the letters alone may be part of an id.
var panics = regexp.MustCompile(`(?m)^.*(panic:|panicked).*$`)

// empty deletes what tests left and waits until it is gone from the disk: a server that
// leaves keeps what it has.
func (m *machine) empty() {
	key, err := os.ReadFile(filepath.Join(m.spec.Data, "token"))
	if err != nil {
		m.t.Error(err)
		return
	}
	c, err := client.New(m.p.URL, strings.TrimSpace(string(key)))
	if err != nil {
		m.t.Error(err)
		return
	}
	defer c.Close()
	list, err := c.List(context.Background(), "")
	if err != nil {
		m.t.Error(err)
	}
	for _, sb := range list {
		if err := c.Delete(context.Background(), sb.ID); err != nil {
			m.t.Error(err)
		}
	}
	server.Until(m.t, "what was deleted is gone from the disk", 60*time.Second, func() bool {
		left, err := filepath.Glob(filepath.Join(m.spec.Data, "trash", "*"))
		return err == nil && len(left) == 0
	})
}

func (m *machine) start() (err error) {
	m.p, err = server.Start(m.spec)
	return err
}

// ServeHTTP ends the server as the path says and starts it again.
func (m *machine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	switch r.URL.Path {
	case "/term":
		err = m.p.End(syscall.SIGTERM)
	case "/kill":
		m.p.Kill()
	default:
		err = errors.New("no such end")
	}
	if err == nil {
		err = m.start()
	}
	if err != nil {
		m.t.Errorf("%s: %v", r.URL.Path, err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// published is an environment of Python with what a lock file names, made once.
func published(t *testing.T, generation string) string {
	t.Helper()
	environments.mu.Lock()
	defer environments.mu.Unlock()
	if testing.Short() {
		captest.Need(t, "patience", false, "it asks the package index, and takes minutes: make test")
	}
	if environments.made[generation] == "" {
		dir := filepath.Join(environments.dir(t), generation)
		lock := filepath.Join(server.Repository(), "test", "sessions", "python", generation+".lock")
		for _, argv := range [][]string{
			{"python3", "-m", "venv", dir},
			{dir + "/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "-r", lock},
		} {
			out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
			captest.Need(t, "python-client", err == nil, strings.Join(argv, " ")+": "+server.Tail(string(out)))
		}
		environments.made[generation] = dir
	}
	return environments.made[generation]
}

var environments = struct {
	mu   sync.Mutex
	root string
	made map[string]string
	dir  func(*testing.T) string
}{made: map[string]string{}}

func init() {
	environments.dir = func(t *testing.T) string {
		if environments.root == "" {
			dir, err := os.MkdirTemp("", "published-")
			if err != nil {
				t.Fatal(err)
			}
			environments.root = dir
		}
		return environments.root
	}
}

// versionOf is what is installed of the client, and where its suite is from, if it has one.
const versionOf = `import importlib.metadata as m, importlib.util as u
names = {d.name for d in m.distributions()}
print(m.version('pydantic-ai-backend'), *(n + ' ' + m.version(n) for n in ('pydantic-ai-slim', 'httpx') if n in names), sep=', ')
if 'pydantic-ai-slim' in names and u.find_spec('pydantic_ai.workspaces.conformance'):
    print('its suite (C4): module pydantic_ai.workspaces.conformance of pydantic-ai-slim', m.version('pydantic-ai-slim'))
else:
    print('no suite of its own (C4) is in what it installs')`

// matrix runs the tests of one generation against a machine.
func matrix(t *testing.T, generation, driver string, m *machine) {
	t.Helper()
	version, report := tests(t, generation, "test_"+generation+".py", m)
	conclude(t, driver, version, report, false)
}

// tests runs a file of tests with the client of a generation, and answers which that is.
func tests(t *testing.T, generation, file string, m *machine, env ...string) (version, report string) {
	t.Helper()
	python := published(t, generation) + "/bin/python"
	control := httptest.NewServer(m)
	defer control.Close()
	token, err := os.ReadFile(filepath.Join(m.spec.Data, "host-token"))
	if err != nil {
		t.Fatal(err)
	}
	about, err := exec.CommandContext(t.Context(), python, "-c", versionOf).Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: pydantic-ai-backend %s", generation, strings.TrimSpace(string(about)))
	version, _, _ = strings.Cut(string(about), ",")
	cmd := exec.CommandContext(t.Context(), python, "-B", "-m", "pytest", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider", file)
	cmd.Dir = filepath.Join(server.Repository(), "test", "sessions", "python")
	cmd.Env = server.Environ("SESSIONS_URL=http://"+m.host, "SESSIONS_TOKEN="+strings.TrimSpace(string(token)), "SESSIONS_CONTROL="+control.URL)
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		if text := lines.Text(); strings.Contains(text, " passed") || strings.HasPrefix(text, "p99 ") || strings.HasPrefix(text, "SKIPPED") {
			t.Log(text)
		}
	}
	if err != nil {
		t.Errorf("%v\n%s\nthe server's log ends:\n%s", err, out, m.spec.Log.Tail())
	}
	return version, string(out)
}

var generations = []string{"generation1", "generation2"}

// twoRuntimes writes a catalogue of two runtimes that are there: the root of the first
// takes writes where the driver has such roots, that of the second never does.
func twoRuntimes(t *testing.T) string {
	t.Helper()
	return catalogue(t, []entry{
		{"alias": "first", "description": "The default", "image": dockertest.Image, "needs_network": false},
		{"alias": "second", "description": "Another", "image": dockertest.Image, "needs_network": false, "root": "readonly"},
	})
}

type entry map[string]any

func catalogue(t *testing.T, entries []entry) (file string) {
	t.Helper()
	text, err := json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "catalogue.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// All rows of a client share a host, which they restart.
func TestProcess(t *testing.T) {
	captest.Root(t)
	for _, generation := range generations {
		t.Run(generation, func(t *testing.T) {
			matrix(t, generation, "process", newMachine(t, server.Environ(), "--driver", "process", "--catalogue", twoRuntimes(t)))
		})
	}
}

func TestDocker(t *testing.T) {
	e := dockertest.Find(t, "runc")
	for _, generation := range generations {
		t.Run(generation, func(t *testing.T) {
			matrix(t, generation, "docker", newMachine(t, server.Environ("DOCKER_HOST="+e.Host), "--driver", "docker", "--catalogue", twoRuntimes(t)))
		})
	}
}

// An image that has to be built first holds up nobody but who waits for it, and a
// restart of the host in the middle costs its clients an error. Both clients wait at once.
func TestDockerBuild(t *testing.T) {
	e := dockertest.Find(t, "runc")
	for _, generation := range generations {
		t.Run(generation, func(t *testing.T) {
			t.Parallel()
			build(t, generation, e)
		})
	}
}

func build(t *testing.T, generation string, e dockertest.Engine) {
	run := sandboxd.NewID()[:8]
	slow := "slow-" + run
	t.Cleanup(func() { e.RemoveRuntimes(t, run) })
	args := []string{"--driver", "docker", "--no-prewarm", "--catalogue", catalogue(t, []entry{
		{"alias": "quick-" + run, "description": "There", "image": dockertest.Image, "needs_network": false},
		{"alias": slow, "description": "Slow", "base_image": e.Workshop(t), "setup_commands": []string{"echo " + slow + "; sleep 5"}, "needs_network": false},
	})}
	if trusted := os.Getenv("SSL_CERT_FILE"); trusted != "" {
		args = append(args, "--ca-bundle", trusted)
	}
	m := newMachine(t, server.Environ("DOCKER_HOST="+e.Host), args...)
	version, report := tests(t, generation, "test_build_"+generation+".py", m, "SESSIONS_QUICK=quick-"+run, "SESSIONS_SLOW="+slow)
	conclude(t, "docker", version, report, true)
	logs, err := filepath.Glob(filepath.Join(m.spec.Data, "runtimes", "*.log"))
	if err != nil || len(logs) != 1 {
		t.Errorf("the one runtime was built by %q, %v", logs, err)
	}
}
