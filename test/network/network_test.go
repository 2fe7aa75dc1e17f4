// Package network tries the network `proxy` from inside sandboxes of the shipped
// binary: the tools that people install packages with, and what must not work. It
// names no registry: each tool says by its own configuration where it would go.
package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/captest"
	"sandboxd/internal/follow"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "sandboxd-network-")
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
	binary = filepath.Join(dir, "sandboxd")
	for _, step := range [][2]string{{"internal/driver/process/initbin/init", "./cmd/init"}, {binary, "./cmd/sandboxd"}} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", step[0], step[1])
		cmd.Dir = filepath.Dir(filepath.Dir(wd))
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", step[1], err, out)
		}
	}
	return nil
}

// server is one `sandboxd serve` that may die and come again.
type server struct {
	t    *testing.T
	data string
	addr string
	args []string
	c    *client.Client
	cmd  *exec.Cmd
	log  *bytes.Buffer
	dead chan struct{}
}

func serve(t *testing.T, args ...string) *server {
	t.Helper()
	captest.Root(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, data: t.TempDir(), addr: l.Addr().String(), args: args}
	l.Close()
	s.start()
	t.Cleanup(s.finish)
	return s
}

func (s *server) start() {
	s.t.Helper()
	s.log = &bytes.Buffer{}
	s.cmd = exec.Command(binary, append([]string{"serve", "--data", s.data, "--listen", s.addr, "--driver", "process"}, s.args...)...)
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	dead, cmd := make(chan struct{}), s.cmd
	s.dead = dead
	go func() { cmd.Wait(); close(dead) }()
	s.until("the server answers", func() bool {
		select {
		case <-dead:
			s.t.Fatalf("the server ended at start: %s", s.log)
		default:
		}
		resp, err := http.Get("http://" + s.addr + "/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	key, err := os.ReadFile(filepath.Join(s.data, "token"))
	if err != nil {
		s.t.Fatal(err)
	}
	if s.c, err = client.New("http://"+s.addr, strings.TrimSpace(string(key))); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.dead
	s.c.Close()
}

func (s *server) finish() {
	list, err := s.c.List(context.Background(), "")
	if err != nil {
		s.t.Errorf("list at the end: %v", err)
	}
	for _, sb := range list {
		if err := s.c.Delete(context.Background(), sb.ID); err != nil {
			s.t.Errorf("delete at the end: %v", err)
		}
	}
	s.until("all is deleted", func() bool {
		left, err := os.ReadDir(filepath.Join(s.data, "workspaces"))
		return err == nil && len(left) == 0
	})
	s.kill()
}

func (s *server) until(what string, ok func() bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("did not happen in 30 s: %s", what)
		}
	}
}

// box is one sandbox.
type box struct {
	*testing.T
	s  *server
	id string
}

func (s *server) open(t *testing.T, allow ...string) *box {
	return s.openWith(t, sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: allow})
}

func (s *server) openWith(t *testing.T, n sandboxd.Network) *box {
	t.Helper()
	sb, _, err := s.c.Open(context.Background(), sandboxd.OpenRequest{Network: n, Limits: sandboxd.Limits{MemoryBytes: 2 << 30, TmpBytes: 256 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	return &box{T: t, s: s, id: sb.ID}
}

// result is how a script ended, and when.
type result struct {
	text string // both streams
	code int
	took time.Duration
}

func (b *box) run(script string, env ...string) result {
	b.Helper()
	vars := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	began := time.Now()
	cmd, _, err := b.s.c.StartCommand(ctx, b.id, sandboxd.CommandSpec{Shell: script, Env: vars})
	if err != nil {
		b.Fatal(err)
	}
	var text bytes.Buffer
	ending, err := follow.Output(ctx, b.s.c, follow.Command{Sandbox: b.id, ID: cmd.ID}, func(f sandboxd.Frame) error {
		text.Write(f.Data)
		return nil
	})
	if err != nil {
		b.Fatalf("%s: %v\n%s", script, err, &text)
	}
	r := result{text: text.String(), code: -1, took: time.Since(began)}
	if ending.ExitCode != nil {
		r.code = *ending.ExitCode
	}
	return r
}

// ok runs a script that has to succeed.
func (b *box) ok(script string, env ...string) string {
	b.Helper()
	r := b.run(script, env...)
	if r.code != 0 {
		b.Fatalf("%s: exit code %d\n%s\n%+v", script, r.code, r.text, b.denials())
	}
	return r.text
}

func (b *box) denials() []sandboxd.Denial {
	b.Helper()
	a, err := b.s.c.NetworkActivity(context.Background(), b.id)
	if err != nil {
		b.Fatal(err)
	}
	return a.Denials
}

// refused asserts a denial of a host for a reason, in the log of the server and in
// what the sandbox reads.
func (b *box) refused(host string, reason sandboxd.DenyReason) {
	b.Helper()
	all := b.denials()
	i := slices.IndexFunc(all, func(d sandboxd.Denial) bool { return d.Host == host && d.Reason == reason })
	if i < 0 {
		b.Errorf("%s was not refused for %s: %+v", host, reason, all)
		return
	}
	if inside := b.ok("curl -sS http://127.0.0.1:3128/denials"); !strings.Contains(inside, all[i].Message) {
		b.Errorf("the sandbox reads %q and not %q", inside, all[i].Message)
	}
}

// program asks whether a sandbox has a program.
func (b *box) program(name string) {
	b.Helper()
	captest.Need(b, name, b.run("command -v "+name).code == 0, name+" is not among the machine's programs")
}

// addresses are where names are, as rules; a name that has none is a capability
// that is missing.
func addresses(t *testing.T, names ...string) (rules []string) {
	t.Helper()
	for _, name := range names {
		found, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip", name+".")
		var dns *net.DNSError
		if errors.As(err, &dns) {
			captest.Need(t, "internet", false, err.Error())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range found {
			rules = append(rules, addr.Unmap().String())
		}
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

// operator is the flags by which an operator lets addresses through.
func operator(rules []string) (flags []string) {
	for _, r := range rules {
		flags = append(flags, "--egress-allow-address", r)
	}
	return flags
}

// machineAddress is one of this machine that is not its loopback: programs do not
// ask a proxy for that.
func machineAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return n.IP.String()
		}
	}
	captest.Need(t, "interface", false, "the machine has no address beside its loopback")
	return ""
}
