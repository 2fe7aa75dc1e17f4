package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

const (
	// parents is how many directories an unpacking keeps open.
	parents = 64
	// maxDepth bounds how deep a tree may be: what removes it holds a descriptor for
	// each level.
	maxDepth = 200
)

// Unpack unpacks a tar as a root file system, or a part of one, into top, which nobody
// else enters yet. Everything becomes owner's; bits that give rights to others than the
// owner to write, or to run as somebody else, are dropped, and so are attributes with
// capabilities. Devices and pipes are left out, and counted. Limits of 0 are those of an
// import.
//
// A later entry replaces an earlier one, but not a directory. Entries may go through
// links of the archive, as through lib to usr/lib, which end inside.
func Unpack(ctx context.Context, top beneath.Dir, archive io.Reader, limits sandboxd.TarLimits, owner uint32) (res sandboxd.TarResult, dropped int64, err error) {
	limits.MaxEntries, limits.MaxBytes = cmp.Or(limits.MaxEntries, MaxEntries), cmp.Or(limits.MaxBytes, MaxBytes)
	u := &unpacking{ctx: ctx, top: top, tr: tar.NewReader(archive), limits: limits, owner: int(owner), open: map[string]beneath.Dir{}, buf: make([]byte, 256<<10)}
	defer u.close()
	if err := u.run(); err != nil {
		return u.res, u.dropped, err
	}
	// What follows the end is padding; the sender waits until it is read.
	if _, err := io.Copy(io.Discard, archive); err != nil {
		return u.res, u.dropped, damaged(err, u.count)
	}
	return u.res, u.dropped, nil
}

type unpacking struct {
	ctx     context.Context
	top     beneath.Dir
	tr      *tar.Reader
	limits  sandboxd.TarLimits
	owner   int
	res     sandboxd.TarResult
	dropped int64
	count   int64
	open    map[string]beneath.Dir
	buf     []byte
}

func (u *unpacking) close() {
	for _, dir := range u.open {
		dir.Close()
	}
	clear(u.open)
}

func (u *unpacking) run() error {
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := u.tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return damaged(err, u.count)
		}
		if u.count++; u.count > u.limits.MaxEntries {
			return sandboxd.Invalid("archive", "it has more than %d entries", u.limits.MaxEntries)
		}
		if err := u.entry(h); err != nil {
			return err
		}
	}
}

// refuse blames an entry, showing not more of its name than a person reads.
func refuse(h *tar.Header, format string, args ...any) error {
	name := h.Name
	if len(name) > 200 {
		name = name[:200] + "..."
	}
	name = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, name), "?")
	err := sandboxd.Invalid("archive", format, args...)
	err.Message = "entry " + name + ": " + err.Message
	return err
}

// inside judges the name of an entry or the target of a hard link. A slash before it
// means the root, which the image is.
func inside(h *tar.Header, name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", refuse(h, "it leaves the image by '..'")
		}
	}
	rel, err := beneath.Clean(strings.TrimLeft(name, "/"))
	if err != nil {
		return "", refuse(h, "%s", err.Error())
	}
	if strings.Count(rel, "/") >= maxDepth {
		return "", refuse(h, "it is deeper than %d directories", maxDepth)
	}
	return rel, nil
}

func (u *unpacking) entry(h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		u.dropped++
		return nil
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeGNUSparse:
	default:
		return refuse(h, "it is of a kind that is not known")
	}
	rel, err := inside(h, h.Name)
	if err != nil {
		return err
	}
	if rel == "." {
		if h.Typeflag != tar.TypeDir {
			return refuse(h, "the root is a directory")
		}
		return nil
	}
	// Of a sparse file it is the size with its holes.
	if h.Size < 0 || h.Size > u.limits.MaxBytes-u.res.Bytes {
		return refuse(h, "the archive has more than %d bytes", u.limits.MaxBytes)
	}
	dir, name := beneath.Split(rel)
	parent, err := u.parent(dir)
	if err != nil {
		return blame(h, err)
	}
	put := map[byte]func(beneath.Dir, string, *tar.Header) error{tar.TypeDir: u.dir, tar.TypeSymlink: u.link, tar.TypeLink: u.hardLink}[h.Typeflag]
	if put == nil {
		put = u.file
	}
	err = put(parent, name, h)
	if err == unix.EEXIST {
		if err = u.clearName(parent, name); err == nil {
			err = put(parent, name, h)
		}
	}
	return blame(h, err)
}

