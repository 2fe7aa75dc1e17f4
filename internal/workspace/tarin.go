package workspace

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

const (
	tarEntries = 1_000_000
	tarBytes   = 16 << 30
	// tarParents is how many directories an unpacking keeps open.
	tarParents = 64
)

// TarIn implements sandboxd.Files. The directory is made when it is missing. No
// entry goes through a link, not even one that was there before; a later entry
// of the same name replaces an earlier file. Hard links and sparse files are
// ClassInvalid, and so is an archive beyond the limits. Errors name the entry.
func (w *Workspace) TarIn(ctx context.Context, path string, r io.Reader, limits sandboxd.TarLimits) (sandboxd.TarResult, error) {
	var none sandboxd.TarResult
	rel, err := creatable(path)
	if err != nil {
		return none, err
	}
	root, err := w.root(ctx)
	if err != nil {
		return none, err
	}
	defer root.Close()
	p, err := w.directory(root, rel)
	if err != nil {
		return none, err
	}
	defer p.close()
	t := &tarIn{ctx: ctx, w: w, top: p.dir, limits: limits, open: map[string]beneath.Dir{}}
	defer t.close()
	if t.limits.MaxEntries <= 0 {
		t.limits.MaxEntries = tarEntries
	}
	if t.limits.MaxBytes <= 0 {
		t.limits.MaxBytes = tarBytes
	}
	t.tr = tar.NewReader(bufio.NewReaderSize(r, bufferSize))
	err = t.run()
	return t.res, err
}

type tarIn struct {
	ctx    context.Context
	w      *Workspace
	top    beneath.Dir
	tr     *tar.Reader
	limits sandboxd.TarLimits
	res    sandboxd.TarResult
	count  int64
	open   map[string]beneath.Dir
}

func (t *tarIn) close() {
	for _, dir := range t.open {
		dir.Close()
	}
	clear(t.open)
}

func (t *tarIn) run() error {
	for {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		h, err := t.tr.Next()
		if err == io.EOF {
			return nil
		}
		if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
			return sandboxd.Wrap(sandboxd.ClassInvalid, err, "the archive is damaged after %d entries", t.count)
		}
		if err != nil {
			return err
		}
		if t.count++; t.count > t.limits.MaxEntries {
			return refuse(h, "the archive has more than %d entries", t.limits.MaxEntries)
		}
		if err := t.entry(h); err != nil {
			return err
		}
	}
}

func refuse(h *tar.Header, format string, args ...any) error {
	err := sandboxd.Invalid("archive", format, args...)
	err.Message = quoteEntry(h.Name) + ": " + err.Message
	return err
}

// quoteEntry shows an entry's name, not more of it than a person reads.
func quoteEntry(name string) string {
	if len(name) > 200 {
		name = name[:200] + "..."
	}
	return "entry " + strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, name), "?")
}

// nameOf judges an entry's name. Unlike a caller's path it may not contain ".."
// at all, nor be absolute.
func nameOf(h *tar.Header) (string, error) {
	if strings.HasPrefix(h.Name, "/") {
		return "", refuse(h, "its name is absolute")
	}
	for part := range strings.SplitSeq(h.Name, "/") {
		if part == ".." {
			return "", refuse(h, "its name has '..'")
		}
	}
	rel, err := creatable(h.Name)
	if err != nil {
		return "", refuse(h, "%s", err.Error())
	}
	return rel, nil
}

func (t *tarIn) entry(h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink:
	case tar.TypeLink:
		return refuse(h, "hard links are not unpacked")
	default:
		return refuse(h, "it is neither a file, a directory nor a link")
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return refuse(h, "sparse files are not unpacked")
		}
	}
	rel, err := nameOf(h)
	if err != nil {
		return err
	}
	if rel == "." {
		if h.Typeflag != tar.TypeDir {
			return refuse(h, "a file needs a name")
		}
		return nil
	}
	if h.Size < 0 || h.Size > t.limits.MaxBytes-t.res.Bytes {
		return refuse(h, "the archive has more than %d bytes", t.limits.MaxBytes)
	}
	dir, name := beneath.Split(rel)
	parent, err := t.parent(dir)
	if err != nil {
		return t.blame(h, err)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = t.dir(parent, name, h)
	case tar.TypeSymlink:
		err = t.link(parent, name, h)
	default:
		err = t.file(parent, name, h)
	}
	return t.blame(h, err)
}

