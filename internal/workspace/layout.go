package workspace

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

const (
	metaFile     = "meta.json"
	workspaceDir = "workspace"
	homeDir      = "home"
	metaVersion  = 1
)

// Root is the directory that holds every workspace of a host:
//
//	<dir>/<key>/workspace    the sandbox's, 0755
//	<dir>/<key>/home         the sandbox's, 0700; made with its first environment, see home.go
//	<dir>/<key>/meta.json    the host's, 0600
//	<trash>                                   what was deleted and is not gone yet
//
// The directory and each <key> are the host's and 0700, so that no user of the
// machine reaches the files of a sandbox. Methods are safe for concurrent use.
type Root struct {
	discarding sync.Mutex // held while something of the trash is removed
	dir        string
	trash      string
	mu         sync.Mutex // creation and removal of keys
}

// Meta is what a host needs to know of a workspace when its database is lost.
type Meta struct {
	ID         string            `json:"id"`
	Key        string            `json:"key"`
	UID        uint32            `json:"uid"`
	CreatedAt  time.Time         `json:"created_at"`
	Runtime    string            `json:"runtime"`
	Driver     string            `json:"driver"`
	Image      string            `json:"image,omitempty"`
	OCIRuntime string            `json:"oci_runtime,omitempty"`
	Root       string            `json:"root,omitempty"`
	Tenant     string            `json:"tenant,omitempty"`
	Face       string            `json:"face,omitempty"`
	Limits     sandboxd.Limits   `json:"limits"`
	Network    sandboxd.Network  `json:"network,omitzero"`
	Labels     map[string]string `json:"labels,omitempty"`
}

type storedMeta struct {
	Version int `json:"version"`
	Meta
}

// Places are where the workspaces of a host are, and their trash: in its data directory,
// or in a directory of the operator's choice, where no key has the trash's name.
func Places(data, chosen string) (dir, trash string) {
	if chosen == "" {
		return filepath.Join(data, "workspaces"), filepath.Join(data, "trash")
	}
	return chosen, filepath.Join(chosen, "~trash")
}

// OpenRoot opens the directory and its trash, making them when they are missing.
// Both must be on one file system.
func OpenRoot(dir, trash string) (*Root, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		trash, err = filepath.Abs(trash)
	}
	if err != nil {
		return nil, hostError(err, "the directory of workspaces has no path")
	}
	r := &Root{dir: dir, trash: trash}
	if err := r.mayBegin(); err != nil {
		return nil, err
	}
	for _, d := range []string{r.dir, r.trash} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, hostError(err, "the directory of workspaces cannot be made")
		}
		if err := os.Chmod(d, 0o700); err != nil {
			return nil, hostError(err, "the directory of workspaces cannot be closed to others")
		}
	}
	return r, nil
}

// mayBegin refuses, before anything is changed, a directory that has what no host made.
// One with a trash was a host's.
func (r *Root) mayBegin() error {
	if _, err := os.Lstat(r.trash); err == nil {
		return nil
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hostError(err, "the directory of workspaces cannot be read")
	}
	for _, e := range entries {
		if e.Name() == "lost+found" { // a file system of its own
			continue
		}
		if _, err := os.Lstat(filepath.Join(r.dir, e.Name(), metaFile)); err != nil {
			return sandboxd.Errorf(sandboxd.ClassConflict, "%s has %q, which is no workspace of a host", r.dir, e.Name()).
				WithHint("name an empty directory; the files of another service are copied into open sandboxes")
		}
	}
	return nil
}

// hostError classes a failure on the host's own paths.
func hostError(err error, what string) error {
	class := sandboxd.ClassInternal
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		class = sandboxd.ClassNoSpace
	}
	return sandboxd.Wrap(class, err, "%s", what)
}

// Dirs answers where the files of a key are. It is empty for what is no key.
func (r *Root) Dirs(key string) (workspace, home string) {
	if !sandboxd.ValidKey(key) {
		return "", ""
	}
	return filepath.Join(r.dir, key, workspaceDir), filepath.Join(r.dir, key, homeDir)
}

