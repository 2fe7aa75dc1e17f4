package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandboxd"
)

// program is a port of the double: the face's end, and the program's.
type program struct {
	*net.TCPConn
}

func (p program) Reset() error {
	_ = p.SetLinger(0)
	return p.Close()
}

// listening makes the double's dials answer one end of a connection, the other of
// which is sent to the answer.
func (r *rig) listening() chan *net.TCPConn {
	r.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { ln.Close() })
	inside := make(chan *net.TCPConn, 16)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			inside <- conn.(*net.TCPConn)
		}
	}()
	r.double.dial = func(_ context.Context, port uint16) (sandboxd.PortConn, error) {
		if port != 8000 {
			return nil, &sandboxd.Error{Class: sandboxd.ClassUnavailable, Field: "port", RetryS: 1, Message: fmt.Sprintf("nothing answers on port %d", port)}
		}
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		return program{conn.(*net.TCPConn)}, nil
	}
	return inside
}

// upgraded asks for a port as bytes and answers the connection after the 101, with
// early sent in the same write as the request.
func (r *rig) upgraded(early string) (*net.TCPConn, *bufio.Reader, *http.Response) {
	r.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(conn, "GET %s/ports/8000/connect HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n%s",
		boxURL, r.addr, testToken, early)
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		r.Fatal(err)
	}
	return conn.(*net.TCPConn), in, res
}

func TestConnectAsBytes(t *testing.T) {
	r := newRig(t, controlListener, nil)
	programs := r.listening()
	conn, in, res := r.upgraded("early, ")
	if res.StatusCode != 101 || res.Header.Get("Upgrade") != "tcp" || res.Header.Get("Connection") != "Upgrade" || res.Header.Get("X-Request-Id") == "" {
		t.Fatalf("%+v", res)
	}
	inside := <-programs
	if _, err := io.WriteString(conn, "late"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(inside); err != nil || string(got) != "early, late" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := io.WriteString(inside, "answer"); err != nil {
		t.Fatal(err)
	}
	inside.Close()
	if got, err := io.ReadAll(in); err != nil || string(got) != "answer" {
		t.Fatalf("%q, %v", got, err)
	}
	conn.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !strings.Contains(r.log.String(), "/ports/8000/connect status=101") {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the log: %s", r.log)
		}
	}
}

func TestConnectAsWebSocket(t *testing.T) {
	r := newRig(t, controlListener, func(_ *Config, p *pace) { p.ping = 20 * time.Millisecond })
	programs := r.listening()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	open := func() (*websocket.Conn, *net.TCPConn) {
		t.Helper()
		conn, _, err := websocket.Dial(ctx, "ws://"+r.addr+boxURL+"/ports/8000/connect", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + testToken}}})
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadLimit(-1)
		t.Cleanup(func() { conn.CloseNow() })
		return conn, <-programs
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)

	conn, inside := open()
	var sent sync.WaitGroup
	sent.Go(func() {
		for _, err := range []error{conn.Write(ctx, websocket.MessageBinary, data), conn.Write(ctx, websocket.MessageText, []byte(`{"end":true}`))} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	if got, err := io.ReadAll(inside); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	sent.Wait()
	// The other half still works, and ends with a frame and a closing of its own.
	sent.Go(func() {
		if _, err := inside.Write(data); err != nil {
			t.Error(err)
		}
		inside.Close()
	})
	var got []byte
	for {
		kind, part, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("%v after %d bytes", err, len(got))
		}
		if kind == websocket.MessageText {
			if string(part) != `{"end":true}` {
				t.Fatalf("%s", part)
			}
			break
		}
		got = append(got, part...)
	}
	sent.Wait()
	if !bytes.Equal(got, data) {
		t.Fatalf("%d bytes came back", len(got))
	}
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Fatalf("closed with %v", err)
	}

	// A client that closes ends both.
	conn, inside = open()
	if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(inside); err != nil || len(got) != 0 {
		t.Fatalf("%q, %v", got, err)
	}
	// One that breaks off, or says what is not known, did not end what it sent.
	conn, inside = open()
	_ = conn.CloseNow()
	if _, err := io.ReadAll(inside); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("a broken client is read as %v", err)
	}
	conn, inside = open()
	if err := conn.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(inside); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("nonsense is read as %v", err)
	}
	// A program that breaks off did not end what it sent either.
	conn, inside = open()
	_ = inside.SetLinger(0)
	inside.Close()
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusInternalError {
		t.Fatalf("a broken program is read as %v", err)
	}
}

func TestConnectBreaks(t *testing.T) {
	r := newRig(t, controlListener, nil)
	programs := r.listening()
	conn, in, _ := r.upgraded("")
	inside := <-programs
	_ = inside.SetLinger(0)
	inside.Close()
	if _, err := io.ReadAll(in); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("a program that breaks off is read as %v", err)
	}
	conn, _, _ = r.upgraded("")
	inside = <-programs
	_ = conn.SetLinger(0)
	conn.Close()
	if _, err := io.ReadAll(inside); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("a client that breaks off is read as %v", err)
	}
	// A client that ended its side and is gone, and a program that does not care.
	conn, _, _ = r.upgraded("")
	inside = <-programs
	conn.Close()
	if _, err := io.ReadAll(inside); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := inside.Write([]byte("x")); err != nil {
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Fatal(err)
			}
			break
		}
	}
}