// blame names the entry in what an archive ran into by its own fault; a lack of space
// and failures of the stream keep their class.
func blame(h *tar.Header, err error) error {
	if err == nil {
		return nil
	}
	err = beneath.Error(err)
	e, ok := err.(*sandboxd.Error)
	if !ok || e.Field == "archive" {
		return err
	}
	switch e.Class {
	case sandboxd.ClassConflict, sandboxd.ClassForbidden, sandboxd.ClassNotFound, sandboxd.ClassInvalid:
		return refuse(h, "%s", e.Message)
	}
	return err
}

// parent opens the directory an entry goes into, making it when it is missing.
// Descriptors are kept, because archives come directory by directory.
func (u *unpacking) parent(rel string) (beneath.Dir, error) {
	if rel == "." {
		return u.top, nil
	}
	if dir, ok := u.open[rel]; ok {
		return dir, nil
	}
	if len(u.open) >= parents {
		u.close()
	}
	fd, _, err := u.top.OpenInRoot(rel, unix.O_PATH|unix.O_DIRECTORY)
	if beneath.NotFound(err) {
		if fd, err = u.makeAll(rel); err != nil {
			return -1, err
		}
	}
	if err == nil {
		if err = u.shallow(fd); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return -1, err
	}
	u.open[rel] = beneath.Dir(fd)
	return beneath.Dir(fd), nil
}

// shallow refuses a directory that is too deep where links have led: a name says
// nothing of that, and by link after link a tree grows that nobody could remove.
func (u *unpacking) shallow(dir int) error {
	top, err := u.top.Path()
	if err != nil {
		return err
	}
	path, err := beneath.Dir(dir).Path()
	if errors.Is(err, unix.ENAMETOOLONG) || err == nil && strings.Count(strings.TrimPrefix(path, top), "/") > maxDepth {
		return sandboxd.Errorf(sandboxd.ClassInvalid, "by links it is deeper than %d directories", maxDepth)
	}
	return err
}

// makeAll makes what is missing of a directory and answers it, opened.
func (u *unpacking) makeAll(rel string) (int, error) {
	fd := -1
	for end := 0; end < len(rel); {
		next := strings.IndexByte(rel[end+1:], '/')
		if next < 0 {
			next = len(rel)
		} else {
			next += end + 1
		}
		above, name := beneath.Split(rel[:next])
		dir, _, err := u.top.OpenInRoot(above, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return -1, err
		}
		err = unix.Mkdirat(dir, name, 0o755)
		if err == nil {
			err = u.give(beneath.Dir(dir), name)
		}
		_ = unix.Close(dir)
		if err != nil && err != unix.EEXIST {
			return -1, err
		}
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if fd, _, err = u.top.OpenInRoot(rel[:next], unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return -1, err
		}
		end = next
	}
	return fd, nil
}

// give makes what was just made its owner's.
func (u *unpacking) give(parent beneath.Dir, name string) error {
	if u.owner == os.Geteuid() {
		return nil
	}
	return unix.Fchownat(int(parent), name, u.owner, u.owner, unix.AT_SYMLINK_NOFOLLOW)
}

// clearName removes what an earlier entry put under a name; a directory stays.
func (u *unpacking) clearName(parent beneath.Dir, name string) error {
	err := unix.Unlinkat(int(parent), name, 0)
	if err == unix.EISDIR {
		return sandboxd.Errorf(sandboxd.ClassConflict, "a directory of the archive has this name")
	}
	// It may have been a link by which directories were opened.
	for rel, dir := range u.open {
		if dir != parent {
			dir.Close()
			delete(u.open, rel)
		}
	}
	return err
}

