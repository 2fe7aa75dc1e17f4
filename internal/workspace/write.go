package workspace

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

// bufferSize is how much of a body is in memory at once.
const bufferSize = 256 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// Write implements sandboxd.Files. A link at the end of path is followed, as by
// Open; a new file has mode 0644 (0755 with Executable), a replaced one keeps its.
func (w *Workspace) Write(ctx context.Context, path string, body io.Reader, opts sandboxd.WriteOptions) (sandboxd.FileInfo, error) {
	var none sandboxd.FileInfo
	rel, err := creatable(path)
	if err != nil {
		return none, err
	}
	if rel == "." {
		return none, sandboxd.Errorf(sandboxd.ClassConflict, "a directory is there")
	}
	root, err := w.root(ctx)
	if err != nil {
		return none, err
	}
	defer root.Close()
	p, err := w.target(root, rel)
	if err != nil {
		return none, err
	}
	defer p.close()
	st, exists, err := p.present()
	if err != nil {
		return none, err
	}
	if err := conditions(&st, exists, opts); err != nil {
		return none, err
	}
	if err := room(p.dir, opts.Size); err != nil {
		return none, err
	}
	tmp, err := newTemp(p.dir)
	if err != nil {
		return none, err
	}
	defer tmp.discard()
	if err := tmp.fill(ctx, body, opts.Size); err != nil {
		return none, err
	}
	if opts.Append && exists {
		err = w.appendTo(p, tmp, opts)
	} else {
		err = w.replace(p, tmp, opts)
	}
	if err != nil {
		return none, err
	}
	return p.written(rel, tmp, opts)
}

// written answers what a finished write left, after it is durable if asked for.
func (p *place) written(rel string, tmp *temp, opts sandboxd.WriteOptions) (sandboxd.FileInfo, error) {
	if opts.Synced {
		for _, dir := range append(p.made, int(p.dir)) {
			if err := syncDir(dir); err != nil {
				return sandboxd.FileInfo{}, err
			}
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(tmp.fd, &st); err != nil {
		return sandboxd.FileInfo{}, beneath.Error(err)
	}
	return infoOf(rel, &st, ""), nil
}

// conditions says whether what is there allows the write.
func conditions(st *unix.Stat_t, exists bool, opts sandboxd.WriteOptions) error {
	switch {
	case opts.IfNoneMatch && exists:
		return sandboxd.Errorf(sandboxd.ClassPrecondition, "something is there already")
	case opts.IfMatch != "" && (!exists || etagOf(st) != opts.IfMatch):
		return sandboxd.Errorf(sandboxd.ClassPrecondition, "the file is not the one that was expected")
	case exists && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return sandboxd.Errorf(sandboxd.ClassConflict, "a directory is there")
	case exists && st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFLNK:
		return beneath.Error(unix.ENXIO)
	}
	return nil
}

// room refuses early what cannot fit. It reserves nothing, because a caller may
// announce a size and never send it.
func room(dir beneath.Dir, size int64) error {
	if size < 1<<20 {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir), &fs); err != nil {
		return beneath.Error(err)
	}
	if fs.Blocks > 0 && uint64(size) > fs.Bavail*uint64(fs.Bsize) {
		return beneath.Error(unix.ENOSPC)
	}
	return nil
}

// replace puts the temporary file in the place of whatever is there.
func (w *Workspace) replace(p *place, tmp *temp, opts sandboxd.WriteOptions) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	st, exists, err := p.present()
	if err != nil {
		return err
	}
	if err := conditions(&st, exists, opts); err != nil {
		return err
	}
	mode := uint32(0o644)
	if opts.Executable {
		mode = 0o755
	}
	if exists && st.Mode&unix.S_IFMT == unix.S_IFREG {
		mode = st.Mode & 0o777
	}
	if err := w.give(tmp.fd, mode); err != nil {
		return err
	}
	if opts.Synced {
		if err := unix.Fsync(tmp.fd); err != nil {
			return beneath.Error(err)
		}
	}
	flags := uint(0)
	if opts.IfNoneMatch {
		flags = unix.RENAME_NOREPLACE
	}
	err = tmp.rename(p.dir, p.name, flags)
	switch {
	case err == unix.EEXIST && opts.IfNoneMatch:
		return sandboxd.Errorf(sandboxd.ClassPrecondition, "something is there already")
	case err == unix.EISDIR || err == unix.EEXIST || err == unix.ENOTEMPTY:
		return sandboxd.Wrap(sandboxd.ClassConflict, err, "a directory is there")
	}
	return beneath.Error(err)
}

