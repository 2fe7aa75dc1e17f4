package workspace

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

const (
	// removeTries bounds how often a directory that fills up again is emptied.
	removeTries = 16
	// removeDepth bounds the descriptors that a removal holds; what is deeper is
	// moved up and removed on its own.
	removeDepth = 100
)

// Mkdir implements sandboxd.Files.
func (w *Workspace) Mkdir(ctx context.Context, path string) error {
	rel, err := creatable(path)
	if err != nil {
		return err
	}
	root, err := w.root(ctx)
	if err != nil {
		return err
	}
	defer root.Close()
	p, err := w.directory(root, rel)
	if err != nil {
		return err
	}
	p.close()
	return nil
}

// Rename implements sandboxd.Files. The parent of to must exist; links are moved
// and not followed.
func (w *Workspace) Rename(ctx context.Context, from, to string) error {
	relFrom, err := beneath.Clean(from)
	if err != nil {
		return err
	}
	relTo, err := creatable(to)
	if err != nil {
		return err
	}
	if relFrom == "." || relTo == "." {
		return sandboxd.Invalid("path", "the workspace itself cannot be renamed")
	}
	root, err := w.root(ctx)
	if err != nil {
		return err
	}
	defer root.Close()
	src, err := w.entry(root, relFrom)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := w.entry(root, relTo)
	if err != nil {
		return err
	}
	defer dst.close()
	unlock, err := dst.lock()
	if err != nil {
		return err
	}
	defer unlock()
	err = unix.Renameat2(int(src.dir), src.name, int(dst.dir), dst.name, unix.RENAME_NOREPLACE)
	if err == unix.EEXIST {
		var was, is unix.Stat_t
		if was, err = src.dir.Stat(src.name); err != nil {
			return beneath.Error(err)
		}
		if is, err = dst.dir.Stat(dst.name); err != nil {
			return beneath.Error(err)
		}
		if was.Mode&unix.S_IFMT == unix.S_IFDIR || is.Mode&unix.S_IFMT == unix.S_IFDIR {
			if was.Ino == is.Ino && was.Dev == is.Dev {
				return nil
			}
			return sandboxd.Errorf(sandboxd.ClassConflict, "a directory neither replaces nor is replaced")
		}
		err = unix.Renameat2(int(src.dir), src.name, int(dst.dir), dst.name, 0)
	}
	switch err {
	case unix.EINVAL:
		return sandboxd.Wrap(sandboxd.ClassConflict, err, "a directory cannot move into itself")
	case unix.EISDIR, unix.ENOTDIR:
		return sandboxd.Wrap(sandboxd.ClassConflict, err, "a directory neither replaces nor is replaced")
	}
	return beneath.Error(err)
}

// Remove implements sandboxd.Files. A tree disappears at once; a mount inside it
// is ClassForbidden and stays untouched.
func (w *Workspace) Remove(ctx context.Context, path string) error {
	rel, err := beneath.Clean(path)
	if err != nil {
		return err
	}
	if rel == "." {
		return sandboxd.Invalid("path", "the workspace itself cannot be removed")
	}
	root, err := w.root(ctx)
	if err != nil {
		return err
	}
	defer root.Close()
	p, err := w.entry(root, rel)
	if err != nil {
		return err
	}
	defer p.close()
	for range removeTries {
		err := unix.Unlinkat(int(p.dir), p.name, 0)
		if err != unix.EISDIR {
			return beneath.Error(err)
		}
		fd, _, err := p.dir.OpenStrict(p.name, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue
		}
		if err != nil {
			return err
		}
		r := &remover{w: w, root: root}
		moved, err := r.moveAway(p, fd)
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
		if moved {
			return r.run(ctx)
		}
	}
	return beneath.Error(unix.EBUSY)
}

// remover empties trees that were moved to hidden names in the workspace's top.
type remover struct {
	w     *Workspace
	root  beneath.Dir
	queue []string
}

