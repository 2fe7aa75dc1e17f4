package guest_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"sandboxd/internal/guest"
	"sandboxd/internal/guest/guesttest"
	"sandboxd/internal/guest/wire"
)

// FuzzHostLink gives a link what an init may say, in frames that are well formed
// as bytes: 14 bytes of type, flags, number and Arg, then a length and a payload.
func FuzzHostLink(f *testing.F) {
	frame := func(typ wire.Type, flags uint8, number uint8, arg uint8, payload string) []byte {
		return append([]byte{byte(typ), flags, number, arg, byte(len(payload))}, payload...)
	}
	f.Add(frame(wire.TypeOutput, 1, 1, 0, "hello"))
	f.Add(append(frame(wire.TypeOutput, 2, 1, 0, "x"), frame(wire.TypeEnded, 0, 1, 1, "{}")...))
	f.Add(frame(wire.TypeService, 0, 1, 0, "s"))
	f.Add(append(frame(wire.TypeService, 0, 1, 0, "s"), frame(wire.TypeStreamData, 0, 1, 0, "data")...))
	f.Add(frame(wire.TypeStdinCredit, 0, 1, 200, ""))
	f.Add(append(frame(wire.TypeOpened, 0, 2, 0, ""), append(frame(wire.TypeStreamData, 0, 2, 0, "data"), frame(wire.TypeStreamClose, wire.FlagReset, 2, 0, "")...)...))
	f.Add(append(frame(wire.TypeOpened, 0, 2, 0, ""), append(frame(wire.TypeStreamEnd, 0, 2, 0, ""), frame(wire.TypeStreamCredit, 0, 2, 9, "")...)...))
	f.Add(frame(wire.TypePortList, 0, 0, 1, `{"ports":[{"port":1,"address":"::","name":"x"}]}`))
	f.Add([]byte{0xf7, 'S', 'b', 0x9d})
	f.Fuzz(func(t *testing.T, script []byte) {
		h, g := net.Pipe()
		var work sync.WaitGroup
		work.Go(func() {
			defer g.Close()
			r := wire.NewReader(g)
			first, err := r.Next()
			if err != nil {
				return
			}
			w := wire.NewWriter(g, first.Nonce)
			ack, _ := json.Marshal(wire.SyncAck{Version: wire.MaxVersion})
			if w.SendAll(wire.Frame{Type: wire.TypeSyncAck, Payload: ack}, known(1, "c", 0, 0), wire.Frame{Type: wire.TypeKnownEnd}) != nil {
				return
			}
			work.Go(func() { io.Copy(io.Discard, g) })
			for b := script; len(b) >= 5; {
				n := min(int(b[4]), len(b)-5)
				if w.Send(wire.Frame{Type: wire.Type(b[0]), Flags: b[1], Number: uint32(b[2]), Arg: uint64(b[3]), Payload: b[5 : 5+n]}) != nil {
					return
				}
				b = b[5+n:]
			}
			g.Write(script)
		})
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		l, err := guest.Attach(ctx, h, guest.Options{Handler: guesttest.NewSink(), Services: map[string]func(guest.Stream){
			"s": func(rw guest.Stream) { io.Copy(rw, rw) },
		}})
		if err == nil {
			work.Go(func() {
				if st, err := l.Dial(ctx, 80); err == nil {
					io.Copy(st, st)
					st.Close()
				}
			})
			work.Go(func() { l.Ports(ctx) })
			<-l.Done()
			if l.Err() == nil {
				t.Error("a link ended without a reason")
			}
		}
		work.Wait()
	})
}
