package image

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

// Below answers what is below a directory of an image that is held, as a tar that Unpack
// takes, whose names are relative to the directory; nil where there is nothing, or no such
// directory. The caller closes it.
func (s *Store) Below(ctx context.Context, name, dir string) (io.ReadCloser, error) {
	root, err := beneath.OpenTrusted(s.path(Canonical(name), rootDir))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, _, err := root.OpenInRoot(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, nil // as for whoever runs in the image
	}
	top := os.NewFile(uintptr(fd), dir)
	if _, err := top.Readdirnames(1); err == io.EOF {
		return nil, top.Close()
	}
	r, w := io.Pipe()
	go func() {
		defer top.Close()
		p := &packing{ctx: ctx, tw: tar.NewWriter(w), linked: map[uint64]string{}}
		err := p.dir(top, "")
		if err == nil {
			err = p.tw.Close()
		}
		w.CloseWithError(err)
	}()
	return r, nil
}

// packing writes a tree that nobody changes, and of which nobody knows what it holds.
type packing struct {
	ctx    context.Context
	tw     *tar.Writer
	linked map[uint64]string // names of files that have several, by their numbers
}

func (p *packing) dir(d *os.File, prefix string) error {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if err := p.entry(beneath.Dir(d.Fd()), name, prefix+name); err != nil {
			return err
		}
	}
	return nil
}

func (p *packing) entry(dir beneath.Dir, name, path string) error {
	st, err := dir.Stat(name)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: path, Mode: int64(st.Mode & 0o777), ModTime: time.Unix(st.Mtim.Unix())}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, path+"/"
		return p.inside(dir, name, h)
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = beneath.Readlink(int(dir), name); err != nil {
			return err
		}
	case unix.S_IFREG:
		if first := p.linked[st.Ino]; first != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			break
		}
		if st.Nlink > 1 {
			p.linked[st.Ino] = path
		}
		h.Typeflag, h.Size = tar.TypeReg, st.Size
		return p.inside(dir, name, h)
	default:
		return nil // an image has none that anybody unpacked
	}
	return p.tw.WriteHeader(h)
}

// inside writes an entry and what is in it.
func (p *packing) inside(dir beneath.Dir, name string, h *tar.Header) error {
	fd, _, err := dir.OpenStrict(name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), h.Name)
	defer f.Close()
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return p.dir(f, h.Name)
	}
	if _, err := io.CopyN(p.tw, f, h.Size); err != nil {
		return sandboxd.Wrap(sandboxd.ClassInternal, err, "a file of the image changed while it was read")
	}
	return nil
}
