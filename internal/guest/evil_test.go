package guest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"runtime"
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

// evil plays the init: after an honest set-up it runs a script of frames.
type evil struct {
	t     *testing.T
	conn  net.Conn
	r     *wire.Reader
	w     *wire.Writer
	nonce uint64
}

func (e *evil) send(f wire.Frame) error { return e.w.Send(f) }

// sync answers the host's first frame and reports commands.
func (e *evil) sync(known ...wire.Frame) bool {
	f, err := e.r.Next()
	if err != nil {
		return false
	}
	e.nonce = f.Nonce
	e.w = wire.NewWriter(e.conn, f.Nonce)
	ack, _ := json.Marshal(wire.SyncAck{Version: wire.MaxVersion})
	frames := append([]wire.Frame{{Type: wire.TypeSyncAck, Payload: ack}}, known...)
	return e.w.SendAll(append(frames, wire.Frame{Type: wire.TypeKnownEnd})...) == nil
}

// drain reads what the host says, so that only the script decides.
func (e *evil) drain() {
	for {
		if _, err := e.r.Next(); err != nil {
			return
		}
	}
}

func known(number uint32, id string, base, next int64) wire.Frame {
	return wire.Frame{Type: wire.TypeKnown, Number: number, Arg: uint64(next), Payload: wire.AppendKnown(nil, wire.Known{Base: base, ID: id})}
}

func output(number uint32, offset uint64, n int) wire.Frame {
	return wire.Frame{Type: wire.TypeOutput, Flags: wire.TagStdout, Number: number, Arg: offset, Payload: make([]byte, n)}
}

// stalled never finishes an Output until the test ends, as a full disk that hangs.
type stalled struct{ release chan struct{} }

func (s stalled) Output(string, sandboxd.Stream, int64, []byte) error { <-s.release; return nil }
func (s stalled) Ended(string, int64, wire.Exit)                      { <-s.release }

