package workspace

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/workspace/beneath"
)

// TarOut implements sandboxd.Files. Path may also be a single file. A file that
// shrinks while it is read is filled with zeros, one that grows is cut, and one
// that disappears before its turn is left out.
func (w *Workspace) TarOut(ctx context.Context, path string, out io.Writer) error {
	rel, err := beneath.Clean(path)
	if err != nil {
		return err
	}
	root, err := w.root(ctx)
	if err != nil {
		return err
	}
	defer root.Close()
	fd, st, err := root.Open(rel, unix.O_RDONLY)
	if err != nil {
		return err
	}
	t := &tarOut{ctx: ctx, tw: tar.NewWriter(out)}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		_, name := beneath.Split(rel)
		err = t.file(fd, name, &st)
	} else {
		_, err = w.walk(ctx, fd, "", 1, t.add)
		_ = unix.Close(fd)
	}
	if err != nil {
		return err
	}
	return t.tw.Close()
}

type tarOut struct {
	ctx context.Context
	tw  *tar.Writer
}

func headerOf(name string, st *unix.Stat_t) *tar.Header {
	return &tar.Header{
		Name:    name,
		Mode:    int64(st.Mode & 0o777),
		ModTime: time.Unix(st.Mtim.Sec, 0),
	}
}

func (t *tarOut) add(v *visit) error {
	switch v.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h := headerOf(v.path+"/", &v.st)
		h.Typeflag = tar.TypeDir
		return t.tw.WriteHeader(h)
	case unix.S_IFLNK:
		target, err := beneath.Readlink(int(v.dir), v.name)
		if err != nil {
			return nil // gone or replaced since it was listed
		}
		h := headerOf(v.path, &v.st)
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return t.tw.WriteHeader(h)
	case unix.S_IFREG:
		fd, st, ok, err := v.open()
		if !ok {
			return err
		}
		return t.file(fd, v.path, &st)
	}
	return nil // a FIFO, socket or device has no content to carry
}

// file writes an open regular file and closes it.
func (t *tarOut) file(fd int, name string, st *unix.Stat_t) error {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	h := headerOf(name, st)
	h.Typeflag, h.Size = tar.TypeReg, st.Size
	if err := t.tw.WriteHeader(h); err != nil {
		return err
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for left := st.Size; left > 0; {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		b := (*buf)[:min(left, bufferSize)]
		n, err := io.ReadFull(f, b)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return beneath.Error(err)
		}
		clear(b[n:])
		if _, err := t.tw.Write(b); err != nil {
			return err
		}
		left -= int64(len(b))
	}
	return nil
}
