package journal

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"sandboxd"
)

// buffers are what a follower needs while it reads; one that waits gives them back.
type buffers struct {
	raw [2 * maxRecord]byte
	out [maxRecord]byte
}

var bufferPool = sync.Pool{New: func() any { return new(buffers) }}

// reader is a follower. It is for one goroutine.
type reader struct {
	j      *Journal
	follow bool
	at     int64 // offset of the next byte to deliver
	stop   int64 // without follow: where to end
	done   bool

	// The place in the segment that is read: where the bytes in hand came from.
	placed bool
	seg    segment // start names it; size is how far it may be read
	file   *os.File
	pos    int64 // position in the file after the bytes in hand
	buf    *buffers
	hand   []byte // bytes of buf.raw that are read and not yet parsed
}

// Follow reads from opts.Offset: with Follow until the ending, otherwise what is
// there now. Frames carry at most 32 KiB. Where bytes are no longer kept, or not
// readable, there is a gap instead. ClassRange beyond Next.
func (j *Journal) Follow(opts sandboxd.FollowOptions) (sandboxd.CommandStream, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case opts.Offset < 0:
		return nil, sandboxd.Invalid("offset", "must not be negative")
	case opts.Offset > j.next:
		return nil, sandboxd.Errorf(sandboxd.ClassRange, "offset %d is beyond the end of the output, %d", opts.Offset, j.next)
	case j.closed && j.ending == nil:
		return nil, errClosed()
	}
	return &reader{j: j, follow: opts.Follow, at: opts.Offset, stop: j.next}, nil
}

// Next implements sandboxd.CommandStream.
func (r *reader) Next(ctx context.Context) (sandboxd.Frame, error) {
	for {
		if err := ctx.Err(); err != nil {
			return sandboxd.Frame{}, err
		}
		if r.done {
			return sandboxd.Frame{}, io.EOF
		}
		j := r.j
		j.mu.Lock()
		next, ending, closed := j.next, j.ending, j.closed
		var wake chan struct{}
		if r.follow && r.at == next && ending == nil && !closed {
			if j.wake == nil {
				j.wake = make(chan struct{})
			}
			wake = j.wake
		}
		j.mu.Unlock()

		limit := next
		if !r.follow {
			limit = r.stop
		}
		switch {
		case closed && ending == nil:
			r.release()
			return sandboxd.Frame{}, errClosed()
		case r.at < limit:
			return r.read(limit)
		case r.at == next && ending != nil:
			r.finish()
			return sandboxd.Frame{Offset: r.at, Ending: ending}, nil
		case !r.follow:
			r.finish()
			return sandboxd.Frame{}, io.EOF
		}
		if err := r.wait(ctx, wake); err != nil {
			return sandboxd.Frame{}, err
		}
	}
}

// wait returns at the journal's next change. A follower that waits long holds
// neither descriptor nor buffers.
func (r *reader) wait(ctx context.Context, wake chan struct{}) error {
	var idle <-chan time.Time
	if r.file != nil || r.buf != nil {
		timer := time.NewTimer(idleAfter)
		defer timer.Stop()
		idle = timer.C
	}
	for {
		select {
		case <-wake:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-idle:
			r.release()
			idle = nil
		}
	}
}

// read delivers the next piece before limit, which is at most the journal's end.
func (r *reader) read(limit int64) (sandboxd.Frame, error) {
	if r.buf == nil {
		r.buf = bufferPool.Get().(*buffers)
	}
	out := r.buf.out[:0]
	frame := sandboxd.Frame{Offset: r.at}
	for r.at < limit {
		rec, ok, err := r.record()
		if err != nil && len(out) > 0 {
			break // what was read is delivered; the error comes again
		} else if err != nil {
			return sandboxd.Frame{}, err
		}
		if !ok {
			if len(out) > 0 {
				break
			}
			to, gap := r.leave(limit)
			if gap {
				frame.Gap = &sandboxd.Gap{From: r.at, To: to}
				r.at = to
				return frame, nil
			}
			continue
		}
		if rec.end() <= r.at { // before the offset that was asked for
			r.take(rec)
			continue
		}
		data := rec.data[r.at-rec.offset:]
		if !r.follow {
			data = data[:min(int64(len(data)), limit-r.at)]
		}
		if len(out) > 0 && (rec.stream() != frame.Stream || len(out)+len(data) > maxRecord) {
			break
		}
		frame.Stream = rec.stream()
		out = append(out, data...)
		r.at += int64(len(data))
		r.take(rec)
	}
	frame.Data = out
	return frame, nil
}

