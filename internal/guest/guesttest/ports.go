package guesttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
)

// listen starts a listener as command id and waits until it listens.
func (s *session) listen(l *guest.Link, id string, port int, args ...string) {
	s.t.Helper()
	s.start(l, id, "listen", append([]string{strconv.Itoa(port)}, args...)...)
	if err := s.sink.Reach(s.ctx, id, int64(len("listening\n"))); err != nil {
		s.t.Fatalf("listener %s: %v: %q", id, err, s.sink.Text(id, sandboxd.StreamStderr))
	}
}

func (s *session) dial(l *guest.Link, port uint16) guest.Stream {
	s.t.Helper()
	st, err := l.Dial(s.ctx, port)
	if err != nil {
		s.t.Fatalf("dial %d: %v", port, err)
	}
	s.t.Cleanup(func() { st.Close() })
	return st
}

// ipv6 says whether the kernel has it, as one in user mode does not.
func ipv6() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// echoes sends half a megabyte to each port, one after the other, and wants it back.
func (s *session) echoes(l *guest.Link, ports ...uint16) {
	t := s.t
	t.Helper()
	for _, port := range ports {
		st := s.dial(l, port)
		in := bytes.Repeat([]byte("0123456789"), 50_000)
		var sent sync.WaitGroup
		sent.Go(func() {
			if _, err := st.Write(in); err != nil {
				t.Errorf("write: %v", err)
			}
			if err := st.CloseWrite(); err != nil {
				t.Errorf("close write: %v", err)
			}
		})
		got, err := io.ReadAll(st)
		sent.Wait()
		if err != nil || !bytes.Equal(got, in) {
			t.Fatalf("%d bytes back, %v", len(got), err)
		}
	}
}

func testDialIPv6(t *testing.T, s *session) {
	captest.Need(t, "ipv6", ipv6(), "the kernel has none")
	l := s.attach()
	s.listen(l, "six", 7002, "echo", "::1")
	s.echoes(l, 7002)
}

func testDial(t *testing.T, s *session) {
	l := s.attach()
	s.listen(l, "four", 7001, "echo")
	s.echoes(l, 7001, 7001)
	s.listen(l, "greet", 7003, "greet")
	st := s.dial(l, 7003)
	if got, err := io.ReadAll(st); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	// Closing loses nothing of what was written.
	if _, err := st.Write(make([]byte, 30_000)); err != nil {
		t.Fatal(err)
	}
	st.Close()
	s.says("greet", "got 30000\n")
	if n, err := st.Read(make([]byte, 1)); err == nil {
		t.Fatalf("%d bytes from a closed stream", n)
	}
}

// says waits until a command's output ends with text.
func (s *session) says(id, text string) {
	s.t.Helper()
	if err := s.sink.until(s.ctx, func() bool { return strings.HasSuffix(string(s.sink.command(id).all), text) }); err != nil {
		s.t.Fatalf("%v: it said %q, want %q", err, s.sink.Bytes(id), text)
	}
}

func testDialClosed(t *testing.T, s *session) {
	l := s.attach()
	began := time.Now()
	_, err := l.Dial(s.ctx, 7777)
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Class != sandboxd.ClassUnavailable || e.Field != "port" || !strings.Contains(e.Message, "7777") {
		t.Fatalf("dial of a port that nothing listens on: %v", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Fatalf("it took %v", took)
	}
	if _, err := l.Dial(s.ctx, 0); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
		t.Fatalf("dial of port 0: %v", err)
	}
	s.listen(l, "late", 7777, "greet")
	if got, err := io.ReadAll(s.dial(l, 7777)); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
}

func testDialReset(t *testing.T, s *session) {
	l := s.attach()
	s.listen(l, "cut", 7004, "cut")
	st := s.dial(l, 7004)
	if _, err := io.ReadFull(st, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(st); !errors.Is(err, wire.ErrReset) {
		t.Fatalf("a reset inside is read as %v", err)
	}
	<-st.Done()
	s.listen(l, "greet", 7005, "greet")
	st = s.dial(l, 7005)
	if _, err := io.ReadAll(st); err != nil {
		t.Fatal(err)
	}
	st.Reset()
	s.says("greet", "reset after 0\n")
	// The end of the link is no clean end either.
	s.listen(l, "echo", 7006, "echo")
	st = s.dial(l, 7006)
	l.Close()
	if _, err := io.ReadAll(st); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Fatalf("the end of the link is read as %v", err)
	}
}

// testDialStalled has connections that nobody reads, on either side, beside one
// that works, and gives each of them up.
func testDialStalled(t *testing.T, s *session) {
	l := s.attach()
	s.listen(l, "deaf", 7007, "deaf")
	s.listen(l, "flood", 7008, "flood")
	s.listen(l, "echo", 7009, "echo")
	var stalled sync.WaitGroup
	t.Cleanup(stalled.Wait) // after every stream was closed
	for range 3 {
		deaf, flood := s.dial(l, 7007), s.dial(l, 7008)
		stalled.Go(func() {
			data := make([]byte, 1<<20)
			for {
				if _, err := deaf.Write(data); err != nil {
					return // by Close
				}
			}
		})
		if _, err := io.ReadFull(flood, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	st := s.dial(l, 7009)
	for range 50 {
		if _, err := st.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(st, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	s.start(l, "c", "echo", "x")
	s.ended("c")
}

func testDialGivenUp(t *testing.T, s *session) {
	l := s.attach()
	s.listen(l, "echo", 7010, "echo")
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, err := l.Dial(ctx, 7010); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Fatalf("a dial that was given up: %v", err)
	}
	st := s.dial(l, 7010)
	if _, err := st.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(st, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func testPorts(t *testing.T, s *session) {
	l := s.attach()
	list, err := l.Ports(s.ctx)
	if err != nil || len(list.Ports) != 0 || list.Incomplete {
		t.Fatalf("nothing listens and %+v, %v", list, err)
	}
	second := "127.0.0.1"
	if ipv6() {
		second = "::1"
	}
	s.listen(l, "b", 7012, "echo", second)
	s.listen(l, "a", 7011, "echo")
	list, err = l.Ports(s.ctx)
	if err != nil || len(list.Ports) != 2 || list.Incomplete {
		t.Fatalf("%+v, %v", list, err)
	}
	a, b := list.Ports[0], list.Ports[1]
	if a.Port != 7011 || a.Address != "127.0.0.1" || a.CommandID != "a" || a.Process == "" ||
		b.Port != 7012 || b.Address != second || b.CommandID != "b" {
		t.Fatalf("%+v", list.Ports)
	}
	// Of an init of the version before, which would take the question for a fault.
	opts := s.options()
	opts.MinVersion, opts.MaxVersion = 1, 1
	old := s.attachWith(opts)
	if _, err := old.Ports(s.ctx); sandboxd.ClassOf(err) != sandboxd.ClassUnsupported {
		t.Fatalf("version 1: %v", err)
	}
	if err := old.Ping(s.ctx); err != nil {
		t.Fatal(err)
	}
}
