package guest_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// lingering is a process whose leader ends at once, while a background child, this
// test, holds its output open.
type lingering struct {
	r io.ReadCloser
	w *os.File
}

func (l lingering) Spawn(spec wire.Start, groups []int) (inside.Process, error) {
	_, err := l.w.WriteString("written before the end")
	return l, err
}
func (l lingering) Stdin() io.WriteCloser    { return nil }
func (l lingering) Outputs() []inside.Output { return []inside.Output{{Tag: wire.TagStdout, R: l.r}} }
func (l lingering) Signal(int) error         { return nil }
func (l lingering) Resize(_, _ uint16) error { return nil }
func (l lingering) Wait() wire.Exit          { return wire.Exit{Code: 5} }

// TestWaitRules shows what a background child means: by the leader rule the command
// ends with what was written, by the pipes rule when the child lets go.
func TestWaitRules(t *testing.T) {
	for _, rule := range []string{"leader", "pipes"} {
		t.Run(rule, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			h, g := net.Pipe()
			l, sink := attach(t, inside.New(lingering{r, w}, inside.Options{}), h, g)
			if err := l.Start(t.Context(), wire.Start{ID: "c", Argv: []string{"x"}, Wait: rule}, nil); err != nil {
				t.Fatal(err)
			}
			want := "written before the end"
			if rule == "pipes" {
				if _, err := w.WriteString(", and after it"); err != nil {
					t.Fatal(err)
				}
				want += ", and after it"
				w.Close()
			}
			exit, err := sink.Wait(t.Context(), "c")
			if err != nil || exit.Code != 5 || string(sink.Bytes("c")) != want {
				t.Fatalf("%+v %v %q", exit, err, sink.Bytes("c"))
			}
		})
	}
}

// slow is a pipe whose reader does not get to run while there is something to read, as
// on a machine that is busy.
type slow struct {
	*os.File
	run <-chan struct{}
}

func (s slow) Read(b []byte) (int, error) {
	<-s.run
	return s.File.Read(b)
}

// TestOutputOfABusyMachine: what the leader wrote is not given up because its reader
// comes late.
func TestOutputOfABusyMachine(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	run := make(chan struct{})
	h, g := net.Pipe()
	l, sink := attach(t, inside.New(lingering{slow{r, run}, w}, inside.Options{}), h, g)
	if err := l.Start(t.Context(), wire.Start{ID: "c", Argv: []string{"x"}, Wait: "leader"}, nil); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(300*time.Millisecond, func() { close(run) })
	defer late.Stop()
	exit, err := sink.Wait(t.Context(), "c")
	if err != nil || exit.Code != 5 || string(sink.Bytes("c")) != "written before the end" {
		t.Fatalf("%+v %v %q", exit, err, sink.Bytes("c"))
	}
}
