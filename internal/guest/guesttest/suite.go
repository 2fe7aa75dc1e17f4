// Package guesttest is the suite of the guest protocol. It runs over any
// connection to a fresh init: an in-memory pipe, a socket, what a driver connects.
//
// It is not a test of isolation, nor of what programs the sandbox has: a System
// says how a few things are run there.
package guesttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
)

// System is a fresh sandbox.
type System struct {
	// Connect opens another connection to the one init; the newest is in force.
	Connect func() (io.ReadWriteCloser, error)
	// Argv maps a program of the suite to what runs it there; nil leaves it as it
	// is. Programs: echo TEXT, stderr TEXT, cat, sleep SECONDS, exit CODE, flood
	// BYTES, which writes any bytes to stdout, and listen (see builtin.Loopback).
	Argv func(program string, args ...string) []string
	// Cwd and Env of every command.
	Cwd string
	Env []string
	// Nonce is the secret of the init.
	Nonce string
	// Service opens a service from inside; nil skips that case.
	Service func(ctx context.Context, name string) (io.ReadWriteCloser, error)
	// Inside opens a connection from inside to a port of the sandbox's loopback; nil
	// skips that case.
	Inside func(port uint16) (net.Conn, error)
}

// Timeout bounds every wait of the suite.
const Timeout = 20 * time.Second

// Run runs the suite; open makes a fresh sandbox and cleans it up with t.
func Run(t *testing.T, open func(t *testing.T) System) {
	cases := []struct {
		name string
		run  func(t *testing.T, s *session)
	}{
		{"Exec", testExec}, {"SplitStreams", testSplitStreams}, {"StdinEcho", testStdinEcho},
		{"ExitCodes", testExitCodes}, {"Signal", testSignal}, {"NotFound", testNotFound}, {"Conflict", testConflict},
		{"StalledHandler", testStalledHandler}, {"StalledStdin", testStalledStdin}, {"UnacknowledgedBound", testBound},
		{"Reattach", testReattach}, {"EndedRepeats", testEndedRepeats}, {"HalfFrame", testHalfFrame},
		{"Version", testVersion}, {"Secret", testSecret}, {"Service", testService}, {"Listen", testListen}, {"Dial", testDial}, {"DialIPv6", testDialIPv6}, {"DialClosed", testDialClosed}, {"DialReset", testDialReset}, {"DialStalled", testDialStalled},
		{"DialGivenUp", testDialGivenUp}, {"Ports", testPorts}, {"Ping", testPing},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := &session{t: t, System: open(t), sink: NewSink()}
			ctx, cancel := context.WithTimeout(context.Background(), Timeout)
			s.ctx = ctx
			t.Cleanup(cancel)
			c.run(t, s)
		})
	}
}

// session is one case's view of a sandbox.
type session struct {
	System
	t    *testing.T
	ctx  context.Context
	sink *Sink
}

func (s *session) conn() io.ReadWriteCloser {
	s.t.Helper()
	conn, err := s.Connect()
	if err != nil {
		s.t.Fatalf("connect: %v", err)
	}
	return conn
}

func (s *session) options() guest.Options {
	return guest.Options{Nonce: s.Nonce, Handler: s.sink, Have: s.sink.Have}
}

func (s *session) attach() *guest.Link { return s.attachWith(s.options()) }

func (s *session) attachWith(opts guest.Options) *guest.Link {
	s.t.Helper()
	l, err := guest.Attach(s.ctx, s.conn(), opts)
	if err != nil {
		s.t.Fatalf("attach: %v", err)
	}
	s.t.Cleanup(func() { l.Close() })
	return l
}

func (s *session) spec(id, program string, args ...string) wire.Start {
	argv := append([]string{program}, args...)
	if s.Argv != nil {
		argv = s.Argv(program, args...)
	}
	return wire.Start{ID: id, Argv: argv, Cwd: s.Cwd, Env: s.Env, Wait: "leader", Stdin: program == "cat"}
}