// Create makes the workspace of a key and gives it to meta.UID. The key
// appears complete or not at all. With the same id already there it changes
// nothing and is no error; with another one it is ClassConflict. A record that is
// damaged, as a power cut may leave it, is written anew.
func (r *Root) Create(meta Meta) error {
	if !sandboxd.ValidKey(meta.Key) || !sandboxd.ValidID(meta.ID) {
		return sandboxd.Invalid("key", "a workspace needs a valid key and id")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := os.Lstat(filepath.Join(r.dir, meta.Key)); err == nil {
		there, err := r.ReadMeta(meta.Key)
		if sandboxd.ClassOf(err) == sandboxd.ClassInternal && err != nil {
			return writeMeta(filepath.Join(r.dir, meta.Key), meta)
		}
		if err == nil && there.ID == meta.ID {
			return nil
		}
		return sandboxd.Errorf(sandboxd.ClassConflict, "the files of another sandbox have this key")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return hostError(err, "the workspace cannot be examined")
	}
	// Built in the trash, where a half-made one is swept.
	built, err := os.MkdirTemp(r.trash, "new-")
	if err != nil {
		return hostError(err, "the workspace cannot be made")
	}
	if err := r.build(built, meta); err != nil {
		return errors.Join(err, os.RemoveAll(built))
	}
	if err := unix.Renameat2(unix.AT_FDCWD, built, unix.AT_FDCWD, filepath.Join(r.dir, meta.Key), unix.RENAME_NOREPLACE); err != nil {
		return errors.Join(hostError(err, "the workspace cannot be put in place"), os.RemoveAll(built))
	}
	return nil
}

func (r *Root) build(dir string, meta Meta) error {
	path := filepath.Join(dir, workspaceDir)
	err := os.Mkdir(path, 0o755)
	if err == nil {
		err = os.Chmod(path, 0o755) // whatever the umask says
	}
	if err == nil && os.Geteuid() != int(meta.UID) {
		err = os.Lchown(path, int(meta.UID), int(meta.UID))
	}
	if err != nil {
		return hostError(err, "the workspace cannot be made")
	}
	return writeMeta(dir, meta)
}

// writeMeta replaces meta.json in a directory of the host's.
func writeMeta(dir string, meta Meta) error {
	data, err := json.MarshalIndent(storedMeta{metaVersion, meta}, "", "  ")
	if err != nil {
		return hostError(err, "the workspace's record cannot be written")
	}
	f, err := os.CreateTemp(dir, metaFile+"-") // 0600 by itself
	if err != nil {
		return hostError(err, "the workspace's record cannot be written")
	}
	// Not brought to the disk: a power cut may leave it empty, and Create then
	// writes it anew from the host's store.
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, metaFile))
	}
	if err != nil {
		return errors.Join(hostError(err, "the workspace's record cannot be written"), os.Remove(f.Name()))
	}
	return nil
}

// ReadMeta answers the record of a key. ClassNotFound.
func (r *Root) ReadMeta(key string) (Meta, error) {
	if !sandboxd.ValidKey(key) {
		return Meta{}, sandboxd.Invalid("key", "it is not a key")
	}
	data, err := os.ReadFile(filepath.Join(r.dir, key, metaFile))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return Meta{}, sandboxd.Wrap(sandboxd.ClassNotFound, err, "no workspace has this key")
	}
	if err != nil {
		return Meta{}, hostError(err, "the workspace's record cannot be read")
	}
	var stored storedMeta
	if err := json.Unmarshal(data, &stored); err != nil {
		return Meta{}, hostError(err, "the workspace's record is damaged")
	}
	if stored.Key != key || stored.Version > metaVersion {
		return Meta{}, sandboxd.Errorf(sandboxd.ClassInternal, "the workspace's record is of another key or a newer version")
	}
	return stored.Meta, nil
}