// TestEvilInit has an init break every rule there is. Each time the link must end
// with an error, soon, and the host's memory must stay where it was.
func TestEvilInit(t *testing.T) {
	one := []wire.Frame{known(1, "c", 0, 0)}
	many := func(n int) (frames []wire.Frame) {
		for i := range n {
			frames = append(frames, known(uint32(i+1), sandboxd.NewID(), 0, 0))
		}
		return frames
	}
	script := func(frames ...wire.Frame) func(*evil) {
		return func(e *evil) {
			for _, f := range frames {
				if e.send(f) != nil {
					return
				}
			}
		}
	}
	cases := []struct {
		name  string
		known []wire.Frame
		run   func(*evil)
		want  string
	}{
		{"OffsetAhead", one, script(output(1, 5, 10)), "at offset 5"},
		{"OffsetRepeated", one, script(output(1, 0, 10), output(1, 0, 10)), "at offset 0"},
		{"OffsetHuge", one, script(output(1, 1<<63, 10)), "at offset"},
		{"EmptyOutput", one, script(output(1, 0, 0)), "at offset"},
		{"OtherStream", one, script(wire.Frame{Type: wire.TypeOutput, Flags: 9, Number: 1, Payload: []byte("x")}), "stream 9"},
		{"NeverUsedNumber", one, script(output(77, 0, 10)), "never used"},
		{"EndedTooEarly", one, script(wire.Frame{Type: wire.TypeEnded, Number: 1, Arg: 9, Payload: []byte("{}")}), "ended at offset"},
		{"EndedIsNoJSON", one, script(wire.Frame{Type: wire.TypeEnded, Number: 1, Payload: []byte("{")}), "malformed"},
		{"OutputAfterEnd", one, script(wire.Frame{Type: wire.TypeEnded, Number: 1, Payload: []byte("{}")}, output(1, 0, 1)), "at offset"},
		{"StartedUnasked", one, script(wire.Frame{Type: wire.TypeStarted, Number: 1}), "started twice"},
		{"StdinCredit", one, script(wire.Frame{Type: wire.TypeStdinCredit, Number: 1, Arg: 1 << 62}), "more input"},
		{"FrameType", one, script(wire.Frame{Type: 200}), "frame type"},
		{"HostFrame", one, script(wire.Frame{Type: wire.TypeStart, Number: 1}), "frame type"},
		{"KnownTwice", []wire.Frame{known(1, "c", 0, 0), known(2, "c", 0, 0)}, nil, "reported twice"},
		{"KnownBadID", []wire.Frame{known(1, "../c", 0, 0)}, nil, "malformed"},
		{"KnownNumber", []wire.Frame{known(1<<31, "c", 0, 0)}, nil, "impossible"},
		{"KnownNegative", []wire.Frame{known(1, "c", -1, 0)}, nil, "out of range"},
		{"KnownBackwards", []wire.Frame{known(1, "c", 9, 3)}, nil, "impossible"},
		{"KnownLostOutput", []wire.Frame{known(1, "c", 100, 200)}, nil, "the host has"},
		{"KnownTooMany", many(wire.MaxCommands + 1), nil, "more than"},
		{"Flood", one, func(e *evil) {
			for at := uint64(0); e.send(output(1, at, 60000)) == nil; at += 60000 {
			}
		}, "unacknowledged"},
		{"FloodOfAll", many(wire.MaxCommands), func(e *evil) {
			for at := uint64(0); ; at += 256 {
				for n := range uint32(wire.MaxCommands) {
					if e.send(output(n+1, at, 256)) != nil {
						return
					}
				}
			}
		}, "unacknowledged"},
		{"Alternate", one, func(e *evil) {
			for at := uint64(0); ; at++ {
				f := output(1, at, 1)
				f.Flags = 1 + uint8(at&1)
				if e.send(f) != nil {
					return
				}
			}
		}, "alternates"},
		{"MillionStreams", nil, func(e *evil) {
			for n := uint32(1); ; n += 2 {
				if e.send(wire.Frame{Type: wire.TypeService, Number: n, Payload: []byte("sink")}) != nil {
					return
				}
			}
		}, "faster than it reads"},
		{"StreamOverCredit", nil, func(e *evil) {
			e.send(wire.Frame{Type: wire.TypeService, Number: 1, Payload: []byte("sink")})
			for e.send(wire.Frame{Type: wire.TypeStreamData, Number: 1, Payload: make([]byte, 30000)}) == nil {
			}
		}, "more than it was granted"},
		{"StreamNumberOfHost", nil, script(wire.Frame{Type: wire.TypeService, Number: 2, Payload: []byte("sink")}), "cannot be opened"},
		{"StreamTwice", nil, script(wire.Frame{Type: wire.TypeService, Number: 1, Payload: []byte("sink")}, wire.Frame{Type: wire.TypeService, Number: 1, Payload: []byte("sink")}), "cannot be opened"},
		{"StreamCredit", nil, script(wire.Frame{Type: wire.TypeService, Number: 1, Payload: []byte("sink")}, wire.Frame{Type: wire.TypeStreamCredit, Number: 1, Arg: 1 << 63}), "granted more"},
		{"Garbage", one, func(e *evil) { e.conn.Write([]byte("HALF-A-FRAM")); e.send(output(1, 0, 1)) }, "no frame"},
		{"GiantLength", one, func(e *evil) {
			b, _ := wire.Append(nil, wire.Frame{Nonce: e.nonce, Type: wire.TypeOutput, Number: 1})
			binary.LittleEndian.PutUint32(b[20:], 0xffffffff)
			e.conn.Write(b)
			e.send(output(1, 0, 1))
		}, "no frame"},
		{"DeadLinks", one, func(e *evil) {
			e.w = wire.NewWriter(e.conn, e.nonce+1)
			for e.send(output(1, 0, 60000)) == nil {
			}
		}, "of no use"},
		{"PongsUnasked", one, func(e *evil) {
			for e.send(wire.Frame{Type: wire.TypePong, Arg: 1 << 40, Payload: make([]byte, 60000)}) == nil {
			}
		}, "of no use"},
		{"Reset", one, script(wire.Frame{Type: wire.TypeReset, Payload: []byte("enough\x00")}), "gave the link up"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := heap()
			h, g := net.Pipe()
			e := &evil{t: t, conn: g, r: wire.NewReader(g)}
			finished := make(chan struct{})
			go func() {
				defer close(finished)
				if e.sync(c.known...) && c.run != nil {
					for range c.known { // the host asks for the output of each
						if _, err := e.r.Next(); err != nil {
							return
						}
					}
					// An init that floods may still read, or not: with a pipe without a
					// buffer it must, or the host's first write would wait.
					go e.drain()
					c.run(e)
				}
			}()
			handler := stalled{make(chan struct{})}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			l, err := guest.Attach(ctx, h, guest.Options{Handler: handler, Have: func(string) (int64, bool) { return 0, true }, Services: map[string]func(guest.Stream){
				"sink": func(rw guest.Stream) { <-handler.release },
			}})
			if err == nil {
				for l.Err() == nil && ctx.Err() == nil {
					if l.Ping(ctx) != nil { // ends with the link
						break
					}
				}
				err = l.Err()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("ended with %v, want %q", err, c.want)
			}
			if grown := heap() - before; grown > 8<<20 {
				t.Errorf("the host's memory grew by %d bytes", grown)
			}
			close(handler.release)
			g.Close()
			<-finished
			if l != nil {
				<-l.Done()
			}
		})
	}
}

