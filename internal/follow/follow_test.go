package follow_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"sandboxd"
	"sandboxd/internal/follow"
)

// broken is a host whose streams give some frames each and then break.
type broken struct {
	sandboxd.Host
	streams [][]sandboxd.Frame
	asked   []int64 // offsets
}

var errBroken = sandboxd.Errorf(sandboxd.ClassUnavailable, "it broke")

func (b *broken) FollowCommand(_ context.Context, _, _ string, opts sandboxd.FollowOptions) (sandboxd.CommandStream, error) {
	b.asked = append(b.asked, opts.Offset)
	if len(b.streams) == 0 {
		return nil, errBroken
	}
	s := &stream{frames: b.streams[0], follow: opts.Follow}
	b.streams = b.streams[1:]
	return s, nil
}

type stream struct {
	frames []sandboxd.Frame
	follow bool
}

func (s *stream) Close() error { return nil }

func (s *stream) Next(context.Context) (sandboxd.Frame, error) {
	if len(s.frames) > 0 {
		f := s.frames[0]
		s.frames = s.frames[1:]
		return f, nil
	}
	if s.follow {
		return sandboxd.Frame{}, errBroken
	}
	return sandboxd.Frame{}, io.EOF
}

func data(offset int64, text string) sandboxd.Frame {
	return sandboxd.Frame{Stream: sandboxd.StreamStdout, Offset: offset, Data: []byte(text)}
}

func TestOutputGoesOnWhereAStreamBroke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &broken{streams: [][]sandboxd.Frame{
			{data(0, "ab")}, {}, {{Offset: 2, Gap: &sandboxd.Gap{From: 2, To: 10}}},
			{data(10, "c"), {Ending: &sandboxd.Ending{Cause: sandboxd.CauseExit}}},
		}}
		var text string
		var missed int64
		ending, err := follow.Output(t.Context(), h, follow.Command{}, func(f sandboxd.Frame) error {
			text += string(f.Data)
			if f.Gap != nil {
				missed += f.Gap.To - f.Gap.From
			}
			return nil
		})
		if err != nil || ending.Cause != sandboxd.CauseExit || text != "abc" || missed != 8 {
			t.Errorf("%q, %d missed, %+v, %v", text, missed, ending, err)
		}
		if len(h.asked) != 4 || h.asked[1] != 2 || h.asked[3] != 10 {
			t.Errorf("asked from %v", h.asked)
		}
	})
}

func TestOutputGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &broken{}
		_, err := follow.Output(t.Context(), h, follow.Command{}, nil)
		if !errors.Is(err, errBroken) || len(h.asked) != 11 {
			t.Errorf("%v after %d tries", err, len(h.asked))
		}
		full := errors.New("full")
		h = &broken{streams: [][]sandboxd.Frame{{data(0, "a")}}}
		if _, err := follow.Output(t.Context(), h, follow.Command{}, func(sandboxd.Frame) error { return full }); !errors.Is(err, full) || len(h.asked) != 1 {
			t.Errorf("%v after %d tries", err, len(h.asked))
		}
		h = &broken{streams: [][]sandboxd.Frame{{data(0, "a")}}}
		ending, err := follow.Output(t.Context(), h, follow.Command{Partial: true}, func(sandboxd.Frame) error { return nil })
		if err != nil || ending.Cause != "" || len(h.asked) != 1 {
			t.Errorf("partial: %+v, %v after %d tries", ending, err, len(h.asked))
		}
	})
}
