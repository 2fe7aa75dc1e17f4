// Package server runs the shipped program for the suites of the whole: it builds
// what they need, starts `sandboxd serve`, ends it, and proves afterwards that
// nothing is left, on the machine or in the server. It is for tests only, asserts
// nothing about what the product answers, and knows of the program's insides only
// what a machine's root can see.
package server

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// built is where the programs are, and repository where their sources are.
var built, repository string

// Program is a program that Main built, by the last part of its package's path;
// "sandboxd" is the shipped one.
func Program(name string) string { return filepath.Join(built, name) }

// Repository is the directory of the sources.
func Repository() string { return repository }

// Main runs a suite: it builds the shipped program as `make build` does and, beside
// it, the packages named; runs the tests; and fails when something is left on the
// machine. Its answer is the suite's exit code. The working directory must be that
// of a package two levels below the repository's, as it is in test/<suite>.
func Main(m *testing.M, packages ...string) int {
	dir, err := os.MkdirTemp("", "sandboxd-suite-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := build(dir, packages); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Everything that the suite makes is below here, so that its mounts are known.
	tmp := filepath.Join(dir, "tmp")
	if err := errors.Join(os.Mkdir(tmp, 0o755), os.Chmod(dir, 0o755), os.Chmod(tmp, os.ModeSticky|0o777), os.Setenv("TMPDIR", tmp)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	before := look(dir)
	code := m.Run()
	defer sweep()
	if left := before.left(dir, patience); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: the suite left behind:\n\t%s\n", strings.Join(left, "\n\t"))
		return 1
	}
	return code
}

func build(dir string, packages []string) error {
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	built, repository = dir, filepath.Dir(filepath.Dir(wd))
	// What is up to date is not written again.
	steps := [][2]string{{"internal/driver/initbin/init", "./cmd/init"}, {Program("sandboxd"), "./cmd/sandboxd"}}
	for _, name := range packages {
		steps = append(steps, [2]string{Program(filepath.Base(name)), name})
	}
	for _, step := range steps {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", step[0], step[1])
		cmd.Dir = repository
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", step[1], err, out)
		}
	}
	return nil
}

// Environ is the environment of a program of the product: nothing of the caller's
// but where programs and temporary files are.
func Environ(more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=" + os.TempDir()}, more...)
}

// Record keeps what a process writes. It is safe for concurrent use.
type Record struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *Record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *Record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// Tail is the end of it, for a message.
func (r *Record) Tail() string { return Tail(r.String()) }

// Tail is the end of a long text.
func Tail(s string) string { return s[max(0, len(s)-4000):] }

// Spec says how to run a server. The zero value of a field means its default.
type Spec struct {
	Program string   // default Program("sandboxd")
	Data    string   // the data directory; must be absolute
	Listen  string   // default any free port of 127.0.0.1
	Args    []string // flags of serve beside --data and --listen
	Env     []string // default Environ()
	Log     *Record  // where it logs; default a new one

	User *syscall.Credential // who runs it; default who runs the test
}

// Process is one run of `sandboxd serve`.
type Process struct {
	URL string
	Log *Record

	cmd  *exec.Cmd
	done chan struct{}
}

// Start runs `sandboxd serve` and waits until it says its address. A server that
// says something else has ended when Start returns.
func Start(spec Spec) (*Process, error) {
	if spec.Program == "" {
		spec.Program = Program("sandboxd")
	}
	if spec.Listen == "" {
		spec.Listen = "127.0.0.1:0"
	}
	if spec.Env == nil {
		spec.Env = Environ()
	}
	if spec.Log == nil {
		spec.Log = &Record{}
	}
	remember(spec.Data)
	p := &Process{Log: spec.Log, done: make(chan struct{})}
	p.cmd = exec.Command(spec.Program, append([]string{"serve", "--data", spec.Data, "--listen", spec.Listen}, spec.Args...)...)
	p.cmd.Env = spec.Env
	p.cmd.Stderr = spec.Log
	// Its own process group: a signal to the test's group is not the server's.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: spec.User}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		_ = p.cmd.Wait()
		close(p.done)
	}()
	_, url, ok := strings.Cut(first, "listening on ")
	if err != nil || !ok {
		p.Kill()
		return nil, fmt.Errorf("the server said %q: %s", first, p.Log.Tail())
	}
	p.URL = strings.TrimSpace(url)
	return p, nil
}

// PID is the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive says whether it has not ended.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends it as a crash does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// End sends a signal and waits for the end; a server that does not obey is killed,
// which is an error.
func (p *Process) End(sig os.Signal) error {
	_ = p.cmd.Process.Signal(sig)
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		p.Kill()
		return errors.New("the server does not end: " + p.Log.Tail())
	}
}

// Until waits for a condition and ends the test when it does not come true.
func Until(t testing.TB, what string, limit time.Duration, condition func() bool) {
	t.Helper()
	if !within(limit, condition) {
		t.Fatalf("not in %v: %s", limit, what)
	}
}

// within polls a condition.
func within(limit time.Duration, condition func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return condition()
		}
	}
	return true
}