// TestNoiseInsteadOfAnAnswer has an init that never says anything: it is not listened
// to for longer than a dead link's rest may take.
func TestNoiseInsteadOfAnAnswer(t *testing.T) {
	for name, block := range map[string][]byte{
		"no frames": bytes.Repeat([]byte("HALF-A-FRAM"), 1000), "frames of a dead link": deadFrame(t),
	} {
		h, g := net.Pipe()
		go io.Copy(io.Discard, g)
		go func() {
			for {
				if _, err := g.Write(block); err != nil {
					return
				}
			}
		}()
		_, err := guest.Attach(t.Context(), h, guest.Options{Handler: guesttest.NewSink()})
		if err == nil || !strings.Contains(err.Error(), "protocol violation") {
			t.Errorf("%s: attach: %v", name, err)
		}
	}
}

func deadFrame(t *testing.T) []byte {
	t.Helper()
	raw, err := wire.Append(nil, wire.Frame{Nonce: 1, Type: wire.TypeOutput, Number: 1, Payload: make([]byte, 60000)})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestSilentInit has an init that answers nothing: Attach ends with its context.
func TestSilentInit(t *testing.T) {
	h, g := net.Pipe()
	go io.Copy(io.Discard, g)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := guest.Attach(ctx, h, guest.Options{Handler: guesttest.NewSink()}); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Fatalf("attach: %v", err)
	}
}

// TestForgedByCommand has a command print what looks like frames of its own link's
// protocol: it is output and nothing else.
func TestForgedByCommand(t *testing.T) {
	server := inside.New(builtin.Spawner{}, inside.Options{})
	defer server.Close()
	h, g := net.Pipe()
	go server.Serve(g)
	sink := guesttest.NewSink()
	l, err := guest.Attach(t.Context(), h, guest.Options{Handler: sink})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	forged, _ := wire.Append(nil, wire.Frame{Type: wire.TypeReset, Payload: []byte("forged")})
	if err := l.Start(t.Context(), wire.Start{ID: "c", Argv: []string{"cat"}, Stdin: true}, nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Stdin(t.Context(), "c", forged, true); err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Wait(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if string(sink.Bytes("c")) != string(forged) || l.Err() != nil {
		t.Fatalf("echo %q, link %v", sink.Bytes("c"), l.Err())
	}
}
