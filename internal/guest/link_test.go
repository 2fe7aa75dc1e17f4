package guest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/builtin"
	"sandboxd/internal/guest/guesttest"
	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// joiner writes its name into the descriptors that came with a start, as a process
// that joins a cgroup does. hold delays every spawn until it is closed.
type joiner struct {
	builtin.Spawner
	hold chan struct{}
}

func (j joiner) Spawn(spec wire.Start, groups []int) (inside.Process, error) {
	if j.hold != nil {
		<-j.hold
	}
	for _, fd := range groups {
		if _, err := unix.Write(fd, []byte(spec.ID)); err != nil {
			return nil, err
		}
	}
	return j.Spawner.Spawn(spec, groups)
}

// socketPair is a connection that carries descriptors.
func socketPair() (host, guest *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1], nil
}

func attach(t *testing.T, server *inside.Server, host io.ReadWriteCloser, inner io.ReadWriteCloser) (*guest.Link, *guesttest.Sink) {
	t.Helper()
	t.Cleanup(func() { server.Close() })
	go server.Serve(inner)
	sink := guesttest.NewSink()
	l, err := guest.Attach(t.Context(), host, guest.Options{Handler: sink, Have: sink.Have})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, sink
}

// TestGroups shows that descriptors reach the right command when starts overlap,
// also behind a start of several frames.
func TestGroups(t *testing.T) {
	h, g, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	l, sink := attach(t, inside.New(joiner{}, inside.Options{}), h, g)
	big := []string{"BIG=" + strings.Repeat("x", 3*wire.MaxFrame)}
	type result struct {
		id  string
		got string
		err error
	}
	results := make(chan result)
	for _, id := range []string{"a", "b", "c", "d"} {
		go func() {
			r, w, err := os.Pipe()
			if err == nil {
				err = l.Start(t.Context(), wire.Start{ID: id, Argv: []string{"true"}, Env: big}, []*os.File{w, w})
				w.Close()
			}
			var b []byte
			if err == nil {
				b, err = io.ReadAll(r) // ends only if the init closed its copies
				r.Close()
			}
			results <- result{id, string(b), err}
		}()
	}
	for range 4 {
		if r := <-results; r.err != nil || r.got != r.id+r.id {
			t.Errorf("command %s: its groups were given %q, %v", r.id, r.got, r.err)
		}
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		if _, err := sink.Wait(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGroupsNeedDescriptors(t *testing.T) {
	h, g := net.Pipe()
	l, _ := attach(t, inside.New(joiner{}, inside.Options{}), h, g)
	err := l.Start(t.Context(), wire.Start{ID: "a", Argv: []string{"true"}}, []*os.File{os.Stdin})
	if sandboxd.ClassOf(err) != sandboxd.ClassUnsupported {
		t.Fatalf("groups over a pipe: %v", err)
	}
}

// TestAbandonedStart shows that a start whose caller gave up leaves nothing.
func TestAbandonedStart(t *testing.T) {
	h, g := net.Pipe()
	hold := make(chan struct{})
	l, sink := attach(t, inside.New(joiner{hold: hold}, inside.Options{}), h, g)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := l.Start(ctx, wire.Start{ID: "a", Argv: []string{"sleep", "1000"}}, nil)
	if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Fatalf("start: %v", err)
	}
	close(hold)
	// The id is free as soon as the killed process is gone.
	for {
		err := l.Start(t.Context(), wire.Start{ID: "a", Argv: []string{"echo", "x"}}, nil)
		if err == nil {
			break
		}
		if sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			t.Fatal(err)
		}
	}
	if exit, err := sink.Wait(t.Context(), "a"); err != nil || exit.Signal != 0 {
		t.Fatalf("%+v %v", exit, err)
	}
}

// TestHeldCommand shows that a command which the host does not want is listed and
// silent, and can be ended and forgotten.
func TestHeldCommand(t *testing.T) {
	server := inside.New(builtin.Spawner{}, inside.Options{})
	h, g := net.Pipe()
	l, sink := attach(t, server, h, g)
	if err := l.Start(t.Context(), wire.Start{ID: "a", Argv: []string{"sh", "-c", "echo x; sleep 1000"}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := sink.Reach(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	l.Close()
	<-l.Done()
	h, g = net.Pipe()
	go server.Serve(g)
	l, err := guest.Attach(t.Context(), h, guest.Options{Handler: sink, Have: func(string) (int64, bool) { return 0, false }})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if list := l.Commands(); len(list) != 1 || list[0] != (guest.CommandState{ID: "a", Next: 2}) {
		t.Fatalf("commands %+v", list)
	}
	if err := l.Signal(t.Context(), "a", 9); err != nil {
		t.Fatal(err)
	}
	l.Forget("a")
	for {
		err := l.Start(t.Context(), wire.Start{ID: "a", Argv: []string{"true"}}, nil)
		if err == nil {
			break
		}
		if sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			t.Fatal(err)
		}
	}
}

// failing is a Handler whose journal is full.
type failing struct{ *guesttest.Sink }

func (failing) Output(string, sandboxd.Stream, int64, []byte) error { return errors.New("full") }

// TestFailingHandler shows that what was not kept is not acknowledged: the next
// link brings it again.
func TestFailingHandler(t *testing.T) {
	server := inside.New(builtin.Spawner{}, inside.Options{})
	defer server.Close()
	h, g := net.Pipe()
	go server.Serve(g)
	l, err := guest.Attach(t.Context(), h, guest.Options{Handler: failing{guesttest.NewSink()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context(), wire.Start{ID: "a", Argv: []string{"echo", "kept"}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.Close()
	<-l.Done()
	h, g = net.Pipe()
	_, sink := attach(t, server, h, g)
	if _, err := sink.Wait(t.Context(), "a"); err != nil || string(sink.Bytes("a")) != "kept\n" {
		t.Fatalf("%q %v", sink.Bytes("a"), err)
	}
}

// TestBrokenHost shows that a host which breaks the protocol loses its link and
// nothing else.
func TestBrokenHost(t *testing.T) {
	server := inside.New(builtin.Spawner{}, inside.Options{})
	h, g := net.Pipe()
	l, sink := attach(t, server, h, g)
	if err := l.Start(t.Context(), wire.Start{ID: "a", Argv: []string{"cat"}, Stdin: true}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Write([]byte("garbage, then nothing of use" + strings.Repeat("\x00", wire.HeaderSize))); err != nil {
		t.Fatal(err)
	}
	if err := l.Ping(t.Context()); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Fatalf("ping: %v", err)
	}
	<-l.Done()
	h, g = net.Pipe()
	go server.Serve(g)
	l, err := guest.Attach(t.Context(), h, guest.Options{Handler: sink, Have: sink.Have})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Stdin(t.Context(), "a", []byte("alive"), true); err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Wait(t.Context(), "a"); err != nil || string(sink.Bytes("a")) != "alive" {
		t.Fatalf("%q %v", sink.Bytes("a"), err)
	}
}
