package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"
	"unicode/utf8"

	"sandboxd"
	"sandboxd/internal/excerpt"
)

const frameDoc = `one JSON object a line, {"stream","offset","data"} or "b64" where the bytes are not UTF-8 text, {"gap":{"from","to"}} where they are no longer kept, and last {"ending":{...}} when the command has ended; an {"error":{...}} line ends a stream that broke; blank lines keep an idle one alive`

// line is one line of an output stream.
type line struct {
	CommandID string           `json:"command_id,omitempty"`
	Stream    sandboxd.Stream  `json:"stream,omitempty"`
	Offset    *int64           `json:"offset,omitempty"`
	Data      string           `json:"data,omitempty"`
	B64       string           `json:"b64,omitempty"`
	Gap       *sandboxd.Gap    `json:"gap,omitempty"`
	Ending    *sandboxd.Ending `json:"ending,omitempty"`
	Error     *EnvelopeError   `json:"error,omitempty"`
}

// pumped is what a pump read: a frame of its own bytes, or why there is no more.
type pumped struct {
	frame sandboxd.Frame
	err   error
}

// pump reads a stream in a goroutine of its own, because Next blocks and the
// reader also has clocks to watch. It ends when ctx does or the stream is over.
func pump(ctx context.Context, stream sandboxd.CommandStream) <-chan pumped {
	out := make(chan pumped, 4)
	go func() {
		defer close(out)
		for {
			frame, err := stream.Next(ctx)
			frame.Data = bytes.Clone(frame.Data)
			select {
			case out <- pumped{frame, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// lineWriter turns frames into lines. Characters that a frame's border cuts are
// joined when the next frame continues at the next offset.
type lineWriter struct {
	enc  *json.Encoder
	held sandboxd.Frame // up to 3 bytes, the begin of a character
}

func newLineWriter(w io.Writer) *lineWriter {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return &lineWriter{enc: enc}
}

func (l *lineWriter) frame(f sandboxd.Frame) error {
	if len(l.held.Data) > 0 {
		if len(f.Data) > 0 && f.Stream == l.held.Stream && f.Offset == l.held.Offset+int64(len(l.held.Data)) {
			f.Data, f.Offset = append(l.held.Data, f.Data...), l.held.Offset
			l.held = sandboxd.Frame{}
		} else if err := l.flushHeld(); err != nil {
			return err
		}
	}
	if len(f.Data) > 0 {
		cut := len(f.Data) - excerpt.Unfinished(f.Data)
		if tail := f.Data[cut:]; len(tail) > 0 {
			l.held = sandboxd.Frame{Stream: f.Stream, Offset: f.Offset + int64(cut), Data: bytes.Clone(tail)}
			f.Data = f.Data[:cut]
		}
		if err := l.data(f); err != nil {
			return err
		}
	}
	if f.Gap != nil {
		if err := l.enc.Encode(line{Gap: f.Gap}); err != nil {
			return err
		}
	}
	if f.Ending != nil {
		if err := l.flushHeld(); err != nil {
			return err
		}
		return l.enc.Encode(line{Ending: f.Ending})
	}
	return nil
}

func (l *lineWriter) data(f sandboxd.Frame) error {
	if len(f.Data) == 0 {
		return nil
	}
	out := line{Stream: f.Stream, Offset: &f.Offset}
	// Text never has NUL; as JSON each would be six bytes.
	if utf8.Valid(f.Data) && bytes.IndexByte(f.Data, 0) < 0 {
		out.Data = string(f.Data)
	} else {
		out.B64 = base64.StdEncoding.EncodeToString(f.Data)
	}
	return l.enc.Encode(out)
}

// flushHeld gives up waiting for the rest of a character.
func (l *lineWriter) flushHeld() error {
	held := l.held
	l.held = sandboxd.Frame{}
	return l.data(held)
}

// streamBuffer is how much is collected while more frames are waiting.
const streamBuffer = 64 << 10

// sendFrames answers a command's output as lines until the stream is over, and
// reports whether the ending was among them. first, if any, is the first line. A
// stream that breaks ends in an error line; the error is that of a client that
// went away.
func (f *face) sendFrames(w http.ResponseWriter, r *http.Request, stream sandboxd.CommandStream, first *line) (ended bool, err error) {
	ctx, cancel := context.WithCancel(r.Context())
	frames := pump(ctx, stream)
	defer func() {
		cancel()
		for range frames { // the pump lets go of the stream before the caller closes it
		}
	}()
	startStream(w, ndjson)
	out := &batch{w: w}
	lines := newLineWriter(out)
	if first != nil {
		_ = lines.enc.Encode(first)
	}
	if err := out.send(); err != nil {
		return false, err
	}
	beat := time.NewTimer(f.pace.heartbeat)
	defer beat.Stop()
	for over := false; !over; {
		var partial <-chan time.Time
		if len(lines.held.Data) > 0 {
			partial = time.After(f.pace.partial)
		}
		beat.Reset(f.pace.heartbeat)
		select {
		case p, open := <-frames:
			if !open {
				return ended, ctx.Err()
			}
			_ = lines.frame(p.frame)
			ended = ended || p.frame.Ending != nil
			if over = p.err != nil; over {
				_ = lines.flushHeld()
				lines.broken(r, p.err)
			}
		case <-partial:
			_ = lines.flushHeld()
		case <-beat.C:
			out.WriteByte('\n')
		}
		if !over && len(frames) > 0 && out.Len() < streamBuffer {
			continue
		}
		if out.Len() == 0 {
			continue
		}
		if err := out.send(); err != nil {
			return ended, err
		}
	}
	return ended, ctx.Err()
}

// broken writes the line that ends a stream which did not end well.
func (l *lineWriter) broken(r *http.Request, err error) {
	if errors.Is(err, io.EOF) {
		return
	}
	note(r.Context(), err)
	_ = l.enc.Encode(line{Error: &envelope(err).Err})
}
