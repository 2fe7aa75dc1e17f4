package setup

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Without root the set-up stage has every capability in a user namespace of its own,
// in which there is one id. Two things need more than that: device nodes, which are
// the machine's own then, and a file system of terminals, which the kernel gives only
// to a namespace that has a user 0.

// borrow shows the machine's device of that number. It must be that device: what lies
// in the machine's /dev is looked at, not believed.
func borrow(name string, number uint64) error {
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		return err
	}
	fd, err := unix.Open("/"+name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || uint64(st.Rdev) != number {
		return errors.New("the machine has something else under this name")
	}
	return bind(fd, name, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, 0)
}

// TerminalsArg makes the init run Terminals.
const TerminalsArg = "terminals"

// fdMount is the socket on which Terminals hands over what it made.
const fdMount = 3

// terminals mounts the sandbox's own file system of terminals. A child in a user
// namespace below this one, in which the one id is called 0, makes it and hands it
// over unmounted. It is after the pivot, because only the new /proc knows the child.
func (p privileges) terminals() error {
	if !p.spec.Rootless {
		return nil // the root was built with one
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(p.spec.UID), Size: 1}}
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", p.self), []string{"init", TerminalsArg}, &syscall.ProcAttr{
		Env: Environment, Files: []uintptr{0, 1, 2, uintptr(pair[1])},
		Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: id, GidMappings: id},
	})
	unix.Close(pair[1])
	if err != nil {
		return err
	}
	said, oob := make([]byte, 1024), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(pair[0], said, oob, unix.MSG_CMSG_CLOEXEC)
	for {
		if _, werr := unix.Wait4(pid, nil, 0, nil); werr != unix.EINTR {
			break
		}
	}
	if err != nil {
		return err
	}
	fds, err := received(oob[:oobn])
	if err != nil {
		return err
	}
	if len(fds) != 1 {
		return fmt.Errorf("they cannot be made: %s", said[:n])
	}
	defer unix.Close(fds[0])
	return unix.MoveMount(fds[0], "", unix.AT_FDCWD, "/dev/pts", unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Terminals makes a file system of terminals and sends it to the set-up stage, or
// sends why not.
func Terminals() error {
	fd, err := newTerminals()
	if err != nil {
		return errors.Join(err, unix.Sendmsg(fdMount, []byte(err.Error()), nil, nil, unix.MSG_NOSIGNAL))
	}
	if err := unix.Sendmsg(fdMount, []byte("made"), unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL); err != nil {
		return err
	}
	os.Exit(0)
	return nil
}

func newTerminals() (int, error) {
	fs, err := unix.Fsopen("devpts", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fs)
	for _, option := range [][2]string{{"ptmxmode", "0666"}, {"mode", "0620"}, {"max", terminals}} {
		if err := unix.FsconfigSetString(fs, option[0], option[1]); err != nil {
			return -1, fmt.Errorf("%s: %w", option[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	return fd, nil
}
