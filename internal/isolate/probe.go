package isolate

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// LandlockABI is the version of Landlock that the kernel offers, 0 for none.
func LandlockABI() int {
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0
	}
	return int(n)
}

// HasSeccomp says whether the kernel takes filter programs.
func HasSeccomp() bool {
	// A filter at a null address is EFAULT where filters exist.
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, 0)
	return e == unix.EFAULT
}

// HasPidfd says whether a process can be held by a descriptor.
func HasPidfd() bool {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// HasOpenat2 says whether paths can be resolved beneath a directory.
func HasOpenat2() bool {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// HasMountSetattr says whether a tree of mounts can be made read-only at once.
func HasMountSetattr() bool {
	err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	return err != unix.ENOSYS
}

// Namespaces lists the kinds that are missing of those a sandbox needs.
func Namespaces() (missing []string) {
	for _, kind := range []string{"mnt", "pid", "ipc", "uts", "net", "cgroup"} {
		if _, err := os.Lstat("/proc/self/ns/" + kind); err != nil {
			missing = append(missing, kind)
		}
	}
	return missing
}

// UserNamespaces says whether an ordinary user may make a user namespace, what was
// found, and if not what to change. A security module may still refuse what is done
// in one.
func UserNamespaces() (usable bool, detail, hint string) {
	if _, err := os.Lstat("/proc/self/ns/user"); err != nil {
		return false, "missing", "needs CONFIG_USER_NS"
	}
	for _, setting := range []struct {
		name, closed string
	}{{"user/max_user_namespaces", "0"}, {"kernel/unprivileged_userns_clone", "0"}, {"kernel/apparmor_restrict_unprivileged_userns", "1"}} {
		text, err := os.ReadFile("/proc/sys/" + setting.name)
		if err == nil && strings.TrimSpace(string(text)) == setting.closed {
			return false, setting.name + " is " + setting.closed, "run the server as root, or as root change " + setting.name + " with sysctl"
		}
	}
	// Made, and then left at once, because there is no such program. What lets nobody
	// make one, as a chroot, shows only so.
	_, err := syscall.ForkExec("/proc/self/no-program", nil, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}})
	if !errors.Is(err, unix.ENOENT) {
		return false, fmt.Sprintf("the kernel makes none: %v", err), "run the server as root, and outside of a chroot and of containers that forbid it"
	}
	return true, "one id, for each sandbox its own", ""
}
