package workspace

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

const (
	// maxNames bounds the names of one directory that are in memory for sorting.
	maxNames = 1 << 20
	// walkDepth bounds the descriptors that a walk holds.
	walkDepth = 200
	// listEntries is how much a listing answers when nobody bounds it.
	listEntries = 100_000
	// listBytes bounds the paths and the targets of links in one answer, which a
	// sandbox can make long.
	listBytes   = 16 << 20
	direntBytes = 64 << 10
)

// visit is one entry on a walk, with the directory it was found in.
type visit struct {
	dir  beneath.Dir
	name string
	path string // relative to where the walk began
	st   unix.Stat_t
}

// open opens an entry that was a regular file when it was visited; ok is false
// when there is none any more.
func (v *visit) open() (fd int, st unix.Stat_t, ok bool, err error) {
	fd, st, err = v.dir.OpenStrict(v.name, unix.O_RDONLY)
	switch {
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE):
		return -1, st, false, err
	case err != nil:
		return -1, st, false, nil
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		_ = unix.Close(fd)
		return -1, st, false, nil
	}
	return fd, st, true, nil
}

// names reads a directory's names in order, at most most of them.
func names(fd, most int) (list []string, all bool, err error) {
	buf := make([]byte, direntBytes)
	for len(list) < most {
		n, err := unix.ReadDirent(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, false, beneath.Error(err)
		}
		if n <= 0 {
			slices.Sort(list)
			return list, true, nil
		}
		_, _, list = unix.ParseDirent(buf[:n], -1, list)
	}
	slices.Sort(list)
	return list, false, nil
}

// each calls fn for the visible entries of an open directory, in name order. The
// answer says whether something could not be examined.
func (w *Workspace) each(ctx context.Context, fd int, fn func(name string, st *unix.Stat_t) error) (incomplete bool, err error) {
	list, all, err := names(fd, maxNames)
	if err != nil {
		return true, nil
	}
	incomplete = !all
	for _, name := range list {
		if err := ctx.Err(); err != nil {
			return incomplete, err
		}
		st, err := beneath.Dir(fd).Stat(name)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			incomplete = true
			continue
		}
		if w.hidden(name, st.Uid) {
			continue
		}
		if err := fn(name, &st); err != nil {
			return incomplete, err
		}
	}
	return incomplete, nil
}

// walk visits everything below an open directory, parents first, but for what fn
// leaves out with errSkip.
func (w *Workspace) walk(ctx context.Context, fd int, prefix string, depth int, fn func(*visit) error) (incomplete bool, err error) {
	part, err := w.each(ctx, fd, func(name string, st *unix.Stat_t) error {
		v := &visit{dir: beneath.Dir(fd), name: name, path: prefix + name, st: *st}
		if err := fn(v); err == errSkip {
			return nil
		} else if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		// What has a longer path cannot be named by anybody, and 200 long names for
		// each of many files are more than a server should hold.
		if depth >= walkDepth || len(v.path) >= beneath.PathMax {
			incomplete = true
			return nil
		}
		child, _, err := v.dir.OpenStrict(name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			incomplete = incomplete || !errors.Is(err, unix.ENOENT)
			return nil
		}
		defer unix.Close(child)
		inner, err := w.walk(ctx, child, v.path+"/", depth+1, fn)
		incomplete = incomplete || inner
		return err
	})
	return incomplete || part, err
}

// openDir opens a directory that a caller named.
func (w *Workspace) openDir(ctx context.Context, path string) (fd int, rel string, err error) {
	rel, err = beneath.Clean(path)
	if err != nil {
		return -1, "", err
	}
	root, err := w.root(ctx)
	if err != nil {
		return -1, "", err
	}
	defer root.Close()
	fd, st, err := root.Open(rel, unix.O_RDONLY)
	if err != nil {
		return -1, "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		_ = unix.Close(fd)
		return -1, "", sandboxd.Wrap(sandboxd.ClassInvalid, unix.ENOTDIR, "it is not a directory")
	}
	return fd, rel, nil
}