func (s *session) start(l *guest.Link, id, program string, args ...string) {
	s.t.Helper()
	if err := l.Start(s.ctx, s.spec(id, program, args...), nil); err != nil {
		s.t.Fatalf("start %s %v: %v", program, args, err)
	}
}

func (s *session) ended(id string) wire.Exit {
	s.t.Helper()
	exit, err := s.sink.Wait(s.ctx, id)
	if err != nil {
		s.t.Fatalf("command %s: %v", id, err)
	}
	return exit
}

func testExec(t *testing.T, s *session) {
	l := s.attach()
	s.start(l, "c1", "echo", "hello")
	if exit := s.ended("c1"); exit.Code != 0 || exit.Signal != 0 {
		t.Fatalf("exit %+v", exit)
	}
	if got := s.sink.Text("c1", sandboxd.StreamStdout); got != "hello\n" {
		t.Fatalf("output %q", got)
	}
}

func testSplitStreams(t *testing.T, s *session) {
	l := s.attach()
	s.start(l, "o", "echo", "out")
	s.start(l, "e", "stderr", "err")
	s.ended("o")
	s.ended("e")
	if got := s.sink.Text("o", sandboxd.StreamStderr) + "|" + s.sink.Text("e", sandboxd.StreamStdout); got != "|" {
		t.Fatalf("on the wrong stream: %q", got)
	}
	if got := s.sink.Text("e", sandboxd.StreamStderr); got != "err\n" {
		t.Fatalf("stderr %q", got)
	}
}

func testStdinEcho(t *testing.T, s *session) {
	const size = 10 << 20
	l := s.attach()
	s.start(l, "c", "cat")
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i>>8) ^ byte(i)
	}
	for at := 0; at < size; at += 1 << 20 {
		if err := l.Stdin(s.ctx, "c", data[at:at+1<<20], at+1<<20 == size); err != nil {
			t.Fatalf("stdin at %d: %v", at, err)
		}
	}
	if exit := s.ended("c"); exit.Code != 0 {
		t.Fatalf("exit %+v", exit)
	}
	if !bytes.Equal(s.sink.Bytes("c"), data) {
		t.Fatal("the echo differs from the input")
	}
	if err := l.Stdin(s.ctx, "c", []byte("x"), false); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Fatalf("stdin after the end: %v", err)
	}
}

func testExitCodes(t *testing.T, s *session) {
	l := s.attach()
	for _, code := range []int{0, 1, 7, 255} {
		id := "x" + strconv.Itoa(code)
		s.start(l, id, "exit", strconv.Itoa(code))
		if exit := s.ended(id); exit.Code != code || exit.Signal != 0 {
			t.Fatalf("exit %d gave %+v", code, exit)
		}
	}
}

func testSignal(t *testing.T, s *session) {
	l := s.attach()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
		id := fmt.Sprintf("s%d", sig)
		s.start(l, id, "sleep", "1000")
		if err := l.Signal(s.ctx, id, int(sig)); err != nil {
			t.Fatal(err)
		}
		if exit := s.ended(id); exit.Signal != int(sig) {
			t.Fatalf("%v gave %+v", sig, exit)
		}
	}
	if err := l.Signal(s.ctx, "none", 15); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Fatalf("signal to an unknown command: %v", err)
	}
}

func testNotFound(t *testing.T, s *session) {
	l := s.attach()
	start := s.spec("c", "echo")
	start.Argv = []string{"no-such-program-anywhere"}
	err := l.Start(s.ctx, start, nil)
	var failed *guest.StartError
	if !errors.As(err, &failed) || failed.Exit.Code != 127 || failed.Exit.Error == "" {
		t.Fatalf("start: %v", err)
	}
	s.start(l, "c", "echo", "again") // the id is free
	s.ended("c")
}

func testConflict(t *testing.T, s *session) {
	l := s.attach()
	s.start(l, "c", "sleep", "1000")
	if err := l.Start(s.ctx, s.spec("c", "echo"), nil); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Fatalf("second start: %v", err)
	}
	if err := l.Signal(s.ctx, "c", 9); err != nil {
		t.Fatal(err)
	}
	s.ended("c")
}

