package guest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/builtin"
	"sandboxd/internal/guest/guesttest"
	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// TestOwnPortsAreNotThere has a listener of the process that is the init, on every
// address that a dial tries: it is not dialled and not listed, and hides nothing of
// others.
func TestOwnPortsAreNotThere(t *testing.T) {
	h, g := net.Pipe()
	l, _ := attach(t, inside.New(builtin.Spawner{}, inside.Options{}), h, g)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"} {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			if conn, err := ln.Accept(); err == nil {
				conn.Close()
				t.Errorf("the init's own %s was reached", ln.Addr())
			}
		}()
		port := uint16(ln.Addr().(*net.TCPAddr).Port)
		if _, err := l.Dial(t.Context(), port); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
			t.Errorf("dial of the init's own %s: %v", ln.Addr(), err)
		}
		list, err := l.Ports(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Ports {
			if p.Port == port {
				t.Errorf("the init's own %s is listed: %+v", ln.Addr(), p)
			}
		}
		ln.Close()
		<-accepted
	}
}

// duplex is a connection of the sandbox to nowhere.
type duplex struct{ net.Conn }

func (d duplex) CloseWrite() error { return d.Close() }

// TestDialBound opens as many connections as there may be, and one more.
func TestDialBound(t *testing.T) {
	h, g := net.Pipe()
	l, _ := attach(t, inside.New(builtin.Spawner{}, inside.Options{Dial: func(context.Context, uint16) (net.Conn, error) {
		here, there := net.Pipe()
		t.Cleanup(func() { there.Close() })
		return duplex{here}, nil
	}}), h, g)
	open := make([]guest.Stream, wire.MaxDials)
	for i := range open {
		var err error
		if open[i], err = l.Dial(t.Context(), 1); err != nil {
			t.Fatalf("dial %d: %v", i, err)
		}
	}
	if _, err := l.Dial(t.Context(), 1); sandboxd.ClassOf(err) != sandboxd.ClassCapacity {
		t.Fatalf("one more: %v", err)
	}
	open[7].Close()
	st, err := l.Dial(t.Context(), 1)
	if err != nil {
		t.Fatalf("after one was closed: %v", err)
	}
	st.Close()
}

// TestCloseReachesTheProgram shows that a connection which was half closed and then
// given up ends inside too, though the program does not answer the half close.
func TestCloseReachesTheProgram(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	h, g := net.Pipe()
	l, _ := attach(t, inside.New(builtin.Spawner{}, inside.Options{Dial: func(ctx context.Context, _ uint16) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", ln.Addr().String())
	}}), h, g)
	st, err := l.Dial(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	program, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if err := st.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(program); err != nil {
		t.Fatal(err)
	}
	st.Close()
	// What it writes now goes nowhere: the kernel says so by the second write.
	deadline := time.Now().Add(10 * time.Second)
	for program.SetWriteDeadline(deadline); ; {
		if _, err := program.Write(make([]byte, 1024)); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Fatal("the program can still write")
			}
			break
		}
	}
}

// said is an evil init's answer to Ports.
func said(list any) []byte {
	body, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return body
}

