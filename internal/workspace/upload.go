package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

const (
	uploadPrefix = tempPrefix + "up-"
	// maxUploads is how many of a workspace may be unfinished.
	maxUploads = 16
	// uploadIdle is how long one waits for its next piece.
	uploadIdle = time.Hour
)

// uploads are the unfinished ones of a workspace, by the names of their files in
// its top. The files themselves are the truth: their sizes are what has arrived.
type uploads struct {
	mu    sync.Mutex
	known map[string]*upload
	timer *time.Timer // fires when the oldest has waited too long
	now   func() time.Time
}

type upload struct {
	busy bool
	last time.Time
}

// begin takes an upload for one piece.
func (u *uploads) begin(name string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.known[name]
	switch {
	case one == nil && len(u.known) >= maxUploads:
		return sandboxd.Errorf(sandboxd.ClassCapacity, "%d uploads of this workspace are unfinished", len(u.known)).
			WithHint("finish one of them; an upload that gets nothing for an hour is dropped")
	case one == nil:
		u.add(name, &upload{busy: true})
	case one.busy:
		return sandboxd.Errorf(sandboxd.ClassBusy, "another piece of this upload is arriving")
	default:
		one.busy = true
	}
	return nil
}

func (u *uploads) add(name string, one *upload) {
	if u.known == nil {
		u.known = map[string]*upload{}
	}
	u.known[name] = one
}

// end gives an upload back; over says that its file is gone.
func (u *uploads) end(w *Workspace, name string, over bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if over {
		delete(u.known, name)
		return
	}
	if one := u.known[name]; one != nil {
		one.busy, one.last = false, u.now()
	}
	u.arm(w)
}

func (u *uploads) arm(w *Workspace) {
	if u.timer == nil {
		u.timer = time.AfterFunc(uploadIdle, func() { w.dropIdle(context.Background()) })
	}
}

// dropIdle removes the uploads that have waited for too long.
func (w *Workspace) dropIdle(ctx context.Context) {
	u := &w.uploads
	u.mu.Lock()
	defer u.mu.Unlock()
	u.timer = nil
	root, err := w.root(ctx)
	if err != nil {
		clear(u.known) // the whole workspace is gone
		return
	}
	defer root.Close()
	for name, one := range u.known {
		if !one.busy && u.now().Sub(one.last) >= uploadIdle {
			_ = unix.Unlinkat(int(root), name, 0)
			delete(u.known, name)
		}
	}
	if len(u.known) > 0 {
		u.arm(w)
	}
}

// adopt keeps an upload that an earlier process began; false means that it is to
// be removed.
func (w *Workspace) adopt(root beneath.Dir, name string) bool {
	u := &w.uploads
	u.mu.Lock()
	defer u.mu.Unlock()
	st, err := root.Stat(name)
	if err != nil || !w.mine(&st) || len(u.known) >= maxUploads {
		return false
	}
	last := time.Unix(st.Mtim.Unix())
	if u.now().Sub(last) >= uploadIdle {
		return false
	}
	u.add(name, &upload{last: last})
	u.arm(w)
	return true
}

// mine says whether a file is one that is still ours alone, and not what a
// sandbox has put in its place.
func (w *Workspace) mine(st *unix.Stat_t) bool {
	return st.Mode == unix.S_IFREG|0o600 && int(st.Uid) == unix.Geteuid()
}

// checkPart says whether a piece makes sense by itself.
func checkPart(part sandboxd.UploadPart, body io.Reader, opts sandboxd.WriteOptions) error {
	switch {
	case !sandboxd.ValidCommandID(part.ID):
		return sandboxd.Invalid("id", "1 to 64 letters, digits and ._- are needed")
	case opts.Append:
		return sandboxd.Invalid("append", "an upload replaces the file")
	case body == nil:
		return nil
	case part.Total < 0 || part.Offset < 0 || opts.Size < 0:
		return sandboxd.Invalid("range", "offset, size and total are needed")
	case part.Offset > part.Total || opts.Size > part.Total-part.Offset:
		return sandboxd.Invalid("range", "it ends beyond the total")
	case opts.Size == 0 && part.Offset < part.Total:
		return sandboxd.Invalid("range", "a piece without bytes only ends an upload")
	}
	return nil
}

