package hosttest_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/captest"
)

// screen is what a terminal showed and no one has looked at yet.
type screen struct {
	*client.Terminal
	rest []byte
}

// shows reads a terminal until it shows text. What came after it in the same read
// is kept for the next look.
func (s *screen) shows(t *testing.T, text string) {
	t.Helper()
	buf := make([]byte, 4096)
	for {
		if i := bytes.Index(s.rest, []byte(text)); i >= 0 {
			s.rest = s.rest[i+len(text):]
			return
		}
		n, err := s.Read(buf)
		s.rest = append(s.rest, buf[:n]...)
		if err != nil {
			t.Fatalf("%v after %q, want %q", err, s.rest, text)
		}
	}
}

func types(t *testing.T, term *screen, text string) {
	t.Helper()
	if _, err := io.WriteString(term, text); err != nil {
		t.Fatal(err)
	}
}

func TestTerminalOverProcesses(t *testing.T) {
	captest.Root(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := remote(t, 2, control, processDriver).(*client.Client)
	sb, _, err := c.Open(ctx, sandboxd.OpenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := c.Terminal(ctx, sb.ID, client.TerminalOptions{Size: sandboxd.TTY{Cols: 91, Rows: 31}})
	if err != nil {
		t.Fatal(err)
	}
	term := &screen{Terminal: opened}
	types(t, term, "stty size; echo mark-$((40+2))\r")
	term.shows(t, "31 91\r\n")
	term.shows(t, "mark-42")
	if err := term.Resize(sandboxd.TTY{Cols: 70, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	types(t, term, "stty size\r")
	term.shows(t, "20 70\r\n")
	if err := term.Close(); err != nil {
		t.Fatal(err)
	}

	attached, err := c.Terminal(ctx, sb.ID, client.TerminalOptions{Command: term.CommandID(), Size: sandboxd.TTY{Cols: 66, Rows: 22}})
	if err != nil {
		t.Fatal(err)
	}
	again := &screen{Terminal: attached}
	defer again.Close()
	again.shows(t, "mark-42") // what it showed before is shown again
	types(t, again, "stty size\r")
	again.shows(t, "22 66\r\n")
	types(t, again, "exit 7\r")
	if _, err := io.Copy(io.Discard, again); err != nil {
		t.Fatal(err)
	}
	if e := again.Ending(); e == nil || e.Cause != sandboxd.CauseExit || e.ExitCode == nil || *e.ExitCode != 7 {
		t.Fatalf("%+v", e)
	}
	late, err := c.Terminal(ctx, sb.ID, client.TerminalOptions{Command: term.CommandID()})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if _, err := io.Copy(io.Discard, late); err != nil || late.Ending() == nil {
		t.Fatalf("an ended terminal answers %v, %+v", err, late.Ending())
	}
}