// TestEvilPorts has an init lie about ports and streams. Each time the link must
// end with an error, or the lie have no effect.
func TestEvilPorts(t *testing.T) {
	port := func(p wire.Port) []byte { return said(wire.PortList{Ports: []wire.Port{p}}) }
	many := make([]wire.Port, wire.MaxPorts+1)
	for i := range many {
		many[i] = wire.Port{Port: i + 1, Address: "127.0.0.1"}
	}
	for name, body := range map[string][]byte{
		"NoJSON": []byte("{"), "Array": []byte("[]"), "TooMany": said(wire.PortList{Ports: many}),
		"Port0": port(wire.Port{Address: "::"}), "PortHuge": port(wire.Port{Port: 65536, Address: "::"}),
		"NoAddress": port(wire.Port{Port: 1}), "Zone": port(wire.Port{Port: 1, Address: "fe80::1%evil"}), "Name": port(wire.Port{Port: 1, Address: "evil.example"}),
		"PID": port(wire.Port{Port: 1, Address: "::", PID: -1}), "PIDHuge": port(wire.Port{Port: 1, Address: "::", PID: 1 << 30}),
		"Command": port(wire.Port{Port: 1, Address: "::", Command: "../x"}),
	} {
		t.Run(name, func(t *testing.T) {
			l := evilLink(t, func(e *evil, f wire.Frame) bool {
				return f.Type != wire.TypePorts || e.send(wire.Frame{Type: wire.TypePortList, Arg: f.Arg, Payload: body}) == nil
			})
			if list, err := l.Ports(t.Context()); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || l.Err() == nil {
				t.Fatalf("%+v, %v; the link: %v", list, err, l.Err())
			}
		})
	}
	t.Run("NamesAreMadeHarmless", func(t *testing.T) {
		l := evilLink(t, func(e *evil, f wire.Frame) bool {
			body := fmt.Appendf(nil, `{"ports":[{"port":1,"address":"::","name":"\u001b[2Jx\n%s"}]}`, strings.Repeat("é", 1000))
			for _, arg := range []uint64{f.Arg + 1000, f.Arg, f.Arg} { // unasked, asked, asked twice
				if e.send(wire.Frame{Type: wire.TypePortList, Arg: arg, Payload: body}) != nil {
					return false
				}
			}
			return true
		})
		list, err := l.Ports(t.Context())
		if err != nil || len(list.Ports) != 1 || len(list.Ports[0].Process) > 2*wire.MaxPortName || strings.ContainsAny(list.Ports[0].Process, "\x1b\n") ||
			!strings.HasPrefix(list.Ports[0].Process, "?[2Jx?é") {
			t.Fatalf("%+v, %v", list, err)
		}
	})
	for name, test := range map[string]struct {
		frames []wire.Frame
		want   string
	}{
		"OpenedTwice":     {[]wire.Frame{{Type: wire.TypeOpened}, {Type: wire.TypeOpened}}, "answered twice"},
		"RefusedAndMore":  {[]wire.Frame{{Type: wire.TypeOpened}, {Type: wire.TypeRefused}}, "answered twice"},
		"DataOverCredit":  {[]wire.Frame{{Type: wire.TypeOpened}, {Type: wire.TypeStreamData, Payload: make([]byte, 60_000)}, {Type: wire.TypeStreamData, Payload: make([]byte, 60_000)}}, "more than it was granted"},
		"DataAfterEnd":    {[]wire.Frame{{Type: wire.TypeOpened}, {Type: wire.TypeStreamEnd}, {Type: wire.TypeStreamData, Payload: []byte("x")}}, "more than it was granted"},
		"CreditHuge":      {[]wire.Frame{{Type: wire.TypeOpened}, {Type: wire.TypeStreamCredit, Arg: 1 << 63}}, "granted more"},
		"CreditOverflows": {[]wire.Frame{{Type: wire.TypeOpened}, {Type: wire.TypeStreamCredit, Arg: 1}}, "granted more"},
		"DialOfTheInit":   {[]wire.Frame{{Type: wire.TypeDial, Arg: 80}}, "frame type"},
		"PortsOfTheInit":  {[]wire.Frame{{Type: wire.TypePorts}}, "frame type"},
	} {
		t.Run(name, func(t *testing.T) {
			l := evilLink(t, func(e *evil, f wire.Frame) bool {
				for _, answer := range test.frames {
					answer.Number = f.Number
					if f.Type == wire.TypeDial && e.send(answer) != nil {
						return false
					}
				}
				return true
			})
			_, _ = l.Dial(t.Context(), 80) // opened or not: the link must end
			<-l.Done()
			if err := l.Err(); !strings.Contains(err.Error(), test.want) {
				t.Fatalf("the link ended with %v", err)
			}
		})
	}
	t.Run("GivenUpInsteadOfAnAnswer", func(t *testing.T) {
		l := evilLink(t, func(e *evil, f wire.Frame) bool {
			return f.Type != wire.TypeDial || e.send(wire.Frame{Type: wire.TypeStreamClose, Flags: wire.FlagReset, Number: f.Number}) == nil
		})
		if _, err := l.Dial(t.Context(), 80); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || l.Err() != nil {
			t.Errorf("dial: %v; the link: %v", err, l.Err())
		}
	})
	t.Run("NoAnswer", func(t *testing.T) {
		l := evilLink(t, func(*evil, wire.Frame) bool { return true })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := l.Dial(ctx, 80); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
			t.Errorf("dial: %v", err)
		}
		if _, err := l.Ports(ctx); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
			t.Errorf("ports: %v", err)
		}
	})
	t.Run("Refusal", func(t *testing.T) {
		l := evilLink(t, func(e *evil, f wire.Frame) bool {
			return f.Type != wire.TypeDial || e.send(wire.Frame{Type: wire.TypeRefused, Number: f.Number, Payload: []byte(strings.Repeat("\x1b[2J", 15000))}) == nil
		})
		_, err := l.Dial(t.Context(), 80)
		var e *sandboxd.Error
		if e, _ = err.(*sandboxd.Error); e == nil || strings.Contains(e.Public(), "\x1b") {
			t.Fatalf("%v", err)
		}
	})
}

// evilLink is a link to an init that answers every frame of the host by a function,
// until that answers false.
func evilLink(t *testing.T, answer func(*evil, wire.Frame) bool) *guest.Link {
	t.Helper()
	h, g := net.Pipe()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		e := &evil{t: t, conn: g, r: wire.NewReader(g)}
		if !e.sync() {
			return
		}
		for {
			f, err := e.r.Next()
			if err != nil || !answer(e, f) {
				return
			}
		}
	}()
	l, err := guest.Attach(t.Context(), h, guest.Options{Handler: guesttest.NewSink()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		g.Close()
		<-finished
	})
	return l
}
