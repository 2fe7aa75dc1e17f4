package hosttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"sandboxd"
)

var portCases = []testCase{
	{name: "bytes both ways, with half closes", run: portBytes},
	{name: "a port of ::1 only", run: portIPv6},
	{name: "a port that nothing listens on", run: portClosed},
	{name: "a port that is none, a sandbox that is none", run: portBad},
	{name: "the program ends its side first", run: portGreets},
	{name: "a connection that breaks is no clean end", run: portBreaks},
	{name: "64 MiB through and back", run: portBulk},
	{name: "a hundred connections at once", run: portMany},
	{name: "a stalled connection stalls no other", run: portStalled},
	{name: "a dial starts a stopped sandbox, a list does not", run: portCold},
	{name: "connections end with their environment", run: portEnvironmentEnds},
	{name: "listening ports with their commands", run: portList},
}

// listens starts a listener and waits until it listens.
func (s *suite) listens(id string, port int, args ...string) sandboxd.Command {
	s.Helper()
	cmd := s.start(id, sandboxd.CommandSpec{Argv: s.program("listen", append([]string{strconv.Itoa(port)}, args...)...), Background: true})
	s.says(id, cmd, "listening\n")
	return cmd
}

// says waits until a command's output has text.
func (s *suite) says(id string, cmd sandboxd.Command, text string) {
	s.Helper()
	stream, err := s.host.FollowCommand(s.ctx, id, cmd.ID, sandboxd.FollowOptions{Follow: true})
	s.must(err)
	defer stream.Close()
	said := ""
	for !strings.Contains(said, text) {
		f, err := stream.Next(s.ctx)
		s.must(err)
		if f.Ending != nil {
			s.Fatalf("it ended with %+v after %q, want %q", *f.Ending, said, text)
		}
		said += string(f.Data)
	}
}

func (s *suite) dial(id string, port uint16) sandboxd.PortConn {
	s.Helper()
	conn, err := s.host.DialPort(s.ctx, id, port)
	s.must(err)
	s.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echoes sends text and its end, and wants it back with its end.
func echoes(conn sandboxd.PortConn, text string) error {
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(conn)
	if err == nil && string(got) != text {
		err = fmt.Errorf("%q came back", got)
	}
	return err
}

func portBytes(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	s.listens(sb.ID, 8000, "echo")
	for range 3 {
		s.must(echoes(s.dial(sb.ID, 8000), "hello through the wall"))
	}
	ctx, cancel := context.WithCancel(s.ctx)
	conn, err := s.host.DialPort(ctx, sb.ID, 8000)
	s.must(err)
	cancel()                                               // it bounds the dial, not the connection
	for _, text := range []string{"one", "two", "three"} { // each way in turn
		_, err := io.WriteString(conn, text)
		s.must(err)
		got := make([]byte, len(text))
		_, err = io.ReadFull(conn, got)
		s.must(err)
		if string(got) != text {
			s.Fatalf("%q came back for %q", got, text)
		}
	}
	s.must(conn.Close())
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		s.Fatalf("%d bytes from a closed connection", n)
	}
}

func portIPv6(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	s.listens(sb.ID, 8006, "echo", "::1")
	s.must(echoes(s.dial(sb.ID, 8006), "six"))
}

