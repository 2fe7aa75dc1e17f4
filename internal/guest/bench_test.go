package guest_test

import (
	"strconv"
	"testing"

	"sandboxd"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/builtin"
	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// taker is a Handler that only counts.
type taker struct {
	ended chan string
}

func (taker) Output(string, sandboxd.Stream, int64, []byte) error { return nil }
func (t taker) Ended(id string, _ int64, _ wire.Exit)             { t.ended <- id }

func benchLink(b *testing.B) (*guest.Link, taker) {
	server := inside.New(builtin.Spawner{}, inside.Options{})
	h, g, err := socketPair()
	if err != nil {
		b.Fatal(err)
	}
	go server.Serve(g)
	handler := taker{make(chan string, 1)}
	l, err := guest.Attach(b.Context(), h, guest.Options{Handler: handler})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close(); server.Close() })
	return l, handler
}

// BenchmarkCommand is the protocol's share of a command: start, started, ended.
func BenchmarkCommand(b *testing.B) {
	l, handler := benchLink(b)
	for i := 0; b.Loop(); i++ {
		if err := l.Start(b.Context(), wire.Start{ID: strconv.Itoa(i), Argv: []string{"true"}}, nil); err != nil {
			b.Fatal(err)
		}
		l.Forget(<-handler.ended)
	}
}

// BenchmarkOutput is output from a program's pipe to the handler, acknowledged.
func BenchmarkOutput(b *testing.B) {
	const size = 16 << 20
	b.SetBytes(size)
	l, handler := benchLink(b)
	for i := 0; b.Loop(); i++ {
		if err := l.Start(b.Context(), wire.Start{ID: strconv.Itoa(i), Argv: []string{"flood", strconv.Itoa(size)}}, nil); err != nil {
			b.Fatal(err)
		}
		l.Forget(<-handler.ended)
	}
}
