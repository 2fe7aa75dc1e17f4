package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
)

// greeter is a Python server that says who it is to everyone who connects.
const greeter = `
import ctypes, socket, sys
ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
print('listening', flush=True)
while True:
    c, _ = s.accept()
    c.sendall(sys.argv[2].encode())
    c.close()
`

func (b *box) serves(port int, who string) {
	b.s.t.Helper()
	id := b.begin(sandboxd.CommandSpec{Argv: []string{"python3", "-c", greeter, strconv.Itoa(port), who}, Background: true})
	b.says(id, "listening")
}

func (b *box) hears(port uint16) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := b.s.C.DialPort(ctx, b.id, port)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	return string(got), err
}

// A dial reaches the sandbox that it names: not its neighbour with the same port,
// not the machine, not the server.
func TestPortsReachTheirSandboxOnly(t *testing.T) {
	s := serve(t)
	a, b := s.open(sandboxd.OpenRequest{Key: "a"}), s.open(sandboxd.OpenRequest{Key: "b"})
	a.serves(8000, "\x1b]0;evil")
	b.serves(8000, "b")
	b.serves(8001, "b only")
	if got, err := a.hears(8000); err != nil || got != "\x1b]0;evil" {
		t.Errorf("a says %q, %v", got, err)
	}
	if got, err := b.hears(8000); err != nil || got != "b" {
		t.Errorf("b says %q, %v", got, err)
	}
	var ours []net.Listener
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"} {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		ours = append(ours, ln)
		go func() {
			if conn, err := ln.Accept(); err == nil {
				conn.Close()
				t.Errorf("a sandbox's port is %s of the machine", ln.Addr())
			}
		}()
	}
	ports := []string{s.Addr, s.Host, "x:8001"}
	for _, ln := range ours {
		ports = append(ports, ln.Addr().String())
	}
	for _, address := range ports {
		_, text, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.hears(uint16(port))
		var e *sandboxd.Error
		if !errors.As(err, &e) || e.Class != sandboxd.ClassUnavailable || !strings.Contains(e.Message, text) {
			t.Errorf("port %s of a sandbox where nothing listens: %q, %v", text, got, err)
		}
	}
	listed := s.must(request{method: "GET", path: a.path("/ports")})
	if listed.status != 200 || bytes.Count(listed.body, []byte(`"port":`)) != 1 || !bytes.Contains(listed.body, []byte(`"process":"?]0;evil"`)) {
		t.Errorf("the ports of a: %d %s", listed.status, listed.body)
	}
}

// Ports that do not accept, connections that are not read and a thousand listeners
// cost the sandbox that has them, and nobody else.
func TestPortAttacksStayAtHome(t *testing.T) {
	long(t)
	s := serve(t)
	evil, quiet := s.open(sandboxd.OpenRequest{Key: "evil"}), s.open(sandboxd.OpenRequest{Key: "quiet"})
	quiet.serves(8000, "quiet")
	full := evil.begin(sandboxd.CommandSpec{Background: true, Argv: []string{"python3", "-c", `
import socket, time
s = socket.socket(); s.bind(('127.0.0.1', 9000)); s.listen(0)
keep = []
for i in range(4):
    c = socket.socket(); c.setblocking(False); c.connect_ex(('127.0.0.1', 9000)); keep.append(c)
deaf = socket.create_server(('127.0.0.1', 9001), backlog=1000)
print('full', flush=True)
while True:
    keep.append(deaf.accept()[0])
`}})
	evil.says(full, "full")
	many := evil.begin(sandboxd.CommandSpec{Background: true, Argv: []string{"python3", "-c", `
import socket, time
keep = [socket.create_server(('127.0.0.1', 20000 + i)) for i in range(800)]
print('many', flush=True)
time.sleep(1000)
`}})
	evil.says(many, "many")
	before := s.RSS()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()

	// A backlog that is full: the dial is given up, and the port named.
	began := time.Now()
	conn, err := s.C.DialPort(ctx, evil.id, 9000)
	if err == nil {
		conn.Close()
		t.Error("a port that does not accept accepted")
	} else if took := time.Since(began); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(err.Error(), "9000") || took > 15*time.Second {
		t.Errorf("a port that does not accept: %v after %v", err, took)
	}

	// Connections that are written to and never read, as many as come.
	var open sync.WaitGroup
	var deaf []sandboxd.PortConn
	for i := range 150 {
		conn, err := s.C.DialPort(ctx, evil.id, 9001)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		deaf = append(deaf, conn)
		open.Go(func() { _, _ = conn.Write(make([]byte, 16<<20)) }) // ends by Reset
	}
	for i := range 100 {
		if got, err := quiet.hears(8000); err != nil || got != "quiet" {
			t.Fatalf("the neighbour's port, %d: %q, %v", i, got, err)
		}
	}
	list, err := s.C.ListPorts(ctx, evil.id)
	if err != nil || len(list.Ports) != 200 || !list.Incomplete {
		t.Errorf("of 802 listeners %d are listed, incomplete %v, %v", len(list.Ports), list.Incomplete, err)
	}
	if got := evil.ok("echo works"); got != "works\n" {
		t.Errorf("the sandbox itself: %q", got)
	}
	if grown := s.RSS() - before; grown > 64<<20 {
		t.Errorf("the server's memory grew by %d bytes", grown)
	}
	for _, conn := range deaf {
		_ = conn.Reset()
	}
	open.Wait()
	// Given up here, they end there too, though the program does not look at them.
	s.Until("the init has let go of the connections", 30*time.Second, func() bool {
		got := evil.ok(`grep -c ' 0100007F:[0-9A-F]* 0100007F:2329 01 ' /proc/net/tcp || true`)
		return strings.TrimSpace(got) == "0"
	})
	if got := fmt.Sprint(evil.stop(full) < 10*time.Second); got != "true" {
		t.Error("the stop took too long")
	}
}
