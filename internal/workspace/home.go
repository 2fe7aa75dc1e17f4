package workspace

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/failpoint"
	"sandboxd/internal/workspace/beneath"
)

// A home is made once, with what its sandbox's first environment begins with. It is
// filled under another name and gets its own by one rename: so that it is there says that
// it was made, a host that dies over it leaves none, and what a sandbox removed in it is
// never brought back.

const halfHome = "home.new"

// The places between the durable steps of making one.
var (
	fpHomeFilled = failpoint.New("home.filled")
	fpHomePlaced = failpoint.New("home.placed")
)

// HasHome says whether the home of a key was made.
func (r *Root) HasHome(key string) bool {
	dir, err := r.open(key)
	if err != nil {
		return false
	}
	defer dir.Close()
	_, err = dir.Stat(homeDir)
	return err == nil
}

func (r *Root) open(key string) (beneath.Dir, error) {
	if !sandboxd.ValidKey(key) {
		return -1, sandboxd.Invalid("key", "it is not a key")
	}
	return beneath.OpenTrusted(r.dir + "/" + key)
}

// MakeHome makes the home of a key whose workspace is that of id, for the user uid. fill
// puts into it what it is to begin with, in files of uid's; without one it is empty. One
// that was made before is left as it is. Of one key it goes on once at a time.
func (r *Root) MakeHome(ctx context.Context, key, id string, uid uint32, fill func(beneath.Dir) error) error {
	dir, err := r.claim(key, id)
	if err != nil {
		return err
	}
	defer dir.Close()
	if _, err := dir.Stat(homeDir); err == nil {
		return nil
	}
	err = r.makeHome(ctx, dir, uid, fill)
	if err != nil {
		err = errors.Join(err, r.clear(context.WithoutCancel(ctx), dir))
	}
	return err
}

// claim opens the directory of a key. By name the key may be another's a moment later:
// a delete moves its files away, and does not wait.
func (r *Root) claim(key, id string) (beneath.Dir, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.Exists(key, id) {
		return -1, sandboxd.Errorf(sandboxd.ClassNotFound, "the workspace of the sandbox is not there")
	}
	return r.open(key)
}

func (r *Root) makeHome(ctx context.Context, dir beneath.Dir, uid uint32, fill func(beneath.Dir) error) error {
	err := unix.Mkdirat(int(dir), halfHome, 0o700)
	if err == unix.EEXIST { // of a host that died over it
		if err := r.clear(ctx, dir); err != nil {
			return err
		}
		err = unix.Mkdirat(int(dir), halfHome, 0o700)
	}
	if err != nil {
		return hostError(err, "the home cannot be made")
	}
	fd, _, err := dir.OpenStrict(halfHome, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if fill != nil {
		if err := fill(beneath.Dir(fd)); err != nil {
			return err
		}
	}
	err = unix.Fchmod(fd, 0o700) // whatever the umask says
	if err == nil && os.Geteuid() != int(uid) {
		err = unix.Fchown(fd, int(uid), int(uid))
	}
	if err == nil {
		fpHomeFilled.Hit()
		err = unix.Renameat2(int(dir), halfHome, int(dir), homeDir, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return hostError(err, "the home cannot be made")
	}
	fpHomePlaced.Hit()
	return nil
}

// clear removes a home that was not finished.
func (r *Root) clear(ctx context.Context, dir beneath.Dir) error {
	rm := &remover{w: &Workspace{seize: os.Geteuid() == 0}, root: dir}
	if err := rm.tree(ctx, dir, halfHome, 1); err != nil {
		return err
	}
	return rm.run(ctx)
}