func (u *unpacking) dir(parent beneath.Dir, name string, h *tar.Header) error {
	err := unix.Mkdirat(int(parent), name, 0o700)
	if err == unix.EEXIST {
		if st, serr := parent.Stat(name); serr != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.EEXIST
		}
	} else if err == nil {
		err = u.give(parent, name)
	}
	if err != nil && err != unix.EEXIST {
		return err
	}
	fd, _, err := parent.OpenStrict(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	u.res.Dirs++
	return unix.Fchmod(fd, uint32(h.Mode)&0o755|0o700)
}

func (u *unpacking) file(parent beneath.Dir, name string, h *tar.Header) error {
	fd, err := unix.Openat(int(parent), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := u.fill(fd, h.Size); err != nil {
		return err
	}
	if err := u.give(parent, name); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o755|0o400); err != nil {
		return err
	}
	if ts, err := unix.TimeToTimespec(h.ModTime); err == nil {
		err = unix.UtimesNanoAt(fd, "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
		if err != nil && err != unix.EINVAL { // what the file system cannot hold is left
			return err
		}
	}
	u.res.Files++
	u.res.Bytes += h.Size
	return nil
}

// fill writes what the entry holds. Blocks of zeros become holes, as those that a sparse
// entry has of nothing else: the size of a file must not decide what disk it takes.
func (u *unpacking) fill(fd int, size int64) error {
	for at := int64(0); ; {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(u.tr, u.buf)
		for data := u.buf[:n]; len(data) > 0; {
			hole := run(data, true)
			full := run(data[hole:], false)
			if err := writeAt(fd, data[hole:hole+full], at+int64(hole)); err != nil {
				return err
			}
			data, at = data[hole+full:], at+int64(hole+full)
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			if at != size {
				return damaged(err, u.count)
			}
			return unix.Ftruncate(fd, size)
		default:
			return damaged(err, u.count)
		}
	}
}

// blockSize is that of most file systems, in which no smaller hole saves anything.
const blockSize = 4096

var zeros [blockSize]byte

// run is how many bytes at the beginning of data are in blocks that are, or are not, zeros.
func run(data []byte, empty bool) int {
	n := 0
	for n < len(data) {
		block := data[n:min(n+blockSize, len(data))]
		if bytes.Equal(block, zeros[:len(block)]) != empty {
			break
		}
		n += len(block)
	}
	return n
}

func writeAt(fd int, data []byte, at int64) error {
	for len(data) > 0 {
		n, err := unix.Pwrite(fd, data, at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}

// link stores a link as it is: where it leads to is looked up by what runs in the
// image, whose root is the image.
func (u *unpacking) link(parent beneath.Dir, name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > beneath.PathMax || strings.IndexByte(h.Linkname, 0) >= 0 {
		return refuse(h, "its target is not a path")
	}
	if err := unix.Symlinkat(h.Linkname, int(parent), name); err != nil {
		return err
	}
	if err := u.give(parent, name); err != nil {
		return err
	}
	u.res.Links++
	return nil
}

// hardLink gives a file of the archive a second name.
func (u *unpacking) hardLink(parent beneath.Dir, name string, h *tar.Header) error {
	target, err := inside(h, h.Linkname)
	if err != nil {
		return err
	}
	dir, base := beneath.Split(target)
	from, _, err := u.top.OpenInRoot(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return refuse(h, "what it is another name of is not in the archive before it")
	}
	defer unix.Close(from)
	st, err := beneath.Dir(from).Stat(base)
	if err != nil {
		return refuse(h, "what it is another name of is not in the archive before it")
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return refuse(h, "only a file can have another name")
	}
	if err := unix.Linkat(from, base, int(parent), name, 0); err != nil {
		return err
	}
	u.res.Links++
	return nil
}
