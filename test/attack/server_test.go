// Package attack is the adversary: it drives the shipped program from outside, as
// a hostile caller, and from inside a sandbox, as hostile code, and looks for what
// neither may get. It knows nothing of the program's insides but the layout of the
// data directory that a machine's root can see.
package attack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/captest"
)

// The programs under test and of the tests, built once.
var binary, intruder, prober string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "sandboxd-attack-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if err := build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

func build(dir string) error {
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	repository := filepath.Dir(filepath.Dir(wd))
	binary, intruder, prober = filepath.Join(dir, "sandboxd"), filepath.Join(dir, "intruder"), filepath.Join(dir, "prober")
	for _, step := range [][2]string{
		{"internal/driver/process/initbin/init", "./cmd/init"}, {binary, "./cmd/sandboxd"},
		{intruder, "./test/attack/intruder"}, {prober, "./internal/isolate/prober"},
	} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", step[0], step[1])
		cmd.Dir = repository
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", step[1], err, out)
		}
	}
	return nil
}

// record keeps what a process writes.
type record struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// server is one data directory and the process that serves it now.
type server struct {
	t    testing.TB
	data string
	addr string // of the control listener
	host string // of the host listener
	log  *record
	cmd  *exec.Cmd
	dead chan struct{}
	c    *client.Client
	key  string
}

// serve starts a server that the end of the test ends, with all its sandboxes.
func serve(t testing.TB) *server {
	t.Helper()
	captest.Root(t)
	s := &server{t: t, data: filepath.Join(t.TempDir(), "data"), addr: freeAddress(t), host: freeAddress(t), log: &record{}}
	s.start()
	t.Cleanup(s.finish)
	return s
}

// long marks a test that takes seconds and says little that the others do not.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		captest.Need(t, "patience", false, "not in the short run: make test")
	}
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(binary, "serve", "--data", s.data, "--listen", s.addr, "--host-listen", s.host, "--driver", "process", "--max-sandboxes", "50")
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=" + os.TempDir()}
	s.cmd.Stderr = s.log
	// Its own process group: a signal to the test's group is not the server's.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	lines, dead, cmd := bufio.NewReader(stdout), make(chan struct{}), s.cmd
	s.dead = dead
	first, err := lines.ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait()
		close(dead)
	}()
	if err != nil || !strings.Contains(first, s.addr) {
		_ = cmd.Process.Kill()
		<-dead
		s.t.Fatalf("the server said %q: %s", first, s.log)
	}
	s.key = s.secret("token")
	if s.c, err = client.New("http://"+s.addr, s.key); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) secret(file string) string {
	s.t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.data, file))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// kill ends the server as a crash does.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.dead
	s.c.Close()
}

// alive says whether the server has not ended.
func (s *server) alive() bool {
	select {
	case <-s.dead:
		return false
	default:
		return true
	}
}

func (s *server) finish() {
	if !s.alive() {
		s.t.Errorf("the server did not survive the test: %s", tail(s.log.String()))
		s.start()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	list, err := s.c.List(ctx, "")
	if err != nil {
		s.t.Errorf("list at the end: %v", err)
	}
	for _, sb := range list {
		if err := s.c.Delete(ctx, sb.ID); err != nil {
			s.t.Errorf("delete at the end: %v", err)
		}
	}
	s.emptied()
	s.end()
	if log := s.log.String(); strings.Contains(log, "panic") {
		s.t.Errorf("a panic in the log: %s", tail(log))
	}
	for _, sb := range list {
		if left := groupsOf(sb.ID); len(left) > 0 {
			s.t.Errorf("control groups left behind: %v", left)
		}
	}
}

// emptied waits until what was deleted has left the disk.
func (s *server) emptied() {
	s.t.Helper()
	until(s.t, "what was deleted is gone from the disk", 30*time.Second, func() bool {
		living, err := filepath.Glob(filepath.Join(s.data, "workspaces", "*"))
		trash, err2 := filepath.Glob(filepath.Join(s.data, "trash", "*"))
		return err == nil && err2 == nil && len(living)+len(trash) == 0
	})
}

// end asks the server to leave.
func (s *server) end() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.dead:
		s.c.Close()
	case <-time.After(20 * time.Second):
		s.t.Error("the server does not end")
		s.kill()
	}
}

func tail(s string) string { return s[max(0, len(s)-4000):] }

