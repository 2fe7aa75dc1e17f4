package docker

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// errNoMounts says that a container cannot be given files once it runs: another kernel
// runs it, as gVisor's, or its engine is in another world of processes than we.
var errNoMounts = errors.New("its containers take no mounts once they run")

// place is where a member has an empty directory of ours, which is known by its
// number. By it a mount goes where the engine has put the directory, whatever links the
// image has on the way, and nowhere in a container that is not the member's.
type place struct {
	target string
	dev    uint64
	ino    uint64
}

func placeOf(dir, target string) (place, error) {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	return place{target: target, dev: st.Dev, ino: st.Ino}, err
}

// attach puts detached mounts, one for each place, into the member's mount namespace.
// Without any it only proves that it could. Nothing in the container has run yet but
// our init.
func (m *member) attach(trees []int) error {
	return onOwnThread(func() error {
		// A thread that shares its root and directory with others cannot leave.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Setns(m.pidfd, unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("%w: setns: %w", errNoMounts, err)
		}
		for i, p := range m.places {
			at, err := p.open()
			if err != nil {
				return err
			}
			if i < len(trees) {
				err = unix.MoveMount(trees[i], "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
			}
			unix.Close(at)
			if err != nil {
				return fmt.Errorf("%s: move_mount: %w", p.target, err)
			}
		}
		return nil
	})
}

// open answers the place in the mount namespace of the calling thread.
func (p place) open() (int, error) {
	fd, err := unix.Open(p.target, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%w: %s: %w", errNoMounts, p.target, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != p.dev || st.Ino != p.ino {
		unix.Close(fd)
		return -1, fmt.Errorf("%w: %s is not the directory that was bound there", errNoMounts, p.target)
	}
	return fd, nil
}

// onOwnThread runs fn on a thread that nothing else uses, before or after. The first
// thread of a program cannot end, so fn is never run on that.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onOwnThread(fn)
			return
		}
		done <- fn()
	}()
	return <-done
}
