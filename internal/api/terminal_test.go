package api

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandboxd"
)

func (r *rig) socket(ctx context.Context, query string, header ...string) (*websocket.Conn, *http.Response, error) {
	h := http.Header{"Authorization": {"Bearer " + testToken}}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		h.Set(name, value)
	}
	return websocket.Dial(ctx, "ws://"+r.addr+boxURL+"/terminal"+query, &websocket.DialOptions{HTTPHeader: h})
}

// feed is a CommandStream of what is sent to it.
type feed struct {
	frames chan sandboxd.Frame
	closed chan struct{}
}

func (f *feed) Next(ctx context.Context) (sandboxd.Frame, error) {
	select {
	case frame := <-f.frames:
		return frame, nil
	case <-ctx.Done():
		return sandboxd.Frame{}, ctx.Err()
	}
}

func (f *feed) Close() error {
	close(f.closed)
	return nil
}

func TestTerminal(t *testing.T) {
	r := newRig(t, controlListener, func(_ *Config, p *pace) { p.ping = 50 * time.Millisecond })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	f := &feed{make(chan sandboxd.Frame, 1), make(chan struct{})}
	r.double.frames = func() sandboxd.CommandStream { return f }
	var spec sandboxd.CommandSpec
	r.double.start = func(s sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
		spec = s
		return sandboxd.Command{ID: "shell", TTY: true}, true, nil
	}
	conn, _, err := r.socket(ctx, "?cols=120&rows=40")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	read := func(kind websocket.MessageType, want string) {
		t.Helper()
		k, data, err := conn.Read(ctx)
		if err != nil || k != kind || !strings.HasPrefix(string(data), want) {
			t.Fatalf("%v %q %v, want %q", k, data, err, want)
		}
	}
	read(websocket.MessageText, `{"command_id":"shell"}`)
	if spec.TTY == nil || *spec.TTY != (sandboxd.TTY{Cols: 120, Rows: 40}) || !spec.StdinOpen || spec.OrphanAfterS != 600 ||
		spec.TimeoutS == nil || *spec.TimeoutS != 0 || spec.Background {
		t.Fatalf("%+v", spec)
	}
	f.frames <- out(0, "$ \xff")
	read(websocket.MessageBinary, "$ \xff")
	for _, msg := range []string{"ls\r", "\x03"} {
		if err := conn.Write(ctx, websocket.MessageBinary, []byte(msg)); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"nonsense", `{"resize":{"cols":0,"rows":1}}`, `{"other":1}`, `{"resize":{"cols":99,"rows":33}}`} {
		if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	r.await("input and size arrive", func(d *double) bool {
		return bytes.Equal(d.typed.Bytes(), []byte("ls\r\x03")) && len(d.sizes) == 1 && d.sizes[0] == sandboxd.TTY{Cols: 99, Rows: 33}
	})
	f.frames <- ended(0)
	read(websocket.MessageText, `{"ending":{"cause":"exit"`)
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Fatalf("%v", err)
	}
	<-f.closed
}

func TestTerminalDetachLeavesTheCommand(t *testing.T) {
	r := newRig(t, controlListener, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	f := &feed{make(chan sandboxd.Frame, 1), make(chan struct{})}
	r.double.frames = func() sandboxd.CommandStream { return f }
	r.double.command = sandboxd.Command{ID: "old", TTY: true, Offset: 1 << 20}
	conn, _, err := r.socket(ctx, "?command_id=old")
	if err != nil {
		t.Fatal(err)
	}
	conn.CloseNow()
	select {
	case <-f.closed:
	case <-ctx.Done():
		t.Fatal("the stream outlives the socket")
	}
	if len(r.double.stopped) != 0 || len(r.double.offsets) != 1 || r.double.offsets[0] != 1<<20-terminalReplay {
		t.Fatalf("stopped %v, read from %v", r.double.stopped, r.double.offsets)
	}
}

func TestTerminalRefusals(t *testing.T) {
	r := newRig(t, controlListener, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r.double.command = sandboxd.Command{ID: "plain"}
	for query, header := range map[string]string{"?command_id=plain": "X-A: b", "?cols=99999": "X-A: b", "": "Origin: http://evil.example"} {
		conn, res, err := r.socket(ctx, query, header)
		if err == nil {
			conn.CloseNow()
			t.Fatalf("%s was accepted", query)
		}
		want := 400
		if query == "" {
			want = 403
		}
		if res == nil || res.StatusCode != want {
			t.Errorf("%s: %v", query, res)
		}
	}
}