// blame turns what an archive ran into within the workspace into an error that
// names the entry; a lack of space and failures of the stream keep their class.
func (t *tarIn) blame(h *tar.Header, err error) error {
	switch sandboxd.ClassOf(err) {
	case sandboxd.ClassConflict, sandboxd.ClassForbidden, sandboxd.ClassNotFound, sandboxd.ClassInvalid:
	default:
		return err
	}
	var e *sandboxd.Error
	if err == nil || !errors.As(err, &e) || e.Field == "archive" {
		return err
	}
	return &sandboxd.Error{Class: sandboxd.ClassInvalid, Field: "archive", Message: quoteEntry(h.Name) + ": " + e.Message, Err: err}
}

// parent opens the directory an entry goes into, making it when it is missing.
// Descriptors are kept, because archives come directory by directory.
func (t *tarIn) parent(rel string) (beneath.Dir, error) {
	if rel == "." {
		return t.top, nil
	}
	if dir, ok := t.open[rel]; ok {
		return dir, nil
	}
	if len(t.open) >= tarParents {
		t.close()
	}
	fd, _, err := t.top.OpenStrict(rel, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		t.open[rel] = beneath.Dir(fd)
		return beneath.Dir(fd), nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return -1, err
	}
	at, err := unix.FcntlInt(uintptr(t.top), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, beneath.Error(err)
	}
	dir := beneath.Dir(at)
	for name := range strings.SplitSeq(rel, "/") {
		next, err := t.w.mkdirAt(dir, name, 0o755)
		dir.Close()
		if err != nil {
			return -1, err
		}
		dir = next
	}
	t.open[rel] = dir
	return dir, nil
}

func (t *tarIn) dir(parent beneath.Dir, name string, h *tar.Header) error {
	dir, err := t.w.mkdirAt(parent, name, uint32(h.Mode)&0o777|0o700)
	if err != nil {
		return err
	}
	dir.Close()
	t.res.Dirs++
	return nil
}

func (t *tarIn) file(parent beneath.Dir, name string, h *tar.Header) error {
	tmp, err := newTemp(parent)
	if err != nil {
		return err
	}
	defer tmp.discard()
	if err := room(parent, h.Size); err != nil {
		return err
	}
	if err := tmp.fill(t.ctx, t.tr, h.Size); err != nil {
		return err
	}
	if err := t.w.give(tmp.fd, uint32(h.Mode)&0o777); err != nil {
		return err
	}
	if err := stamp(tmp.fd, h.ModTime); err != nil {
		return err
	}
	if err := put(parent, name, tmp); err != nil {
		return err
	}
	t.res.Files++
	t.res.Bytes += h.Size
	return nil
}

// put names a finished temporary file.
func put(parent beneath.Dir, name string, tmp *temp) error {
	p := &place{dir: parent, name: name}
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	err = tmp.rename(parent, name, 0)
	if err == unix.EISDIR || err == unix.EEXIST || err == unix.ENOTEMPTY {
		return sandboxd.Wrap(sandboxd.ClassConflict, err, "a directory is there")
	}
	return beneath.Error(err)
}

// stamp sets the modification time; one that the file system cannot hold is left.
func stamp(fd int, at time.Time) error {
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return nil
	}
	times := []unix.Timespec{ts, ts}
	err = unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
	if err == unix.EINVAL {
		return nil
	}
	return beneath.Error(err)
}

// link stores a link as it is; where it leads to is the business of whoever
// follows it.
func (t *tarIn) link(parent beneath.Dir, name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > beneath.PathMax || strings.IndexByte(h.Linkname, 0) >= 0 {
		return refuse(h, "its target is not a path")
	}
	tmp := &temp{dir: parent, name: tempPrefix + sandboxd.NewID(), fd: -1}
	if err := unix.Symlinkat(h.Linkname, int(parent), tmp.name); err != nil {
		return beneath.Error(err)
	}
	defer tmp.discard()
	fd, st, err := parent.Open(tmp.name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	tmp.fd = fd
	if st.Mode&unix.S_IFMT == unix.S_IFLNK && t.w.seize && st.Uid == 0 {
		if err := unix.Fchownat(fd, "", int(t.w.owner), int(t.w.owner), unix.AT_EMPTY_PATH); err != nil {
			return beneath.Error(err)
		}
	}
	if err := put(parent, name, tmp); err != nil {
		return err
	}
	t.res.Links++
	return nil
}