// TestConnectionsEndWithTheServer shows that neither side takes the end of the
// server for the other's, also while a client does not read.
func TestConnectionsEndWithTheServer(t *testing.T) {
	r := newRig(t, controlListener, nil)
	programs := r.listening()
	_, in, _ := r.upgraded("half of")
	inside := <-programs
	if _, err := io.ReadFull(inside, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	_, _, _ = r.upgraded("")
	flooding := <-programs
	flooded := make(chan error, 1)
	go func() {
		for {
			if _, err := flooding.Write(make([]byte, 1<<16)); err != nil {
				flooded <- err
				return
			}
		}
	}()
	r.leave()
	if _, err := io.ReadAll(inside); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the program reads %v", err)
	}
	if _, err := io.ReadAll(in); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client reads %v", err)
	}
	if err := <-flooded; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the program that floods: %v", err)
	}
}

func TestConnectRefuses(t *testing.T) {
	r := newRig(t, controlListener, nil)
	r.listening()
	tcp := []string{"Connection: Upgrade", "Upgrade: tcp"}
	for path, want := range map[string]struct {
		status      int
		code, field string
	}{
		"/ports/0/connect": {400, "invalid_request", "port"}, "/ports/65536/connect": {400, "invalid_request", "port"},
		"/ports/-1/connect": {400, "invalid_request", "port"}, "/ports/+80/connect": {400, "invalid_request", "port"},
		"/ports/080/connect": {400, "invalid_request", "port"}, "/ports/http/connect": {400, "invalid_request", "port"},
		"/ports/8%30/connect": {503, "unavailable", "port"}, "/ports/8000%00/connect": {400, "invalid_request", "port"},
		"/ports/8000/connect?x=1": {400, "invalid_request", "x"}, "/ports/8001/connect": {503, "unavailable", "port"},
	} {
		got := r.do("GET", boxURL+path, "", tcp...)
		env := got.envelope(t)
		if got.status != want.status || env.Code != want.code || env.Field != want.field {
			t.Errorf("%s: %d %+v", path, got.status, env)
		}
		if want.status == 503 && (got.header.Get("Retry-After") != "1" || !env.Retryable) {
			t.Errorf("%s: Retry-After %q, %+v", path, got.header.Get("Retry-After"), env)
		}
	}
	for _, upgrade := range [][]string{nil, {"Connection: Upgrade", "Upgrade: h2c"}, {"Connection: Upgrade", "Upgrade: tcp, websocket"}} {
		if got := r.do("GET", boxURL+"/ports/8000/connect", "", upgrade...); got.status != 400 || got.envelope(t).Field != "Upgrade" {
			t.Errorf("%q: %d %s", upgrade, got.status, got.body)
		}
	}
	// As a WebSocket it would be refused in the same words.
	if got := r.do("GET", boxURL+"/ports/8001/connect", "", "Connection: Upgrade", "Upgrade: websocket", "Sec-Websocket-Version: 13", "Sec-Websocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="); got.status != 503 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestListPorts(t *testing.T) {
	r := newRig(t, controlListener, nil)
	if got := r.do("GET", boxURL+"/ports", ""); got.status != 200 || got.body != `{"ports":[],"incomplete":false}`+"\n" {
		t.Errorf("%+v", got)
	}
	r.double.ports = sandboxd.PortList{Incomplete: true, Ports: []sandboxd.Port{{Port: 80, Address: "::"}, {Port: 8000, Address: "127.0.0.1", PID: 7, Process: "python3", CommandID: "c1"}}}
	want := `{"ports":[{"port":80,"address":"::"},{"port":8000,"address":"127.0.0.1","pid":7,"process":"python3","command_id":"c1"}],"incomplete":true}` + "\n"
	if got := r.do("GET", boxURL+"/ports", ""); got.status != 200 || got.body != want {
		t.Errorf("%+v", got)
	}
}

// TestAClientThatEndsItsHalfAtOnceIsNotGone ends a client's half with the first byte
// of the answer: the program still answers.
func TestAClientThatEndsItsHalfAtOnceIsNotGone(t *testing.T) {
	r := newRig(t, controlListener, nil)
	programs := r.listening()
	for i := range 200 {
		conn, in, _ := r.upgraded("")
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		inside := <-programs
		if got, err := io.ReadAll(inside); err != nil || len(got) != 0 {
			t.Fatalf("connection %d: the program reads %q, %v", i, got, err)
		}
		if _, err := io.WriteString(inside, "answer"); err != nil {
			t.Fatal(err)
		}
		inside.Close()
		if got, err := io.ReadAll(in); err != nil || string(got) != "answer" {
			t.Fatalf("connection %d: %q, %v", i, got, err)
		}
		conn.Close()
	}
}
