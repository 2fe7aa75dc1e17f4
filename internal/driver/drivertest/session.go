package drivertest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
)

// Patience bounds every wait of the suite.
const Patience = 20 * time.Second

// Session is a link to an environment for tests: it starts commands, keeps what
// they write and waits for them.
type Session struct {
	Link *guest.Link
	t    testing.TB
	d    sandboxd.Driver
	id   string

	mu      sync.Mutex
	results map[string]*Result
}

// Result is what a command wrote and how it ended.
type Result struct {
	Stdout, Stderr string
	Exit           wire.Exit
	ended          chan struct{}
}

// Attach connects to an environment and makes a link, closed with the test.
func Attach(t testing.TB, d sandboxd.Driver, id string) *Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conn, err := d.Connect(ctx, id)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	s := &Session{t: t, d: d, id: id, results: map[string]*Result{}}
	if s.Link, err = guest.Attach(ctx, conn, guest.Options{Handler: s}); err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(func() { s.Link.Close() })
	return s
}

// of answers the result of a command, made when it is first spoken of.
func (s *Session) of(command string) *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.results[command]
	if r == nil {
		r = &Result{ended: make(chan struct{})}
		s.results[command] = r
	}
	return r
}

// Output is guest.Handler's.
func (s *Session) Output(command string, stream sandboxd.Stream, _ int64, data []byte) error {
	r := s.of(command)
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream == sandboxd.StreamStderr {
		r.Stderr += string(data)
	} else {
		r.Stdout += string(data)
	}
	return nil
}

// Written is what a command wrote to stdout so far.
func (s *Session) Written(command string) string {
	r := s.of(command)
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.Stdout
}

// Ended is guest.Handler's.
func (s *Session) Ended(command string, _ int64, exit wire.Exit) {
	r := s.of(command)
	r.Exit = exit
	close(r.ended)
}

// Environment is what commands of the suite get.
func Environment() []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + sandboxd.HomeDir, "LANG=C.UTF-8"}
}

// Spec completes a start message with what a test does not care about.
func Spec(start wire.Start) wire.Start {
	if start.ID == "" {
		start.ID = sandboxd.NewID()
	}
	if start.Env == nil {
		start.Env = Environment()
	}
	if start.Cwd == "" {
		start.Cwd = sandboxd.WorkDir
	}
	if start.Wait == "" {
		start.Wait = string(sandboxd.WaitLeader)
	}
	return start
}

// Start starts a command, in a group of its own where the driver has groups. The
// group goes when the test has waited for the command.
func (s *Session) Start(start wire.Start) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	start = Spec(start)
	var files []*os.File
	if g, ok := s.d.(sandboxd.CommandGroups); ok {
		var err error
		if files, err = g.CreateGroup(ctx, s.id, start.ID, sandboxd.CommandLimits{}); err != nil {
			return "", err
		}
		defer func() {
			for _, f := range files {
				f.Close()
			}
		}()
		start.Groups = len(files)
	}
	return start.ID, s.Link.Start(ctx, start, files)
}

// Wait waits for a command's end and removes what it left.
func (s *Session) Wait(command string) *Result {
	s.t.Helper()
	r := s.Ending(command)
	if g, ok := s.d.(sandboxd.CommandGroups); ok {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := g.KillGroup(ctx, s.id, command); err != nil {
			s.t.Fatalf("kill what command %s left: %v", command, err)
		}
		if err := g.RemoveGroup(ctx, s.id, command); err != nil {
			s.t.Fatalf("remove the group of command %s: %v", command, err)
		}
	}
	return r
}

// Ending waits for a command's end. Its group is the caller's to remove.
func (s *Session) Ending(command string) *Result {
	s.t.Helper()
	r := s.of(command)
	select {
	case <-r.ended:
	case <-s.Link.Done():
		s.t.Fatalf("the link ended under command %s: %v", command, s.Link.Err())
	case <-time.After(Patience):
		s.t.Fatalf("command %s does not end", command)
	}
	s.Link.Forget(command)
	return r
}

// Run starts a command and waits for its end.
func (s *Session) Run(argv ...string) *Result {
	s.t.Helper()
	id, err := s.Start(wire.Start{Argv: argv})
	if err != nil {
		s.t.Fatalf("start %q: %v", argv, err)
	}
	return s.Wait(id)
}