// under is the beginning of the paths of what is in a directory.
func under(rel string) string {
	if rel == "." {
		return ""
	}
	return rel + "/"
}

// info describes a visited entry.
func (v *visit) info(prefix string) sandboxd.FileInfo {
	target := ""
	if v.st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, _ = beneath.Readlink(int(v.dir), v.name) // gone since: listed without
	}
	return infoOf(prefix+v.path, &v.st, target)
}

// Walk implements sandboxd.Files. Directories deeper than 200, or with paths longer
// than any that is accepted, are not entered and make the walk incomplete, as do
// mounts.
func (w *Workspace) Walk(ctx context.Context, path string, fn func(sandboxd.FileInfo) error) (bool, error) {
	fd, rel, err := w.openDir(ctx, path)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	prefix := under(rel)
	return w.walk(ctx, fd, "", 1, func(v *visit) error { return fn(v.info(prefix)) })
}

// List implements sandboxd.Files. A depth counts as met when a directory on the
// last of several levels has something in it.
func (w *Workspace) List(ctx context.Context, path string, opts sandboxd.ListOptions) (sandboxd.Listing, error) {
	out := sandboxd.Listing{Entries: []sandboxd.FileInfo{}}
	depth, most := opts.Depth, opts.MaxEntries
	if depth <= 0 {
		depth = 1
	}
	if most <= 0 {
		most = listEntries
	}
	top, rel, err := w.openDir(ctx, path)
	if err != nil {
		return out, err
	}
	defer unix.Close(top)
	prefix := under(rel)
	left := listBytes
	level := []string{"."}
	for at := 1; at <= depth && len(level) > 0; at++ {
		var next []string
		for _, dir := range level {
			err := w.listOne(ctx, beneath.Dir(top), dir, &out, func(v *visit) error {
				info := v.info(prefix)
				if left -= len(info.Path) + len(info.Target); left < 0 || len(out.Entries) >= most {
					out.Truncated = true
					return errFull
				}
				out.Entries = append(out.Entries, info)
				if v.st.Mode&unix.S_IFMT == unix.S_IFDIR {
					next = append(next, v.path)
				}
				return nil
			})
			if err == errFull {
				return out, nil
			}
			if err != nil {
				return out, err
			}
		}
		level = next
	}
	if depth > 1 {
		for _, dir := range level {
			err := w.listOne(ctx, beneath.Dir(top), dir, &out, func(*visit) error { return errFull })
			if err == errFull {
				out.Truncated = true
				break
			}
			if err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

var errFull = errors.New("the bound of a listing is met")

// listOne visits the entries of one directory below top.
func (w *Workspace) listOne(ctx context.Context, top beneath.Dir, dir string, out *sandboxd.Listing, fn func(*visit) error) error {
	fd, _, err := top.OpenStrict(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		out.Incomplete = true
		return nil
	}
	defer unix.Close(fd)
	incomplete, err := w.each(ctx, fd, func(name string, st *unix.Stat_t) error {
		return fn(&visit{dir: beneath.Dir(fd), name: name, path: under(dir) + name, st: *st})
	})
	out.Incomplete = out.Incomplete || incomplete
	return err
}

// Usage implements sandboxd.Files.
func (w *Workspace) Usage(ctx context.Context) (sandboxd.Usage, error) {
	var u sandboxd.Usage
	fd, _, err := w.openDir(ctx, ".")
	if err != nil {
		return u, err
	}
	defer unix.Close(fd)
	linked := map[uint64]struct{}{}
	u.Incomplete, err = w.walk(ctx, fd, "", 1, func(v *visit) error {
		u.Entries++
		if v.st.Nlink > 1 && v.st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if _, seen := linked[v.st.Ino]; seen {
				return nil
			}
			linked[v.st.Ino] = struct{}{}
		}
		u.Bytes += v.st.Blocks * 512
		return nil
	})
	return u, err
}