// appendTo adds the temporary file's bytes to the end of the file that is there,
// and makes tmp stand for that file. The body was read whole before, so that the
// slowness of a caller holds no lock.
func (w *Workspace) appendTo(p *place, tmp *temp, opts sandboxd.WriteOptions) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	fd, st, err := p.dir.OpenStrict(p.name, unix.O_RDWR|unix.O_APPEND)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := conditions(&st, true, opts); err != nil {
		return err
	}
	if st.Uid != w.owner {
		return sandboxd.Errorf(sandboxd.ClassForbidden, "the file does not belong to the sandbox")
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	var done int64
	for err == nil {
		var n int
		if n, err = unix.Pread(tmp.fd, *buf, done); n == 0 {
			break
		}
		if err == nil {
			done += int64(n)
			err = writeAll(fd, (*buf)[:n])
		}
	}
	if err == nil && opts.Synced {
		err = unix.Fsync(fd)
	}
	if err != nil {
		var now unix.Stat_t
		if unix.Fstat(fd, &now) == nil && now.Size > st.Size && now.Size <= st.Size+done {
			_ = unix.Ftruncate(fd, st.Size) // only what we added; otherwise the sandbox wrote too
		}
		return beneath.Error(err)
	}
	return beneath.Error(unix.Dup3(fd, tmp.fd, unix.O_CLOEXEC))
}

// temp is a file that nobody sees yet. Until it is given away it is ours and
// closed to the sandbox.
type temp struct {
	dir   beneath.Dir
	name  string
	fd    int
	moved bool
}

func newTemp(dir beneath.Dir) (*temp, error) { return createTemp(dir, tempPrefix+sandboxd.NewID()) }

func createTemp(dir beneath.Dir, name string) (*temp, error) {
	t := &temp{dir: dir, name: name}
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	err := beneath.Retry(func() (err error) {
		t.fd, err = unix.Openat(int(dir), t.name, flags, 0o600)
		return err
	})
	if err != nil {
		return nil, beneath.Error(err)
	}
	return t, nil
}

// rename gives the file its place.
func (t *temp) rename(dir beneath.Dir, name string, flags uint) error {
	err := unix.Renameat2(int(t.dir), t.name, int(dir), name, flags)
	t.moved = err == nil
	return err
}

// discard closes the file and removes it if it got no name.
func (t *temp) discard() {
	_ = unix.Close(t.fd)
	if !t.moved {
		_ = unix.Unlinkat(int(t.dir), t.name, 0)
	}
}

// fill copies body, which must be of the given size unless that is negative.
func (t *temp) fill(ctx context.Context, body io.Reader, size int64) error {
	if body == nil {
		body = eof{}
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	var total int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := body.Read(*buf)
		total += int64(n)
		if size >= 0 && total > size {
			return sandboxd.Invalid("body", "it has more than the announced %d bytes", size)
		}
		if n > 0 {
			if err := writeAll(t.fd, (*buf)[:n]); err != nil {
				return beneath.Error(err)
			}
		}
		if err == io.EOF {
			break
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return sandboxd.Wrap(sandboxd.ClassInvalid, err, "the body ended early")
		}
		if err != nil {
			return err
		}
	}
	if size >= 0 && total != size {
		return sandboxd.Invalid("body", "it has %d bytes and not the announced %d", total, size)
	}
	return nil
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
