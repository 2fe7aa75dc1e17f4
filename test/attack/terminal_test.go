package attack

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandboxd"
	"sandboxd/test/server"
)

// dial opens a terminal's socket and reads nothing from it.
func (b *box) dial(ctx context.Context, query string, header http.Header) (*websocket.Conn, int, error) {
	b.s.t.Helper()
	if header == nil {
		header = http.Header{"Authorization": {"Bearer " + b.s.Key}}
	}
	conn, res, err := websocket.Dial(ctx, "ws://"+b.s.Addr+b.path("/terminal")+query, &websocket.DialOptions{HTTPHeader: header})
	status := 0
	if res != nil {
		status = res.StatusCode
	}
	if err == nil {
		b.s.t.Cleanup(func() { conn.CloseNow() })
	}
	return conn, status, err
}

func TestHostileTerminals(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for name, header := range map[string]http.Header{
		"no secret":               {},
		"a page of another site":  {"Authorization": {"Bearer " + s.Key}, "Origin": {"http://evil.example"}},
		"a secret as subprotocol": {"Sec-WebSocket-Protocol": {s.Key}},
	} {
		if _, status, err := b.dial(ctx, "", header); err == nil || status != 401 && status != 403 {
			t.Errorf("%s: %d, %v", name, status, err)
		}
	}
	for _, query := range []string{"?cols=0x50", "?cols=-1&rows=5", "?cols=99999&rows=5", "?command_id=..", "?command_id=no-such", "?command_id=a&command_id=b", "?shell=evil"} {
		if _, status, err := b.dial(ctx, query, nil); err == nil || status != 400 && status != 404 {
			t.Errorf("%s: %d, %v", query, status, err)
		}
	}
	if list, err := s.C.ListCommands(ctx, b.id); err != nil || len(list) != 0 {
		t.Errorf("refused terminals have started %+v, %v", list, err)
	}

	// What a caller says in a terminal, whatever it is, ends at most the socket.
	big := strings.Repeat("x", 4<<20)
	for name, say := range map[string]struct {
		kind websocket.MessageType
		text string
	}{
		"no JSON": {websocket.MessageText, "{"}, "other JSON": {websocket.MessageText, `[[[{"resize":{}}]]]`}, "no size": {websocket.MessageText, `{"resize":{"cols":0,"rows":-1}}`},
		"a huge size": {websocket.MessageText, `{"resize":{"cols":65535,"rows":65535}}`}, "a size that is none": {websocket.MessageText, `{"resize":{"cols":1e99,"rows":1}}`},
		"an ending": {websocket.MessageText, `{"ending":{"cause":"exit"}}`}, "a huge text": {websocket.MessageText, big}, "huge input": {websocket.MessageBinary, big},
		"control characters": {websocket.MessageBinary, "\x00\x1a\x1c\xff\x1b]0;x\x07\x03\x03\x13"}, "no UTF-8": {websocket.MessageText, "\xff\xfe"},
	} {
		conn, _, err := b.dial(ctx, "?cols=80&rows=24", nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// The server may end the socket under a message that is too large.
		if err := conn.Write(ctx, say.kind, []byte(say.text)); err != nil && len(say.text) < 1<<20 {
			t.Errorf("%s: %v", name, err)
		}
	}
	conn, _, err := b.dial(ctx, "?cols=80&rows=24", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Write(ctx, websocket.MessageBinary, []byte("echo still-$((40+2))\n")); err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	said := ""
	for !strings.Contains(said, "still-42") {
		_, data, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("after %q: %v", said, err)
		}
		said += string(data)
	}

	// Sockets on a flood that nobody reads cost little, and others go on.
	before := s.RSS()
	id := b.begin(sandboxd.CommandSpec{Argv: []string{"./intruder", "flood"}, TTY: &sandboxd.TTY{Cols: 80, Rows: 24}, Background: true, OutputLimit: 4 << 20})
	for range 30 {
		if _, _, err := b.dial(ctx, "?command_id="+id, nil); err != nil {
			t.Fatal(err)
		}
	}
	server.Until(t, "much was written", 30*time.Second, func() bool {
		cmd, err := s.C.GetCommand(ctx, b.id, id)
		return err == nil && cmd.Offset > 16<<20
	})
	if got := b.ok("echo alive"); got != "alive\n" {
		t.Errorf("beside the flood: %q", got)
	}
	if grown := s.RSS() - before; grown > 128<<20 {
		t.Errorf("the server grew by %d MiB", grown>>20)
	}
	if took := b.stop(id); took > time.Second {
		t.Errorf("the stop took %v", took)
	}
}
