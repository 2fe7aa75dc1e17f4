package wire

import (
	"bytes"
	"fmt"
	"io"
)

// MaxStale bounds the bytes that one link takes of no use: what is no frame, and what
// is of dead links. A dead link leaves less than its windows; who sends more wants to
// keep the other side busy.
const MaxStale = 8 << 20

// Reader finds frames in a stream, also in one that begins with, or has in it,
// bytes that are no frame. It is for one goroutine.
type Reader struct {
	r       io.Reader
	buf     []byte
	lo, hi  int
	skipped int64
}

// NewReader reads frames from r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: r, buf: make([]byte, MaxFrame)}
}

// Skipped counts the bytes passed over because no frame began at them. A link
// that is set up treats any growth as a fault.
func (r *Reader) Skipped() int64 { return r.skipped }

// Next returns the next whole frame. What lies before it is skipped. Its payload
// is valid until the next call. The error is the stream's; a stream that ends
// inside a frame ends with io.ErrUnexpectedEOF. One that skips more than MaxStale
// is ErrProtocol.
func (r *Reader) Next() (Frame, error) {
	for {
		f, size, need, ok := decode(r.buf[r.lo:r.hi])
		if ok {
			r.lo += size
			return f, nil
		}
		if need == 0 && r.lo < r.hi {
			if r.hunt(); r.skipped > MaxStale {
				return Frame{}, fmt.Errorf("%w: %d bytes that are no frame", ErrProtocol, r.skipped)
			}
			continue
		}
		if err := r.fill(); err != nil {
			if err == io.EOF && r.lo < r.hi {
				err = io.ErrUnexpectedEOF
			}
			return Frame{}, err
		}
	}
}

// hunt moves to the next byte at which a frame may begin.
func (r *Reader) hunt() {
	at := bytes.IndexByte(r.buf[r.lo+1:r.hi], magic[0])
	if at < 0 {
		at = r.hi - r.lo - 1
	}
	r.lo += 1 + at
	r.skipped += int64(1 + at)
}

// fill reads once, after making room for a whole frame.
func (r *Reader) fill() error {
	if r.lo == r.hi {
		r.lo, r.hi = 0, 0
	}
	// A frame that began past the middle would be read in slivers.
	if r.lo > 0 && (r.hi == len(r.buf) || r.lo > len(r.buf)/2) {
		r.hi = copy(r.buf, r.buf[r.lo:r.hi])
		r.lo = 0
	}
	for range 100 {
		n, err := r.r.Read(r.buf[r.hi:])
		r.hi += n
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}