func testStalledHandler(t *testing.T, s *session) {
	l := s.attach()
	release := s.sink.Stall("slow")
	s.start(l, "slow", "flood", strconv.Itoa(1<<20))
	const size = 4 << 20
	s.start(l, "fast", "flood", strconv.Itoa(size))
	s.ended("fast")
	if got := len(s.sink.Bytes("fast")); got != size {
		t.Fatalf("%d bytes of %d", got, size)
	}
	release()
	s.ended("slow")
	if got := len(s.sink.Bytes("slow")); got != 1<<20 {
		t.Fatalf("%d bytes of the stalled command", got)
	}
}

func testStalledStdin(t *testing.T, s *session) {
	l := s.attach()
	sleeper := s.spec("deaf", "sleep", "1000")
	sleeper.Stdin = true
	if err := l.Start(s.ctx, sleeper, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	stalled := make(chan error, 1)
	go func() { stalled <- l.Stdin(ctx, "deaf", make([]byte, 1<<20), false) }()
	s.start(l, "c", "cat")
	if err := l.Stdin(s.ctx, "c", []byte("through"), true); err != nil {
		t.Fatal(err)
	}
	s.ended("c")
	cancel()
	if err := <-stalled; sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Fatalf("input that nobody reads: %v", err)
	}
}

// testBound shows that an init holds what is not acknowledged and no more: while
// the handler stalls, at most the window was received.
func testBound(t *testing.T, s *session) {
	l := s.attach()
	release := s.sink.Stall("c")
	s.start(l, "c", "flood", strconv.Itoa(2<<20))
	if err := s.sink.Entered(s.ctx, "c"); err != nil {
		t.Fatal(err)
	}
	l.Close()
	release()
	<-l.Done()
	l = s.attach()
	state := l.Commands()[0]
	if state.Next <= 0 || state.Next > wire.CommandWindow || state.Ended {
		t.Fatalf("nothing was acknowledged, the init has %d bytes, ended %v", state.Next, state.Ended)
	}
	s.ended("c")
	if got := len(s.sink.Bytes("c")); got != 2<<20 {
		t.Fatalf("%d bytes", got)
	}
}

func testReattach(t *testing.T, s *session) {
	const size = 3 << 20
	l := s.attach()
	s.start(l, "c", "flood", strconv.Itoa(size))
	for i := range 8 {
		if err := s.sink.Reach(s.ctx, "c", int64(i)*size/16); err != nil {
			t.Fatal(err)
		}
		l.Close()
		<-l.Done()
		l = s.attach()
	}
	s.ended("c")
	if err := s.sink.Err(); err != nil {
		t.Fatal(err)
	}
	if got := len(s.sink.Bytes("c")); got != size {
		t.Fatalf("%d bytes of %d", got, size)
	}
}

func testEndedRepeats(t *testing.T, s *session) {
	l := s.attach()
	s.start(l, "c", "exit", "3")
	s.ended("c")
	l.Close()
	<-l.Done()
	s.sink.Again("c")
	l = s.attach()
	if exit := s.ended("c"); exit.Code != 3 {
		t.Fatalf("repeated ending %+v", exit)
	}
	l.Forget("c")
	if err := l.Ping(s.ctx); err != nil {
		t.Fatal(err)
	}
	l.Close()
	<-l.Done()
	if left := s.attach().Commands(); len(left) != 0 {
		t.Fatalf("forgotten and still there: %v", left)
	}
}

