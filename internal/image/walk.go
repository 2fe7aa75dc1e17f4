package image

import (
	"archive/tar"
	"cmp"
	"io"
	"iter"
	"sync"

	"sandboxd"
)

// Walk answers a tar as it comes, for whoever unpacks it elsewhere, and fails at the
// first entry that an import would refuse for the number of entries or of bytes: before
// the entry's header is handed on whole, because a file of holes needs nothing more to
// fill a disk. The caller closes it, which may be while somebody still reads.
func Walk(archive io.Reader, limits sandboxd.TarLimits) io.ReadCloser {
	w := &walk{archive: archive, limits: sandboxd.TarLimits{
		MaxEntries: cmp.Or(limits.MaxEntries, MaxEntries), MaxBytes: cmp.Or(limits.MaxBytes, MaxBytes)}}
	w.more, w.stop = iter.Pull(w.entries)
	return w
}

type walk struct {
	archive io.Reader
	limits  sandboxd.TarLimits

	mu   sync.Mutex
	more func() (struct{}, bool) // has the entries of ahead looked at
	stop func()
	// What was read last, as far as it was not looked at; over says that there is no more.
	ahead []byte
	over  bool
	err   error // what the entries are refused for
}

// Read implements io.Reader.
func (w *walk) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	n, err := w.archive.Read(p)
	w.ahead, w.over = p[:n], err != nil
	w.more()
	w.ahead = nil
	if w.err != nil && (err == nil || err == io.EOF) {
		return 0, w.err
	}
	return n, err
}

// Close implements io.Closer. It does not close the archive.
func (w *walk) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = io.ErrClosedPipe
	}
	w.stop()
	return nil
}

// entries looks at what comes, and yields when it needs more.
func (w *walk) entries(yield func(struct{}) bool) {
	ahead := &lookahead{w, yield}
	tr := tar.NewReader(ahead)
	count, bytes := int64(0), int64(0)
	for {
		h, err := tr.Next()
		switch {
		case err == io.EOF:
			_, _ = io.Copy(io.Discard, ahead) // padding
			return
		case err != nil:
			w.err = damaged(err, count)
			return
		}
		if count++; count > w.limits.MaxEntries {
			w.err = sandboxd.Invalid("archive", "it has more than %d entries", w.limits.MaxEntries)
			return
		}
		if h.Size < 0 || h.Size > w.limits.MaxBytes-bytes {
			w.err = refuse(h, "the archive has more than %d bytes", w.limits.MaxBytes)
			return
		}
		bytes += h.Size
	}
}

// lookahead reads what a walk is about to hand on.
type lookahead struct {
	w     *walk
	yield func(struct{}) bool
}

func (l *lookahead) Read(p []byte) (int, error) {
	for len(l.w.ahead) == 0 {
		if l.w.over || !l.yield(struct{}{}) {
			return 0, io.EOF
		}
	}
	n := copy(p, l.w.ahead)
	l.w.ahead = l.w.ahead[n:]
	return n, nil
}
