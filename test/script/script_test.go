// Package script holds the user stories: scripts that drive the shipped binary as
// people and programs do, and know nothing of its insides.
package script

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/test/server"
)

func TestMain(m *testing.M) { os.Exit(server.Main(m)) }

func TestFake(t *testing.T) { scripts(t, testscript.Params{Dir: "testdata/fake"}) }

func TestProcess(t *testing.T) {
	captest.Root(t)
	scripts(t, testscript.Params{Dir: "testdata/process"})
}

// TestDocker asks the engine of the tests; scripts find it by DOCKER_HOST, and the
// base image in IMAGE.
func TestDocker(t *testing.T) {
	t.Setenv("DOCKER_HOST", dockertest.Find(t, "runc").Host)
	scripts(t, testscript.Params{Dir: "testdata/docker"})
}

func TestGVisor(t *testing.T) {
	t.Setenv("DOCKER_HOST", dockertest.Find(t, "runsc").Host)
	scripts(t, testscript.Params{Dir: "testdata/gvisor"})
}

func scripts(t *testing.T, what testscript.Params) {
	testscript.Run(t, testscript.Params{
		Dir: what.Dir, Files: what.Files,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", filepath.Dir(server.Program("sandboxd"))+":"+os.Getenv("PATH"))
			env.Setenv("REPOSITORY", server.Repository())
			env.Setenv("DOCKER_HOST", os.Getenv("DOCKER_HOST"))
			env.Setenv("IMAGE", dockertest.Image)
			env.Setenv("SANDBOXD_DATA", filepath.Join(env.WorkDir, "data"))
			env.Setenv("SANDBOXD_URL", "http://127.0.0.1:1") // until a server starts
			if what.Setup != nil {
				return what.Setup(env)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"server":     startServer,
			"quit":       quitServer,
			"exits":      exits,
			"shape":      shape,
			"setid":      setID,
			"eventually": eventually,
		},
	})
}

// start runs a server that ends its sandboxes when it is interrupted.
func start(data string, args ...string) (*server.Process, error) {
	spec := server.Spec{Data: data, Args: append([]string{"--stop-on-interrupt"}, args...), Env: environ(data, "")}
	if home := homeOf(data); home != "" {
		spec.User, spec.Program = ordinary(), filepath.Join(home, "sandboxd")
	}
	return server.Start(spec)
}

// running holds the server of each script; scripts run in parallel.
var running sync.Map

func setRunning(ts *testscript.TestScript, s *server.Process) { running.Store(ts, s) }

func getRunning(ts *testscript.TestScript) *server.Process {
	s, _ := running.Load(ts)
	found, _ := s.(*server.Process)
	return found
}

// startServer is `server [flag...]`; --driver fake unless the flags say otherwise.
func startServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("use ! exec sandboxd serve")
	}
	if !strings.Contains(strings.Join(args, " "), "--driver") {
		args = append([]string{"--driver", "fake"}, args...)
	}
	s, err := start(ts.Getenv("SANDBOXD_DATA"), args...)
	ts.Check(err)
	setRunning(ts, s)
	ts.Setenv("SANDBOXD_URL", s.URL)
	ts.Defer(func() {
		if s := getRunning(ts); s != nil {
			setRunning(ts, nil)
			if err := s.End(syscall.SIGINT); err != nil {
				ts.Logf("%v", err)
			}
			if ts.Getenv("SHOW_LOG") != "" {
				ts.Logf("server log:\n%s", s.Log)
			}
		}
	})
}

// quitServer is `quit TERM|INT|KILL`.
func quitServer(ts *testscript.TestScript, neg bool, args []string) {
	sig, ok := map[string]os.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL}[strings.Join(args, " ")]
	s := getRunning(ts)
	if neg || !ok || s == nil {
		ts.Fatalf("usage: quit TERM|INT|KILL, with a server running")
	}
	setRunning(ts, nil)
	ts.Check(s.End(sig))
}

// exits is `exits CODE program [arg...]`: the program must end with that code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE program [arg...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		got = ended.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// setID is `setid NAME`: the last stdout becomes a variable.
func setID(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: setid NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// eventually is `eventually TEXT program [arg...]`: its stdout holds the text
// within 10 seconds.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: eventually TEXT program [arg...]")
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for {
		_ = ts.Exec(args[1], args[2:]...)
		if strings.Contains(ts.ReadFile("stdout"), args[0]) != neg {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("%q was not reached in 10 s; the last is %s", args[0], ts.ReadFile("stdout"))
		}
	}
}

// shape is `shape GOLDEN`: the last stdout is JSON with the keys and kinds of the
// golden file, whatever the values. Of arrays the first element counts.
func shape(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: shape GOLDEN")
	}
	var v any
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &v); err != nil {
		ts.Fatalf("stdout is no JSON: %v", err)
	}
	got, err := json.MarshalIndent(kinds(v), "", "  ")
	ts.Check(err)
	want := strings.TrimSpace(ts.ReadFile(args[0]))
	if string(got) != want {
		ts.Fatalf("shape:\n%s\nwant:\n%s", got, want)
	}
}

func kinds(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = kinds(e)
		}
		return out
	case []any:
		if len(v) == 0 {
			return v
		}
		return []any{kinds(v[0])}
	case string:
		return "text"
	case float64:
		return 0
	case bool:
		return true
	}
	return nil
}

// environ is the environment of a program outside of scripts.
func environ(data, url string) []string {
	env := server.Environ("TERM=xterm", "SANDBOXD_DATA="+data)
	if engine := os.Getenv("DOCKER_HOST"); engine != "" {
		env = append(env, "DOCKER_HOST="+engine)
	}
	if url != "" {
		env = append(env, "SANDBOXD_URL="+url)
	}
	return env
}
