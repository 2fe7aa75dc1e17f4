// Package follow reads the output of one command to its ending, over any number
// of broken streams: what a client does whose server is restarted under it. It
// is not a stream itself and keeps no output.
package follow

import (
	"context"
	"errors"
	"io"
	"time"

	"sandboxd"
)

// A stream that breaks this often in a row without a byte in between is given up;
// the pause before the next try grows by step each time.
const (
	mostBreaks = 10
	step       = 100 * time.Millisecond
)

// Command says whose output is read, and from where.
type Command struct {
	Sandbox, ID string
	Offset      int64
	Partial     bool // only what is there now, without waiting for the ending
}

// Output hands every frame but the ending to put, in order and each once, and
// answers the ending; with Partial that may be the zero value. An error of put
// ends it and is answered as it is.
func Output(ctx context.Context, host sandboxd.Host, c Command, put func(sandboxd.Frame) error) (sandboxd.Ending, error) {
	r := reader{host: host, c: c, put: put}
	for breaks := 0; ; breaks++ {
		before := r.c.Offset
		over, err := r.once(ctx)
		if over {
			return r.ending, err
		}
		if r.c.Offset > before {
			breaks = 0
		}
		if ctx.Err() != nil || breaks >= mostBreaks || sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
			return r.ending, err
		}
		select {
		case <-ctx.Done():
			return r.ending, err
		case <-time.After(time.Duration(breaks+1) * step):
		}
	}
}

type reader struct {
	host   sandboxd.Host
	c      Command
	put    func(sandboxd.Frame) error
	ending sandboxd.Ending
}

// once reads one stream. over says that its outcome, an error too, is final.
func (r *reader) once(ctx context.Context) (over bool, err error) {
	stream, err := r.host.FollowCommand(ctx, r.c.Sandbox, r.c.ID, sandboxd.FollowOptions{Offset: r.c.Offset, Follow: !r.c.Partial})
	if err != nil {
		return false, err
	}
	defer stream.Close()
	for {
		frame, err := stream.Next(ctx)
		switch {
		case errors.Is(err, io.EOF) && r.c.Partial:
			return true, nil
		case errors.Is(err, io.EOF):
			return false, sandboxd.Errorf(sandboxd.ClassUnavailable, "the output ended without an ending")
		case err != nil:
			return false, err
		case frame.Ending != nil:
			r.ending = *frame.Ending
			return true, nil
		}
		if err := r.put(frame); err != nil {
			return true, err
		}
		r.c.Offset = frame.Offset + int64(len(frame.Data))
		if frame.Gap != nil {
			r.c.Offset = frame.Gap.To
		}
	}
}
