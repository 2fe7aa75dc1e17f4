package guesttest

import (
	"context"
	"fmt"
	"sync"

	"sandboxd"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
)

// Sink is a Handler that keeps everything in memory and checks that offsets are
// without gaps and repetitions. It outlives links, as a journal does.
type Sink struct {
	mu       sync.Mutex
	changed  chan struct{}
	commands map[string]*kept
	err      error
}

type kept struct {
	all     []byte
	streams map[sandboxd.Stream][]byte
	exit    *wire.Exit
	stalled chan struct{}
	entered bool // Output was called
}

var _ guest.Handler = (*Sink)(nil)

// NewSink makes an empty one.
func NewSink() *Sink {
	return &Sink{changed: make(chan struct{}), commands: map[string]*kept{}}
}

func (s *Sink) command(id string) *kept {
	k := s.commands[id]
	if k == nil {
		k = &kept{streams: map[sandboxd.Stream][]byte{}}
		s.commands[id] = k
	}
	return k
}

func (s *Sink) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Output implements guest.Handler.
func (s *Sink) Output(id string, stream sandboxd.Stream, offset int64, data []byte) error {
	s.mu.Lock()
	stalled := s.command(id).stalled
	s.command(id).entered = true
	s.notify()
	s.mu.Unlock()
	if stalled != nil {
		<-stalled
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.command(id)
	if offset != int64(len(k.all)) && s.err == nil {
		s.err = fmt.Errorf("command %s: output at %d, expected %d", id, offset, len(k.all))
		return s.err
	}
	k.all = append(k.all, data...)
	k.streams[stream] = append(k.streams[stream], data...)
	s.notify()
	return nil
}

// Ended implements guest.Handler.
func (s *Sink) Ended(id string, offset int64, exit wire.Exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.command(id)
	if offset != int64(len(k.all)) && s.err == nil {
		s.err = fmt.Errorf("command %s: ended at %d, has %d", id, offset, len(k.all))
	}
	k.exit = &exit
	s.notify()
}

// Have is for guest.Options.
func (s *Sink) Have(id string) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.commands[id]
	if k == nil {
		return 0, true
	}
	return int64(len(k.all)), true
}

// Stall makes Output of a command block until the answer is called.
func (s *Sink) Stall(id string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	s.command(id).stalled = c
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.command(id).stalled = nil
		close(c)
	}
}

// Again forgets an ending, so that Wait waits for the next.
func (s *Sink) Again(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.command(id).exit = nil
}

// Err is the first fault of offsets.
func (s *Sink) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Bytes is a command's output so far.
func (s *Sink) Bytes(id string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.command(id).all
}

// Text is one stream of it.
func (s *Sink) Text(id string, stream sandboxd.Stream) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.command(id).streams[stream])
}

// Wait waits for the ending of a command.
func (s *Sink) Wait(ctx context.Context, id string) (exit wire.Exit, err error) {
	err = s.until(ctx, func() bool {
		if k := s.command(id); k.exit != nil {
			exit = *k.exit
			return true
		}
		return false
	})
	return exit, err
}

// Entered waits until Output was called for a command, even if it stalls.
func (s *Sink) Entered(ctx context.Context, id string) error {
	return s.until(ctx, func() bool { return s.command(id).entered })
}

// Reach waits until so many bytes of a command came.
func (s *Sink) Reach(ctx context.Context, id string, size int64) error {
	return s.until(ctx, func() bool { return int64(len(s.command(id).all)) >= size })
}

func (s *Sink) until(ctx context.Context, ok func() bool) error {
	for {
		s.mu.Lock()
		done, err, changed := ok(), s.err, s.changed
		s.mu.Unlock()
		if err != nil || done {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain: %w", ctx.Err())
		}
	}
}
