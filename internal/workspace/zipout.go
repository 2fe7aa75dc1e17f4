package workspace

import (
	"archive/zip"
	"compress/flate"
	"context"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

// A zip ends with a directory of all that is in it, which has to be kept until then:
// zipHeld bytes of it at most, zipEntry for each entry beside its name.
const (
	zipHeld  = 128 << 20
	zipEntry = 256
)

// ZipOut implements sandboxd.Files. It holds what TarOut holds. Links are stored
// as Info-ZIP stores them; names are the bytes that they are.
func (w *Workspace) ZipOut(ctx context.Context, path string, out io.Writer) error {
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
	z := &zipOut{ctx: ctx, zw: zip.NewWriter(out), left: zipHeld}
	// Fast, because most of what is packed here is unpacked once.
	z.zw.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestSpeed) })
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		_, name := beneath.Split(rel)
		err = z.file(fd, name, &st)
	} else {
		_, err = w.walk(ctx, fd, "", 1, z.add)
		_ = unix.Close(fd)
	}
	if err != nil {
		return err
	}
	return z.zw.Close()
}

type zipOut struct {
	ctx  context.Context
	zw   *zip.Writer
	left int // of zipHeld
}

// entry begins an entry; kind is fs.ModeDir, fs.ModeSymlink or 0.
func (z *zipOut) entry(name string, st *unix.Stat_t, kind fs.FileMode) (io.Writer, error) {
	if z.left -= len(name) + zipEntry; z.left < 0 {
		return nil, sandboxd.Errorf(sandboxd.ClassTooLarge, "there are too many entries for a zip").
			WithHint("take a tar, or a directory below")
	}
	h := &zip.FileHeader{Name: name, Method: zip.Store, Modified: time.Unix(st.Mtim.Sec, 0).UTC()}
	if kind == 0 && st.Size > 0 {
		h.Method = zip.Deflate
	}
	h.SetMode(kind | fs.FileMode(st.Mode&0o777))
	return z.zw.CreateHeader(h)
}

func (z *zipOut) add(v *visit) error {
	switch v.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		_, err := z.entry(v.path+"/", &v.st, fs.ModeDir)
		return err
	case unix.S_IFLNK:
		target, err := beneath.Readlink(int(v.dir), v.name)
		if err != nil {
			return nil // gone or replaced since it was listed
		}
		to, err := z.entry(v.path, &v.st, fs.ModeSymlink)
		if err == nil {
			_, err = io.WriteString(to, target)
		}
		return err
	case unix.S_IFREG:
		fd, st, ok, err := v.open()
		if !ok {
			return err
		}
		return z.file(fd, v.path, &st)
	}
	return nil
}

// file writes an open regular file, at most as large as it was, and closes it.
func (z *zipOut) file(fd int, name string, st *unix.Stat_t) error {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	to, err := z.entry(name, st, 0)
	if err != nil {
		return err
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for left := st.Size; left > 0; {
		if err := z.ctx.Err(); err != nil {
			return err
		}
		n, err := f.Read((*buf)[:min(left, bufferSize)])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return beneath.Error(err)
		}
		if _, err := to.Write((*buf)[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}
