package workspace

import (
	"errors"
	"hash/maphash"
	"sync"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

// place is where an entry is or will be: a name in an open directory.
type place struct {
	dir  beneath.Dir
	name string
	made []int // directories that got a new entry on the way, to be synced
}

func (p *place) close() {
	p.dir.Close()
	for _, fd := range p.made {
		_ = unix.Close(fd)
	}
}

// present examines what is there; exists is false when nothing is.
func (p *place) present() (st unix.Stat_t, exists bool, err error) {
	st, err = p.dir.Stat(p.name)
	if err == unix.ENOENT {
		return st, false, nil
	}
	return st, err == nil, beneath.Error(err)
}

// commits serialises the moments in which a name changes hands, so that a
// condition and its rename are one step for all callers of this process. Held
// for a few system calls only.
var commits struct {
	seed    maphash.Seed
	stripes [256]sync.Mutex
}

func init() { commits.seed = maphash.MakeSeed() }

func (p *place) lock() (unlock func(), err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(p.dir), &st); err != nil {
		return nil, beneath.Error(err)
	}
	key := struct {
		dev, ino uint64
		name     string
	}{st.Dev, st.Ino, p.name}
	mu := &commits.stripes[maphash.Comparable(commits.seed, key)%uint64(len(commits.stripes))]
	mu.Lock()
	return mu.Unlock, nil
}

// entry finds an existing entry's place, a link at the end not followed.
func (w *Workspace) entry(root beneath.Dir, rel string) (*place, error) {
	dir, name := beneath.Split(rel)
	fd, _, err := root.Open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return &place{dir: beneath.Dir(fd), name: name}, nil
}

// target finds the place where a file is to be written: parents are made, and a
// link at the end leads to the place it names.
func (w *Workspace) target(root beneath.Dir, rel string) (*place, error) {
	dir, name := beneath.Split(rel)
	p, err := w.directory(root, dir)
	if err != nil {
		return nil, err
	}
	p.name = name
	st, exists, err := p.present()
	if err != nil {
		p.close()
		return nil, err
	}
	if !exists || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return p, nil
	}
	parent, name, err := root.Parent(rel, true)
	if err != nil {
		p.close()
		return nil, err
	}
	p.dir.Close()
	p.dir, p.name = parent, name
	return p, nil
}

// directory opens a directory, making what is missing of it one name at a time.
func (w *Workspace) directory(root beneath.Dir, rel string) (*place, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY
	// The deepest ancestor that exists is found from below, because most often
	// nothing is missing.
	at := rel
	var missing []string
	var fd int
	for {
		var err error
		if fd, _, err = root.Open(at, flags); err == nil {
			break
		}
		if errors.Is(err, unix.ENOTDIR) {
			return nil, sandboxd.Wrap(sandboxd.ClassConflict, err, "a name on the way is not a directory")
		}
		if !errors.Is(err, unix.ENOENT) || at == "." {
			return nil, err
		}
		var name string
		at, name = beneath.Split(at)
		missing = append(missing, name)
	}
	p := &place{dir: beneath.Dir(fd), name: "."}
	for i := len(missing) - 1; i >= 0; i-- {
		next, err := w.mkdirAt(p.dir, missing[i], 0o755)
		if err != nil {
			p.close()
			return nil, err
		}
		p.made = append(p.made, int(p.dir))
		p.dir = next
	}
	return p, nil
}

// mkdirAt makes a directory of the sandbox's, or opens the one that is there.
func (w *Workspace) mkdirAt(dir beneath.Dir, name string, mode uint32) (beneath.Dir, error) {
	err := beneath.Retry(func() error { return unix.Mkdirat(int(dir), name, 0o700) })
	if err != nil && err != unix.EEXIST {
		return -1, beneath.Error(err)
	}
	made := err == nil
	flags := unix.O_PATH | unix.O_DIRECTORY
	if made {
		flags = unix.O_RDONLY | unix.O_DIRECTORY
	}
	fd, st, err := dir.OpenStrict(name, flags)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return -1, sandboxd.Wrap(sandboxd.ClassConflict, err, "a name on the way is not a directory")
	}
	if err != nil {
		return -1, err
	}
	// Only what is ours is given away: since mkdir the sandbox may have put
	// another directory there.
	if made && int(st.Uid) == unix.Geteuid() {
		if err := w.give(fd, mode); err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
	}
	return beneath.Dir(fd), nil
}

// give hands an open inode of ours to the sandbox. The mode comes first, for
// only an owner may set it where we are not root.
func (w *Workspace) give(fd int, mode uint32) error {
	if err := unix.Fchmod(fd, mode); err != nil {
		return beneath.Error(err)
	}
	if int(w.owner) == unix.Geteuid() {
		return nil
	}
	return beneath.Error(unix.Fchown(fd, int(w.owner), int(w.owner)))
}

// syncDir makes the entries of an O_PATH directory durable.
func syncDir(dir int) error {
	fd, _, err := beneath.Dir(dir).OpenStrict(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return beneath.Error(unix.Fsync(fd))
}