func portClosed(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	began := time.Now()
	_, err := s.host.DialPort(s.ctx, sb.ID, 4321)
	s.wants(err, sandboxd.ClassUnavailable)
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Field != "port" || !strings.Contains(e.Message, "4321") || e.Hint == "" {
		s.Fatalf("which port, and what to do about it? %+v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		s.Fatalf("it took %v", took)
	}
	cmd := s.listens(sb.ID, 4321, "echo")
	s.must(echoes(s.dial(sb.ID, 4321), "now"))
	_, err = s.host.StopCommand(s.ctx, sb.ID, cmd.ID, 0)
	s.must(err)
	s.eventually("the port is closed again", func() bool {
		conn, err := s.host.DialPort(s.ctx, sb.ID, 4321)
		if err == nil {
			_ = conn.Close()
			return false
		}
		s.wants(err, sandboxd.ClassUnavailable)
		return true
	})
}

func portBad(s *suite) {
	sb := s.open(sandboxd.OpenRequest{Start: cold()})
	_, err := s.host.DialPort(s.ctx, sb.ID, 0)
	s.wants(err, sandboxd.ClassInvalid)
	for _, id := range []string{"", "..", "UPPER", sandboxd.NewID()} {
		_, err = s.host.DialPort(s.ctx, id, 80)
		s.wants(err, sandboxd.ClassNotFound)
		_, err = s.host.ListPorts(s.ctx, id)
		s.wants(err, sandboxd.ClassNotFound)
	}
	s.must(s.host.Delete(s.ctx, sb.ID))
	_, err = s.host.DialPort(s.ctx, sb.ID, 80)
	s.wants(err, sandboxd.ClassGone)
	_, err = s.host.ListPorts(s.ctx, sb.ID)
	s.wants(err, sandboxd.ClassGone)
}

func portGreets(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	cmd := s.listens(sb.ID, 8001, "greet")
	conn := s.dial(sb.ID, 8001)
	got, err := io.ReadAll(conn)
	s.must(err)
	if string(got) != "hello" {
		s.Fatalf("%q", got)
	}
	// It has ended its side; this one still sends.
	_, err = conn.Write(make([]byte, 100_000))
	s.must(err)
	s.must(conn.CloseWrite())
	s.says(sb.ID, cmd, "got 100000\n")
	// Close after a write loses nothing of it.
	conn = s.dial(sb.ID, 8001)
	_, err = io.ReadAll(conn)
	s.must(err)
	_, err = conn.Write(make([]byte, 77_777))
	s.must(err)
	s.must(conn.Close())
	s.says(sb.ID, cmd, "got 77777\n")
}

func portBreaks(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	s.listens(sb.ID, 8002, "cut")
	conn := s.dial(sb.ID, 8002)
	got := make([]byte, 4)
	_, err := io.ReadFull(conn, got)
	s.must(err)
	if string(got) != "part" {
		s.Fatalf("%q", got)
	}
	_, err = io.WriteString(conn, "x")
	s.must(err)
	if rest, err := io.ReadAll(conn); err == nil {
		s.Fatalf("a reset looks like an end after %q", rest)
	}
	// And in the other direction.
	cmd := s.listens(sb.ID, 8003, "greet")
	conn = s.dial(sb.ID, 8003)
	_, err = io.ReadAll(conn)
	s.must(err)
	_, err = conn.Write(make([]byte, 5))
	s.must(err)
	s.must(conn.Reset())
	s.says(sb.ID, cmd, "reset after ")
}

// numbers is a stream of so many bytes, none like its neighbours.
type numbers struct{ at, end int64 }

func (n *numbers) Read(p []byte) (int, error) {
	if n.at == n.end {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), n.end-n.at)]
	for i := range p {
		at := n.at + int64(i)
		p[i] = byte(at) ^ byte(at>>8) ^ byte(at>>16)
	}
	n.at += int64(len(p))
	return len(p), nil
}

func portBulk(s *suite) {
	const size = 64 << 20
	sb := s.open(sandboxd.OpenRequest{})
	s.listens(sb.ID, 8004, "echo")
	conn := s.dial(sb.ID, 8004)
	sent, got := sha256.New(), sha256.New()
	failed := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(conn, sent), &numbers{end: size})
		if err == nil {
			err = conn.CloseWrite()
		}
		failed <- err
	}()
	began := time.Now()
	n, err := io.Copy(got, conn)
	s.must(err)
	s.must(<-failed)
	if n != size || !same(sent, got) {
		s.Fatalf("%d bytes came back, the same: %v", n, same(sent, got))
	}
	s.Logf("%d MiB there and back in %v", size>>20, time.Since(began).Round(time.Millisecond))
}

func same(a, b hash.Hash) bool { return bytes.Equal(a.Sum(nil), b.Sum(nil)) }

func portMany(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	s.listens(sb.ID, 8005, "echo")
	const count = 100
	conns := make([]sandboxd.PortConn, count)
	errs := make([]error, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() { conns[i], errs[i] = s.host.DialPort(s.ctx, sb.ID, 8005) })
	}
	all.Wait()
	s.must(errors.Join(errs...))
	for i := range count { // all are open now
		all.Go(func() {
			errs[i] = echoes(conns[i], strings.Repeat(strconv.Itoa(i)+",", 20_000))
			_ = conns[i].Close()
		})
	}
	all.Wait()
	s.must(errors.Join(errs...))
}