// groupsOf finds the control groups that are named by a sandbox.
func groupsOf(id string) []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/*/*", "/sys/fs/cgroup/*/*/*", "/sys/fs/cgroup/*/*/*/*"} {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			if strings.Contains(filepath.Base(dir), id) {
				found = append(found, dir)
			}
		}
	}
	return found
}

// rss is the server's memory, in bytes.
func (s *server) rss() int64 {
	s.t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/statm")
	if err != nil {
		s.t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(raw), &size, &resident); err != nil {
		s.t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

func until(t testing.TB, what string, limit time.Duration, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(limit)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in %v: %s", limit, what)
		}
	}
}

// request is one raw exchange. The path is sent as it is.
type request struct {
	method, path string
	header       map[string]string
	body         io.Reader
	token        string // default the API key; "-" sends none
	addr         string // default the control listener
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

var plain = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true},
	Timeout:       30 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// send answers the exchange; an answer that the server broke off has the bytes
// that came.
func (s *server) send(in request) (answer, error) {
	addr, token := s.addr, s.key
	if in.addr != "" {
		addr = in.addr
	}
	if in.token != "" {
		token = in.token
	}
	req, err := http.NewRequest(in.method, "http://"+addr+in.path, in.body)
	if err != nil {
		return answer{}, err
	}
	if token != "-" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for name, value := range in.header {
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	res, err := plain.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		// It has no end; what comes in a moment is looked at.
		defer time.AfterFunc(150*time.Millisecond, func() { res.Body.Close() }).Stop()
		body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		return answer{status: res.StatusCode, header: res.Header, body: body}, nil
	}
	// Bounded, because one attack is a file of a terabyte.
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return answer{}, err
	}
	return answer{status: res.StatusCode, header: res.Header, body: body}, nil
}

func (s *server) must(in request) answer {
	s.t.Helper()
	got, err := s.send(in)
	if err != nil {
		s.t.Fatalf("%s %s: %v", in.method, in.path, err)
	}
	return got
}

// box is one sandbox with the hostile programs in it.
type box struct {
	s     *server
	id    string
	files sandboxd.Files
}

func (s *server) open(req sandboxd.OpenRequest) *box {
	s.t.Helper()
	ctx := context.Background()
	sb, _, err := s.c.Open(ctx, req)
	if err != nil {
		s.t.Fatalf("open: %v\n%s", err, tail(s.log.String()))
	}
	files, err := s.c.Files(ctx, sb.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	b := &box{s: s, id: sb.ID, files: files}
	for name, source := range map[string]string{"intruder": intruder, "prober": prober} {
		b.upload(name, source)
	}
	return b
}

func (b *box) upload(name, source string) {
	b.s.t.Helper()
	f, err := os.Open(source)
	if err != nil {
		b.s.t.Fatal(err)
	}
	defer f.Close()
	if _, err := b.files.Write(context.Background(), name, f, sandboxd.WriteOptions{Executable: true, Size: -1}); err != nil {
		b.s.t.Fatal(err)
	}
}

// outcome is a command that ended.
type outcome struct {
	stdout, stderr string
	ending         sandboxd.Ending
}

// run runs a command to its end.
func (b *box) run(spec sandboxd.CommandSpec) outcome {
	b.s.t.Helper()
	return b.wait(b.begin(spec))
}

func (b *box) shell(text string) outcome {
	b.s.t.Helper()
	return b.run(sandboxd.CommandSpec{Shell: text})
}

// ok runs a command that must succeed and answers its output.
func (b *box) ok(text string) string {
	b.s.t.Helper()
	got := b.shell(text)
	if got.ending.ExitCode == nil || *got.ending.ExitCode != 0 {
		b.s.t.Fatalf("%s: %+v", text, got)
	}
	return got.stdout
}

// begin starts a command in the background.
func (b *box) begin(spec sandboxd.CommandSpec) string {
	b.s.t.Helper()
	cmd, _, err := b.s.c.StartCommand(context.Background(), b.id, spec)
	if err != nil {
		b.s.t.Fatalf("start of %q %q: %v\n%s", spec.Argv, spec.Shell, err, tail(b.s.log.String()))
	}
	return cmd.ID
}

// wait reads a command to its end, which must come.
func (b *box) wait(id string) outcome {
	b.s.t.Helper()
	got, err := b.read(id, "")
	if err != nil {
		b.s.t.Fatalf("command %s: %v\n%s", id, err, tail(b.s.log.String()))
	}
	return got
}

// says waits until a command's output holds a text.
func (b *box) says(id, text string) {
	b.s.t.Helper()
	got, err := b.read(id, text)
	if err != nil || !strings.Contains(got.stdout, text) {
		b.s.t.Fatalf("waiting for %q: %v, %+v", text, err, got)
	}
}

func (b *box) read(id, stopAt string) (got outcome, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stream, err := b.s.c.FollowCommand(ctx, b.id, id, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		return got, err
	}
	defer stream.Close()
	for {
		frame, err := stream.Next(ctx)
		if err != nil {
			return got, err
		}
		if frame.Ending != nil {
			got.ending = *frame.Ending
			return got, nil
		}
		if frame.Stream == sandboxd.StreamStderr {
			got.stderr += string(frame.Data)
		} else {
			got.stdout += string(frame.Data)
		}
		if stopAt != "" && strings.Contains(got.stdout, stopAt) {
			return got, nil
		}
	}
}

// stop ends a command and answers how long that took.
func (b *box) stop(id string) time.Duration {
	b.s.t.Helper()
	began := time.Now()
	if _, err := b.s.c.StopCommand(context.Background(), b.id, id, 0); err != nil {
		b.s.t.Fatalf("stop: %v", err)
	}
	return time.Since(began)
}

// path is a route of the sandbox.
func (b *box) path(rest string) string { return "/v1/sandboxes/" + b.id + rest }
