package server

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/client"
	"sandboxd/internal/captest"
)

// Options say what an Instance runs. The zero value of a field means its default.
type Options struct {
	Program string
	Driver  string   // process by default
	Args    []string // flags of serve beside those of the data directory, the address and the driver
	Env     []string
	Host    bool // with the host listener
	Ready   int  // environments that are kept ready; with some, an id does not name its sandbox's control groups
}

// spec is how to run it.
func (o Options) spec(data, listen, host string) Spec {
	args := append([]string{"--driver", cmp.Or(o.Driver, "process"), "--ready", strconv.Itoa(o.Ready)}, o.Args...)
	if host != "" {
		args = append(args, "--host-listen", host)
	}
	return Spec{Program: o.Program, Data: data, Listen: listen, Args: args, Env: o.Env}
}

// hostAddress is a free one, or "" when the host listener is not wanted.
func (o Options) hostAddress() (string, error) {
	if !o.Host {
		return "", nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Instance is one data directory and the process that serves it now. It is for one test; Start and Kill are not for concurrent use.
type Instance struct {
	*Process
	Data string
	Addr string // of the control listener; the same in every run
	Host string // of the host listener, if there is one
	Key  string // the API key
	C    *client.Client
	Log  *Record // of every run
	Env  []string

	t       testing.TB
	options Options
	level   map[string]int // open files by kind, when nothing had been asked for
}

// New makes a data directory that nobody serves yet. The end of the test deletes
// every sandbox and proves that the server gave back what it took for them.
func New(t testing.TB, o Options) *Instance {
	t.Helper()
	captest.Root(t)
	s := &Instance{t: t, Data: filepath.Join(t.TempDir(), "data"), Log: &Record{}, Env: o.Env, options: o}
	var err error
	if s.Host, err = o.hostAddress(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.finish)
	return s
}

// Start runs the server until it answers.
func (s *Instance) Start() {
	s.t.Helper()
	spec := s.options.spec(s.Data, s.Addr, s.Host)
	spec.Env, spec.Log = s.Env, s.Log
	p, err := Start(spec)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Process = p
	s.Addr = strings.TrimPrefix(p.URL, "http://")
	s.Key = s.Secret("token")
	s.C = s.Client()
	// The first answer has opened what every answer needs.
	if _, err := s.C.List(context.Background(), ""); err != nil {
		s.t.Fatalf("the first list: %v", err)
	}
	if s.level == nil {
		s.level = openFiles(p.PID())
	}
}

// Client is one more client, with connections of its own.
func (s *Instance) Client() *client.Client {
	s.t.Helper()
	c, err := client.New(s.URL, s.Secret("token"))
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// Secret reads one of the secrets in the data directory.
func (s *Instance) Secret(file string) string {
	s.t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.Data, file))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// Kill ends the server as a crash does.
func (s *Instance) Kill() {
	s.Process.Kill()
	s.C.Close()
}

// End asks the server to leave.
func (s *Instance) End() {
	s.t.Helper()
	if err := s.Process.End(syscall.SIGTERM); err != nil {
		s.t.Error(err)
	}
	s.C.Close()
}

// RSS is the server's memory, in bytes.
func (s *Instance) RSS() int64 {
	s.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.PID()))
	if err != nil {
		s.t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(raw), &size, &resident); err != nil {
		s.t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// Until is server.Until with the end of the log.
func (s *Instance) Until(what string, limit time.Duration, condition func() bool) {
	s.t.Helper()
	if !within(limit, condition) {
		s.t.Fatalf("not in %v: %s\n%s", limit, what, s.Log.Tail())
	}
}

// Emptied waits until what was deleted has left the disk.
func (s *Instance) Emptied() {
	s.t.Helper()
	s.Until("what was deleted is gone from the disk", 30*time.Second, func() bool {
		living, err := filepath.Glob(filepath.Join(s.Data, "workspaces", "*"))
		trash, err2 := filepath.Glob(filepath.Join(s.Data, "trash", "*"))
		return err == nil && err2 == nil && len(living)+len(trash) == 0
	})
}

// DeleteAll deletes every sandbox.
func (s *Instance) DeleteAll() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	list, err := s.C.List(ctx, "")
	if err != nil {
		s.t.Errorf("list of what is to be deleted: %v", err)
	}
	for _, sb := range list {
		if err := s.C.Delete(ctx, sb.ID); err != nil {
			s.t.Errorf("delete: %v", err)
		}
	}
}

// finish ends what the test left, through a healthy server, and looks whether
// anything is held for what is no longer there.
func (s *Instance) finish() {
	if s.Process == nil {
		return
	}
	if s.Alive() && s.options.Ready > 0 {
		s.End() // and what it kept ready with it
	}
	if !s.Alive() {
		s.Env, s.options.Ready = s.options.Env, 0
		s.Start()
	}
	s.DeleteAll()
	s.Emptied()
	s.C.Close()
	s.gaveBack()
	if log := s.Log.String(); strings.Contains(log, "panic:") || strings.Contains(log, "panic ") {
		s.t.Errorf("a panic in the log: %s", s.Log.Tail())
	}
	s.goroutinesEnded()
	if left := Groups(s.Data); len(left) > 0 {
		s.t.Errorf("control groups left behind: %v", left)
	}
}