// Exists says whether the workspace of a key is that of id.
func (r *Root) Exists(key, id string) bool {
	meta, err := r.ReadMeta(key)
	return err == nil && meta.ID == id
}

// Metas answers the record of every workspace, in key order. Those that cannot be
// read are left out and reported together in the error.
func (r *Root) Metas() ([]Meta, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, hostError(err, "the workspaces cannot be listed")
	}
	metas := []Meta{}
	var failed []error
	for _, e := range entries {
		if !e.IsDir() || !sandboxd.ValidKey(e.Name()) {
			continue
		}
		meta, err := r.ReadMeta(e.Name())
		if err != nil {
			failed = append(failed, err)
			continue
		}
		metas = append(metas, meta)
	}
	return metas, errors.Join(failed...)
}

// ProveOwners shows, by doing it where the workspaces are, that a file can be given
// to each user of the pool. It is for the start of a host: a machine that may not do
// so must say it then and not at the first sandbox. Ends are no proof of what is
// between: a user namespace may have holes.
func (r *Root) ProveOwners(pool sandboxd.UIDPool) error {
	f, err := os.CreateTemp(r.trash, "owner-")
	if err != nil {
		return hostError(err, "the workspace directory cannot be written")
	}
	defer func() {
		f.Close()
		r.discarding.Lock()
		os.Remove(f.Name()) // or it was emptied with the trash
		r.discarding.Unlock()
	}()
	for uid := uint64(pool.First); uid <= uint64(pool.Last); uid++ {
		if os.Geteuid() == int(uid) {
			continue
		}
		if err := f.Chown(int(uid), int(uid)); err != nil {
			return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "files in the workspace directory cannot be given to user %d", uid).
				WithHint("run as root, or put the data directory on a file system that has owners")
		}
	}
	return nil
}

// Files serves the workspace of a key to callers; what is made belongs to uid.
// ClassNotFound.
func (r *Root) Files(key string, uid uint32) (*Workspace, error) {
	dir, _ := r.Dirs(key)
	if dir == "" {
		return nil, sandboxd.Invalid("key", "it is not a key")
	}
	return New(dir, uid)
}

// Trash moves the files of a key out of reach at once, if they are those of id;
// EmptyTrash removes them. Missing ones are no error.
func (r *Root) Trash(key, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.Exists(key, id) {
		return nil
	}
	to := filepath.Join(r.trash, id)
	err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(r.dir, key), unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err != nil {
		return hostError(err, "the files cannot be moved to the trash")
	}
	return nil
}

// EmptyTrash removes everything that was trashed or half-made, links and mounts
// not followed. One that cannot be removed does not keep the others; the errors
// are joined.
func (r *Root) EmptyTrash(ctx context.Context) error {
	entries, err := os.ReadDir(r.trash)
	if err != nil {
		return hostError(err, "the trash cannot be listed")
	}
	var failed []error
	for _, e := range entries {
		failed = append(failed, r.discard(ctx, e.Name()))
	}
	return errors.Join(failed...)
}

// Discard removes what Trash moved aside for an id. Missing ones are no error.
func (r *Root) Discard(ctx context.Context, id string) error { return r.discard(ctx, id) }

// discard removes one entry of the trash. One at a time: two removers of one tree
// would find each other's half.
func (r *Root) discard(ctx context.Context, name string) error {
	r.discarding.Lock()
	defer r.discarding.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(r.trash, name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	root, err := beneath.OpenTrusted(r.trash)
	if err != nil {
		return err
	}
	defer root.Close()
	rm := &remover{w: &Workspace{seize: os.Geteuid() == 0}, root: root}
	if strings.HasPrefix(name, "new-") {
		r.mu.Lock() // none is being built now
	}
	err = rm.tree(ctx, root, name, 1)
	if strings.HasPrefix(name, "new-") {
		r.mu.Unlock()
	}
	if err != nil {
		return err
	}
	return rm.run(ctx)
}