// record looks at the record at the reader's place without taking it. It is not
// ok when the segment has no more, whatever the reason.
func (r *reader) record() (record, bool, error) {
	if !r.placed && !r.place() {
		return record{}, false, nil
	}
	for {
		rec, need := parse(r.hand)
		if need == 0 {
			return record{}, false, nil
		}
		if need <= len(r.hand) {
			bad := rec.kind == kindEnding || rec.offset > r.at
			return rec, !bad, nil
		}
		more, err := r.fill()
		if err != nil || !more {
			return record{}, false, err
		}
	}
}

func (r *reader) take(rec record) { r.hand = r.hand[headerSize+len(rec.data):] }

// place finds the segment that holds the byte at r.at.
func (r *reader) place() bool {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	for i := len(r.j.segments) - 1; i >= 0; i-- {
		if seg := r.j.segments[i]; seg.start <= r.at {
			if r.at >= seg.end {
				return false
			}
			r.seg, r.pos, r.placed, r.hand = seg, 0, true, nil
			return true
		}
	}
	return false
}

// leave gives up the segment: nothing of it can be read at r.at. It answers where
// the output goes on, and whether bytes are missing until there.
func (r *reader) leave(limit int64) (to int64, gap bool) {
	was, placed := r.seg, r.placed
	r.closeFile()
	r.placed, r.hand = false, nil
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	for _, seg := range r.j.segments {
		if seg.start > r.at {
			return min(seg.start, limit), true
		}
		// The segment that was left is no answer to its own failure.
		if seg.start <= r.at && r.at < seg.end && !(placed && seg.start == was.start) {
			return r.at, false
		}
	}
	return limit, true
}

// fill reads more of the segment into the hand. It reports false at the end of
// the segment, and when the segment was dropped before it was opened.
func (r *reader) fill() (bool, error) {
	if r.pos >= r.seg.size {
		r.refresh()
		if r.pos >= r.seg.size {
			return false, nil
		}
	}
	if r.file == nil {
		f, err := os.Open(r.j.path(r.seg))
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, diskError(err, "cannot open the journal")
		}
		r.file = f
	}
	kept := copy(r.buf.raw[:], r.hand)
	room := min(int64(len(r.buf.raw)-kept), r.seg.size-r.pos)
	n, err := r.file.ReadAt(r.buf.raw[kept:kept+int(room)], r.pos)
	r.pos += int64(n)
	r.hand = r.buf.raw[:kept+n]
	if err != nil && !errors.Is(err, io.EOF) {
		return false, diskError(err, "cannot read the journal")
	}
	return n > 0, nil
}

// refresh learns how far the segment has grown. A dropped one is not in the list
// any more; it had been complete before, so its file tells.
func (r *reader) refresh() {
	r.j.mu.Lock()
	for i := len(r.j.segments) - 1; i >= 0; i-- {
		if r.j.segments[i].start == r.seg.start {
			r.seg = r.j.segments[i]
			r.j.mu.Unlock()
			return
		}
	}
	r.j.mu.Unlock()
	if r.file != nil {
		if info, err := r.file.Stat(); err == nil {
			r.seg.size = max(r.seg.size, info.Size())
		}
	}
}

// Close implements sandboxd.CommandStream.
func (r *reader) Close() error {
	r.finish()
	return nil
}

func (r *reader) finish() {
	r.done = true
	r.release()
}

// release gives back what a reader that is not reading needs not hold. Bytes in
// hand are read again later.
func (r *reader) release() {
	r.closeFile()
	r.pos -= int64(len(r.hand))
	r.hand = nil
	if r.buf != nil {
		bufferPool.Put(r.buf)
		r.buf = nil
	}
}

func (r *reader) closeFile() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}
