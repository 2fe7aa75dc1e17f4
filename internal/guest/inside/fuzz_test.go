package inside_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"

	"sandboxd/internal/guest/builtin"
	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// half is a connection whose half close is a whole one.
type half struct{ net.Conn }

func (h half) CloseWrite() error { return h.Close() }

// FuzzInside gives a server what a host may say: frames that are well formed as
// bytes, from short records, and then the records themselves. It must neither
// panic nor stay.
func FuzzInside(f *testing.F) {
	frame := func(typ wire.Type, flags uint8, number uint8, arg uint8, payload string) []byte {
		return append([]byte{byte(typ), flags, number, arg, byte(len(payload))}, payload...)
	}
	start := frame(wire.TypeStart, 0, 1, 0, `{"id":"c","argv":["cat"],"stdin":true}`)
	f.Add(start)
	f.Add(append(start, frame(wire.TypeStdin, 1, 1, 0, "in")...))
	f.Add(append(start, frame(wire.TypeSignal, 0, 1, 9, "")...))
	f.Add(append(start, frame(wire.TypeAck, 0, 1, 200, "")...))
	f.Add(append(start, frame(wire.TypeForget, 0, 1, 0, "")...))
	f.Add(append(start, start...))
	f.Add(frame(wire.TypeStart, 1, 1, 0, `{"id"`))
	f.Add(frame(wire.TypeStart, 0, 1, 0, `{"id":"c","argv":["cat"],"groups":-1}`))
	f.Add(frame(wire.TypeStart, 0, 1, 0, `{"id":"c","argv":["cat"],"groups":3}`))
	f.Add(frame(wire.TypeDial, 0, 2, 80, ""))
	f.Add(append(frame(wire.TypeDial, 0, 2, 80, ""), append(frame(wire.TypeStreamData, 0, 2, 0, "data"), frame(wire.TypeStreamEnd, 0, 2, 0, "")...)...))
	f.Add(append(frame(wire.TypePorts, 0, 0, 7, ""), frame(wire.TypeStreamClose, wire.FlagReset, 2, 0, "")...))
	f.Add(frame(wire.TypeSync, 0, 0, 0, `{"min":1,"max":9}`))
	f.Fuzz(func(t *testing.T, script []byte) {
		loopback := builtin.NewLoopback()
		server := inside.New(builtin.Spawner{Loopback: loopback}, inside.Options{Ports: loopback.Ports, Listen: loopback.Listen, Dial: func(_ context.Context, port uint16) (net.Conn, error) {
			if port != 80 {
				return nil, errors.New("nothing listens")
			}
			here, there := net.Pipe()
			go func() {
				io.Copy(there, there)
				there.Close()
			}()
			return half{here}, nil
		}})
		h, g := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			server.Serve(g)
		}()
		go io.Copy(io.Discard, h)
		w := wire.NewWriter(h, 1)
		body, _ := json.Marshal(wire.Sync{Min: 1, Max: 1})
		err := w.Send(wire.Frame{Type: wire.TypeSync, Payload: body})
		for b := script; err == nil && len(b) >= 5; {
			n := min(int(b[4]), len(b)-5)
			err = w.Send(wire.Frame{Type: wire.Type(b[0]), Flags: b[1], Number: uint32(b[2]), Arg: uint64(b[3]), Payload: b[5 : 5+n]})
			b = b[5+n:]
		}
		if err == nil {
			h.Write(script)
		}
		h.Close()
		<-served
		server.Close()
	})
}