func portStalled(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	s.listens(sb.ID, 8007, "deaf")
	s.listens(sb.ID, 8008, "flood")
	s.listens(sb.ID, 8009, "echo")
	var stalled sync.WaitGroup
	s.Cleanup(stalled.Wait) // after every connection was closed
	for range 4 {
		deaf := s.dial(sb.ID, 8007)
		stalled.Go(func() {
			// More than every buffer on the way holds; it ends with the close below.
			_, _ = io.Copy(deaf, &numbers{end: 1 << 40})
		})
		flood := s.dial(sb.ID, 8008)
		_, err := io.ReadFull(flood, make([]byte, 1<<20)) // then nobody reads it
		s.must(err)
	}
	for i := range 20 {
		ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
		conn, err := s.host.DialPort(ctx, sb.ID, 8009)
		s.must(err)
		s.must(echoes(conn, strings.Repeat("x", 1000*i)))
		cancel()
	}
	s.exits(s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("echo", "commands run too")}), sandboxd.CauseExit, 0)
}

func portCold(s *suite) {
	sb := s.open(sandboxd.OpenRequest{Start: cold()})
	list, err := s.host.ListPorts(s.ctx, sb.ID)
	s.must(err)
	if len(list.Ports) != 0 || list.Incomplete {
		s.Fatalf("%+v", list)
	}
	now, err := s.host.Get(s.ctx, sb.ID)
	s.must(err)
	if now.State != sandboxd.StateCold {
		s.Fatalf("a list left it %s", now.State)
	}
	_, err = s.host.DialPort(s.ctx, sb.ID, 8000)
	s.wants(err, sandboxd.ClassUnavailable)
	now, err = s.host.Get(s.ctx, sb.ID)
	s.must(err)
	if now.State != sandboxd.StateRunning {
		s.Fatalf("a dial left it %s", now.State)
	}
}

func portEnvironmentEnds(s *suite) {
	for _, end := range []func(id string) error{
		func(id string) error { _, err := s.host.Stop(s.ctx, id); return err },
		func(id string) error { return s.host.Delete(s.ctx, id) },
	} {
		sb := s.open(sandboxd.OpenRequest{})
		s.listens(sb.ID, 8010, "echo")
		conn := s.dial(sb.ID, 8010)
		_, err := io.WriteString(conn, "x")
		s.must(err)
		_, err = io.ReadFull(conn, make([]byte, 1))
		s.must(err)
		ended := make(chan error, 1)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
		s.must(end(sb.ID))
		select {
		case err := <-ended:
			if err == nil {
				s.Fatal("a byte of an ended sandbox")
			}
		case <-time.After(patience):
			s.Fatal("the connection outlives its environment")
		}
	}
}

func portList(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	list, err := s.host.ListPorts(s.ctx, sb.ID)
	s.must(err)
	if len(list.Ports) != 0 || list.Incomplete {
		s.Fatalf("nothing was started and %+v", list)
	}
	any4 := s.listens(sb.ID, 9002, "echo", "0.0.0.0")
	loop := s.listens(sb.ID, 9001, "deaf")
	six := s.listens(sb.ID, 9003, "echo", "::1")
	conn := s.dial(sb.ID, 9001) // a connection is no listener
	list, err = s.host.ListPorts(s.ctx, sb.ID)
	s.must(err)
	want := []sandboxd.Port{{Port: 9001, Address: "127.0.0.1", CommandID: loop.ID}, {Port: 9002, Address: "0.0.0.0", CommandID: any4.ID},
		{Port: 9003, Address: "::1", CommandID: six.ID}}
	if len(list.Ports) != len(want) || list.Incomplete {
		s.Fatalf("%+v", list)
	}
	for i, p := range list.Ports {
		if p.Process == "" {
			s.Errorf("port %d has no process", p.Port)
		}
		p.Process, p.PID = "", 0
		if p != want[i] {
			s.Errorf("%+v, want %+v", p, want[i])
		}
	}
	s.must(conn.Close())
	_, err = s.host.StopCommand(s.ctx, sb.ID, loop.ID, 0)
	s.must(err)
	s.eventually("the port of an ended command is not listed", func() bool {
		list, err := s.host.ListPorts(s.ctx, sb.ID)
		s.must(err)
		return len(list.Ports) == 2
	})
}