// moveAway hides the directory fd that p names. It is taken from the sandbox
// first, so that nothing new can be put into it.
func (r *remover) moveAway(p *place, fd int) (bool, error) {
	if err := r.take(fd); err != nil {
		return false, err
	}
	name := tempPrefix + sandboxd.NewID()
	err := unix.Renameat2(int(p.dir), p.name, int(r.root), name, unix.RENAME_NOREPLACE)
	if err == unix.ENOENT {
		return false, nil
	}
	if err != nil {
		return false, beneath.Error(err)
	}
	r.queue = append(r.queue, name)
	return true, nil
}

// take makes a directory ours, where that differs, so that the sandbox cannot
// refill it while it is emptied.
func (r *remover) take(fd int) error {
	if !r.w.seize {
		return nil
	}
	if err := unix.Fchown(fd, 0, 0); err != nil {
		return beneath.Error(err)
	}
	return beneath.Error(unix.Fchmod(fd, 0o700))
}

func (r *remover) run(ctx context.Context) error {
	for len(r.queue) > 0 {
		name := r.queue[len(r.queue)-1]
		r.queue = r.queue[:len(r.queue)-1]
		if err := r.tree(ctx, r.root, name, 1); err != nil {
			return err
		}
	}
	return nil
}

// tree removes a name whatever it is.
func (r *remover) tree(ctx context.Context, parent beneath.Dir, name string, depth int) error {
	for range removeTries {
		err := unix.Unlinkat(int(parent), name, 0)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EISDIR {
			return beneath.Error(err)
		}
		fd, _, err := parent.OpenStrict(name, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue
		}
		if err != nil {
			return err
		}
		err = r.empty(ctx, fd, depth)
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
		err = unix.Unlinkat(int(parent), name, unix.AT_REMOVEDIR)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.ENOTEMPTY && err != unix.ENOTDIR {
			return beneath.Error(err)
		}
	}
	return beneath.Error(unix.EBUSY)
}

func (r *remover) empty(ctx context.Context, fd, depth int) error {
	if err := r.take(fd); err != nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		list, all, err := names(fd, maxNames)
		if err != nil {
			return err
		}
		for _, name := range list {
			if depth >= removeDepth {
				err = r.up(beneath.Dir(fd), name)
			} else {
				err = r.tree(ctx, beneath.Dir(fd), name, depth+1)
			}
			if err != nil {
				return err
			}
		}
		if all {
			return nil
		}
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			return beneath.Error(err)
		}
	}
}

// up moves a name from the depth to the top, to be removed from there.
func (r *remover) up(dir beneath.Dir, name string) error {
	err := unix.Unlinkat(int(dir), name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	hidden := tempPrefix + sandboxd.NewID()
	err = unix.Renameat2(int(dir), name, int(r.root), hidden, unix.RENAME_NOREPLACE)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return beneath.Error(err)
	}
	r.queue = append(r.queue, hidden)
	return nil
}

// SweepTemp removes what an interrupted write, unpacking or removal of an earlier
// process left. It must not run beside other methods of the same workspace.
func (w *Workspace) SweepTemp(ctx context.Context) error {
	root, err := w.root(ctx)
	if err != nil {
		return err
	}
	defer root.Close()
	fd, _, err := root.OpenStrict(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return w.sweep(ctx, root, fd, 1)
}

func (w *Workspace) sweep(ctx context.Context, root beneath.Dir, fd, depth int) error {
	list, _, err := names(fd, maxNames)
	if err != nil {
		return err
	}
	for _, name := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if strings.HasPrefix(name, tempPrefix) {
			if isUpload(name, depth) && w.adopt(root, name) {
				continue
			}
			r := &remover{w: w, root: root}
			if err := r.tree(ctx, beneath.Dir(fd), name, 1); err != nil {
				return err
			}
			if err := r.run(ctx); err != nil {
				return err
			}
			continue
		}
		st, err := beneath.Dir(fd).Stat(name)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || depth >= walkDepth {
			continue
		}
		child, _, err := beneath.Dir(fd).OpenStrict(name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			continue // not a place where we write
		}
		err = w.sweep(ctx, root, child, depth+1)
		_ = unix.Close(child)
		if err != nil {
			return err
		}
	}
	return nil
}