func testHalfFrame(t *testing.T, s *session) {
	conn := s.conn()
	whole, err := wire.Append(nil, wire.Frame{Nonce: 7, Type: wire.TypeStdin, Number: 1, Payload: make([]byte, 50000)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(whole[:len(whole)/2]); err != nil {
		t.Fatal(err)
	}
	opts := s.options()
	opts.Flush = true
	l, err := guest.Attach(s.ctx, conn, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.start(l, "c", "echo", "whole")
	s.ended("c")
}

func testVersion(t *testing.T, s *session) {
	opts := s.options()
	opts.MinVersion, opts.MaxVersion = 90, 91
	if _, err := guest.Attach(s.ctx, s.conn(), opts); sandboxd.ClassOf(err) != sandboxd.ClassUnsupported {
		t.Fatalf("attach with an unknown version: %v", err)
	}
	opts.MinVersion = wire.MinVersion
	l := s.attachWith(opts) // the common one is used
	s.start(l, "c", "echo", "x")
	s.ended("c")
}

func testSecret(t *testing.T, s *session) {
	opts := s.options()
	opts.Nonce += "wrong"
	if _, err := guest.Attach(s.ctx, s.conn(), opts); sandboxd.ClassOf(err) != sandboxd.ClassForbidden {
		t.Fatalf("attach with a wrong secret: %v", err)
	}
	s.attach()
}

func testService(t *testing.T, s *session) {
	captest.Need(t, "guest-services", s.Service != nil, "this system opens no services")
	opts := s.options()
	opts.Services = map[string]func(guest.Stream){"upper": func(rw guest.Stream) {
		b, err := io.ReadAll(rw)
		if err == nil {
			_, err = rw.Write(bytes.ToUpper(b))
		}
		if err != nil {
			t.Errorf("service: %v", err)
		}
	}}
	s.attachWith(opts)
	rw, err := s.Service(s.ctx, "upper")
	if err != nil {
		t.Fatal(err)
	}
	defer rw.Close()
	in := bytes.Repeat([]byte("abc"), 100_000)
	if _, err := rw.Write(in); err != nil {
		t.Fatal(err)
	}
	if err := rw.(guest.Stream).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(rw)
	if err != nil || !bytes.Equal(got, bytes.ToUpper(in)) {
		t.Fatalf("%d bytes back, %v", len(got), err)
	}
	var refused *wire.Refused
	if _, err := s.Service(s.ctx, "none"); !errors.As(err, &refused) {
		t.Fatalf("unknown service: %v", err)
	}
}

// testListen asks of a port inside that it leads to the service, that it is there
// while there is no host and again with the next one, and that no host reaches it.
func testListen(t *testing.T, s *session) {
	captest.Need(t, "guest-inside", s.Inside != nil, "this system opens no connections from inside")
	const port = 3999
	opts := s.options()
	opts.Listen = map[string]uint16{"upper": port}
	opts.Services = map[string]func(guest.Stream){"upper": func(st guest.Stream) {
		b, err := io.ReadAll(io.LimitReader(st, 3))
		if err == nil {
			_, err = st.Write(bytes.ToUpper(b))
		}
		if err != nil {
			t.Errorf("service: %v", err)
		}
	}}
	ask := func(text string) net.Conn {
		t.Helper()
		conn, err := s.Inside(port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go io.WriteString(conn, text)
		return conn
	}
	answers := func(conn net.Conn, want string) {
		t.Helper()
		if got, err := io.ReadAll(conn); err != nil || string(got) != want {
			t.Fatalf("answer %q, %v", got, err)
		}
	}
	l := s.attachWith(opts)
	answers(ask("abc"), "ABC")
	if _, err := l.Dial(s.ctx, port); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Fatalf("the host reached the init's own port: %v", err)
	}
	l.Close()
	<-l.Done()
	waiting := ask("xyz")
	s.attachWith(opts)
	answers(waiting, "XYZ")
	answers(ask("def"), "DEF")
	opts.Listen = map[string]uint16{"upper": 0}
	if _, err := guest.Attach(s.ctx, s.conn(), opts); sandboxd.ClassOf(err) != sandboxd.ClassForbidden || !strings.Contains(err.Error(), "port 0") {
		t.Fatalf("attach with a port that cannot be: %v", err)
	}
}

func testPing(t *testing.T, s *session) {
	l := s.attach()
	if err := l.Ping(s.ctx); err != nil {
		t.Fatal(err)
	}
	l.Close()
	<-l.Done()
	if err := l.Ping(s.ctx); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || l.Err() == nil {
		t.Fatalf("ping of a closed link: %v", err)
	}
}
