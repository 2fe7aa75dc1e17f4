package workspace

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"sandboxd/internal/workspace/beneath"
)

// HomeUse is what a home takes of the disk.
type HomeUse struct {
	// Bytes are those of blocks: a file of holes has few, and one of several names has its
	// once. What was removed and is still open is not found.
	Bytes   int64
	Entries int64
	// Partial says that there is more: beyond the most entries, or deeper than 200
	// directories.
	Partial bool
}

// HomeUse measures the home of a key, which a sandbox may change meanwhile, up to so many
// entries. It gives way to who is served. One that is not there holds nothing.
func (r *Root) HomeUse(ctx context.Context, key string, most int64) (HomeUse, error) {
	dir, err := r.open(key)
	if err != nil {
		if beneath.NotFound(err) {
			err = nil
		}
		return HomeUse{}, err
	}
	defer dir.Close()
	m := &measuring{most: most, linked: map[uint64]struct{}{}, turn: turn{ctx: ctx, who: key}, buf: make([]byte, direntBytes)}
	if err := m.turn.take(); err != nil {
		return HomeUse{}, err
	}
	m.held = true
	defer func() {
		if m.held {
			m.turn.give()
		}
	}()
	err = m.dir(dir, homeDir, 1)
	if err == errFull {
		err = nil
	}
	return m.use, err
}

type measuring struct {
	use    HomeUse
	most   int64
	linked map[uint64]struct{} // files of several names that were counted
	turn   turn
	held   bool // the turn
	buf    []byte
}

// dir counts what is in a directory. What is gone, or is a mount, or may not be read by
// a server without root, counts nothing.
func (m *measuring) dir(parent beneath.Dir, name string, depth int) error {
	fd, _, err := parent.OpenStrict(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return err
	}
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for {
		n, err := unix.ReadDirent(fd, m.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return nil
		}
		_, _, names := unix.ParseDirent(m.buf[:n], -1, nil)
		for _, name := range names {
			if err := m.entry(beneath.Dir(fd), name, depth); err != nil {
				return err
			}
		}
	}
}

func (m *measuring) entry(dir beneath.Dir, name string, depth int) error {
	if _, err := m.turn.step(); err != nil {
		m.held = false
		return err
	}
	st, err := dir.Stat(name)
	if err != nil {
		return nil
	}
	if m.use.Entries++; m.use.Entries > m.most {
		m.use.Partial = true
		return errFull
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if st.Nlink > 1 && !isDir {
		if _, seen := m.linked[st.Ino]; seen {
			return nil
		}
		m.linked[st.Ino] = struct{}{}
	}
	m.use.Bytes += st.Blocks * 512
	switch {
	case !isDir:
		return nil
	case depth >= walkDepth:
		m.use.Partial = true
		return nil
	}
	return m.dir(dir, name, depth+1)
}