// Upload implements sandboxd.Files. A last piece that cannot be put in place, for
// a condition or a directory, ends the upload.
func (w *Workspace) Upload(ctx context.Context, path string, part sandboxd.UploadPart, body io.Reader, opts sandboxd.WriteOptions) (sandboxd.UploadState, error) {
	var state sandboxd.UploadState
	rel, err := creatable(path)
	if err != nil {
		return state, err
	}
	if err := checkPart(part, body, opts); err != nil {
		return state, err
	}
	if rel == "." {
		return state, sandboxd.Errorf(sandboxd.ClassConflict, "a directory is there")
	}
	root, err := w.root(ctx)
	if err != nil {
		return state, err
	}
	defer root.Close()
	name := uploadName(part.ID, rel)
	if body == nil {
		if st, err := root.Stat(name); err == nil && w.mine(&st) {
			state.Received = st.Size
		}
		return state, nil
	}
	if err := w.uploads.begin(name); err != nil {
		return state, err
	}
	defer func() {
		st, err := root.Stat(name)
		w.uploads.end(w, name, err != nil || !w.mine(&st))
	}()
	tmp, err := w.partial(root, name, part)
	if err != nil {
		return state, err
	}
	defer tmp.discard()
	tmp.moved = true // discard keeps it
	arrived := tmp.fill(ctx, body, opts.Size)
	if opts.Synced && arrived == nil {
		arrived = beneath.Error(unix.Fsync(tmp.fd))
	}
	var st unix.Stat_t
	if err := unix.Fstat(tmp.fd, &st); err != nil {
		return state, beneath.Error(err)
	}
	state.Received = st.Size
	if arrived != nil || st.Size < part.Total {
		return state, arrived
	}
	tmp.moved = false
	p, err := w.target(root, rel)
	if err != nil {
		return state, err
	}
	defer p.close()
	if err := w.replace(p, tmp, opts); err != nil {
		return state, err
	}
	state.Info, err = p.written(rel, tmp, opts)
	state.Complete = err == nil
	return state, err
}

// uploadName is the name in the top under which the bytes of an upload are kept.
func uploadName(id, rel string) string {
	sum := sha256.Sum256([]byte(id + "\x00" + rel))
	return uploadPrefix + hex.EncodeToString(sum[:16])
}

// partial opens the file of an upload where the piece begins.
func (w *Workspace) partial(root beneath.Dir, name string, part sandboxd.UploadPart) (*temp, error) {
	if err := room(root, part.Total-part.Offset); err != nil {
		return nil, err
	}
	fd, st, err := root.OpenStrict(name, unix.O_RDWR)
	if err == nil && !w.mine(&st) {
		_ = unix.Close(fd)
		err = unix.ENOENT
	}
	if err == nil {
		t := &temp{dir: root, name: name, fd: fd}
		if part.Offset != st.Size && part.Offset != 0 {
			_ = unix.Close(fd)
			return nil, begins(st.Size)
		}
		err := unix.Ftruncate(fd, part.Offset)
		if err == nil {
			_, err = unix.Seek(fd, part.Offset, io.SeekStart)
		}
		if err != nil {
			_ = unix.Close(fd)
			return nil, beneath.Error(err)
		}
		return t, nil
	}
	if part.Offset != 0 {
		return nil, begins(0)
	}
	_ = unix.Unlinkat(int(root), name, 0) // whatever a sandbox has put there
	return createTemp(root, name)
}

func begins(at int64) error {
	return sandboxd.Errorf(sandboxd.ClassRange, "%d bytes have been received and the piece does not begin there", at).
		WithHint("ask how far the upload is, or begin anew with offset 0")
}

// isUpload says whether a name in the top is that of an upload's file.
func isUpload(name string, depth int) bool {
	return depth == 1 && strings.HasPrefix(name, uploadPrefix)
}
