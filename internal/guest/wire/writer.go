package wire

import (
	"io"
	"sync"
)

// Writer writes frames of one link, each in one Write. It is safe for concurrent
// use.
type Writer struct {
	mu    sync.Mutex
	w     io.Writer
	nonce uint64
	buf   []byte
}

// NewWriter writes frames with the nonce to w.
func NewWriter(w io.Writer, nonce uint64) *Writer { return &Writer{w: w, nonce: nonce} }

// Send writes f with the link's nonce.
func (w *Writer) Send(f Frame) error { return w.send(w.w.Write, f) }

// SendBy is SendAll through another way to write, as one that passes descriptors.
func (w *Writer) SendBy(write func([]byte) (int, error), frames ...Frame) error {
	return w.send(write, frames...)
}

// SendAll writes frames with nothing in between them.
func (w *Writer) SendAll(frames ...Frame) error { return w.send(w.w.Write, frames...) }

func (w *Writer) send(write func([]byte) (int, error), frames ...Frame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range frames {
		f.Nonce = w.nonce
		b, err := Append(w.buf[:0], f)
		if err != nil {
			return err
		}
		w.buf = b
		n, err := write(b)
		if err != nil {
			return err
		}
		if n < len(b) {
			return io.ErrShortWrite
		}
	}
	return nil
}

// Preamble writes so many zeros that a frame which a dead writer left unfinished
// is complete, and found broken, before the next one begins.
func (w *Writer) Preamble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.w.Write(make([]byte, MaxFrame+HeaderSize))
	return err
}
