// Package beneath opens paths inside a directory whose content somebody hostile
// controls and changes at the same time. It is the only place that may.
//
// Whatever is on the way, a path ends inside the directory, on the same mount,
// at a regular file or a directory, without waiting; or it is an error with a
// class. It is not a file interface: it hands out descriptors, which the caller
// closes, and package workspace makes files of them.
package beneath

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd"
)

const (
	// tries bounds how often a resolution that a rename disturbed is repeated.
	tries = 16
	// maxLinks is how many links one path may go through, as in the kernel.
	maxLinks = 40
	// maxDepth bounds the descriptors that one resolution by hand holds.
	maxDepth = 256

	always  = unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
)

// Dir is the descriptor of a directory that resolution starts from and does not
// leave. It is safe for concurrent use until closed.
type Dir int

// OpenTrusted opens a directory by a path that the host itself made.
func OpenTrusted(path string) (Dir, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, Error(err)
	}
	return Dir(fd), nil
}

// Close releases the descriptor.
func (d Dir) Close() { _ = unix.Close(int(d)) }

// Open opens a cleaned path with the given flags (without O_CREAT), following
// links that stay inside unless flags has O_NOFOLLOW. Unless O_PATH is asked
// for, what opens is a regular file or a directory; anything else is
// ClassInvalid.
func (d Dir) Open(path string, flags int) (int, unix.Stat_t, error) {
	for range tries {
		fd, err := open(int(d), path, flags, resolve)
		if err == unix.EXDEV {
			// An absolute link, a link that leaves, or a mount: the kernel does not
			// say which.
			fd, err = d.openByHand(path, flags)
		}
		if err == unix.EAGAIN {
			continue
		}
		return checked(fd, flags, err)
	}
	return checked(-1, flags, unix.EAGAIN)
}

// OpenStrict opens a cleaned path on which no link may be, neither on the way nor
// at the end.
func (d Dir) OpenStrict(path string, flags int) (int, unix.Stat_t, error) {
	for range tries {
		fd, err := open(int(d), path, flags|unix.O_NOFOLLOW, resolve|unix.RESOLVE_NO_SYMLINKS)
		if err != unix.EAGAIN {
			return checked(fd, flags, err)
		}
	}
	return checked(-1, flags, unix.EAGAIN)
}

// OpenInRoot opens a cleaned path as a process would whose root directory this is:
// absolute links and links that climb end inside. It is for trees that are somebody's
// root file system; else it is as Open.
func (d Dir) OpenInRoot(path string, flags int) (int, unix.Stat_t, error) {
	for range tries {
		fd, err := open(int(d), path, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS|unix.RESOLVE_NO_XDEV)
		if err != unix.EAGAIN {
			return checked(fd, flags, err)
		}
	}
	return checked(-1, flags, unix.EAGAIN)
}

// Parent opens the directory in which path ends and answers the name there. The
// name need not exist. With follow, links at the end are followed, and the name
// is that of what they lead to; it is "." when that is the directory itself.
func (d Dir) Parent(path string, follow bool) (Dir, string, error) {
	for range tries {
		parent, name, err := d.walk(path, follow)
		if err == unix.EAGAIN {
			continue
		}
		return Dir(parent), name, Error(err)
	}
	return -1, "", Error(unix.EAGAIN)
}

// Path is where the directory is just now, as the kernel tells it: to count or to compare,
// not to open. ENAMETOOLONG for what no path could reach.
func (d Dir) Path() (string, error) { return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(d))) }

// Stat examines a name of this very directory, not following it.
func (d Dir) Stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := Retry(func() error { return unix.Fstatat(int(d), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

// Retry repeats a system call that a signal interrupted.
func Retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func open(dir int, path string, flags int, how uint64) (int, error) {
	if flags&unix.O_PATH != 0 {
		flags = flags&(unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY) | unix.O_CLOEXEC
	} else {
		flags |= always
	}
	for {
		fd, err := unix.Openat2(dir, path, &unix.OpenHow{Flags: uint64(flags), Resolve: how})
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func checked(fd, flags int, err error) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	if err != nil {
		return -1, st, Error(err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return -1, st, Error(err)
	}
	kind := st.Mode & unix.S_IFMT
	if flags&unix.O_PATH == 0 && kind != unix.S_IFREG && kind != unix.S_IFDIR {
		_ = unix.Close(fd)
		return -1, st, Error(unix.ENXIO)
	}
	return fd, st, nil
}

func (d Dir) openByHand(path string, flags int) (int, error) {
	parent, name, err := d.walk(path, flags&unix.O_NOFOLLOW == 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	fd, err := open(parent, name, flags|unix.O_NOFOLLOW, resolve)
	if err == unix.ELOOP {
		err = unix.EAGAIN // a link was put there since the walk
	}
	return fd, err
}

// walk resolves by descriptor, one name at a time, what the kernel cannot: links
// that are absolute as the sandbox sees them. ".." returns to the directory we
// came from, so it needs no trust in the tree.
func (d Dir) walk(path string, follow bool) (parent int, name string, err error) {
	stack := []int{int(d)}
	pop := func(keep int) {
		for len(stack) > keep {
			_ = unix.Close(stack[len(stack)-1])
			stack = stack[:len(stack)-1]
		}
	}
	defer func() { pop(1) }()
	// answer hands the top of the stack over under a descriptor of its own.
	answer := func(name string) (int, string, error) {
		fd, err := unix.FcntlInt(uintptr(stack[len(stack)-1]), unix.F_DUPFD_CLOEXEC, 0)
		return fd, name, err
	}
	rest := segments(path)
	for links := 0; len(rest) > 0; {
		name, rest = rest[0], rest[1:]
		if name == ".." {
			if len(stack) == 1 {
				return -1, "", unix.EXDEV
			}
			pop(len(stack) - 1)
			continue
		}
		last := len(rest) == 0
		fd, err := open(stack[len(stack)-1], name, unix.O_PATH|unix.O_NOFOLLOW, resolve)
		if err == unix.ENOENT && last {
			return answer(name)
		}
		if err != nil {
			return -1, "", err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			_ = unix.Close(fd)
			return -1, "", err
		}
		isLink := st.Mode&unix.S_IFMT == unix.S_IFLNK
		switch {
		case isLink && (!last || follow):
			target, err := Readlink(fd, "")
			_ = unix.Close(fd)
			if err != nil {
				return -1, "", err
			}
			if links++; links > maxLinks {
				return -1, "", unix.ELOOP
			}
			if strings.HasPrefix(target, "/") {
				rel, ok := underWorkDir(target)
				if !ok {
					return -1, "", unix.EXDEV
				}
				pop(1)
				target = rel
			}
			rest = append(segments(target), rest...)
		case last:
			_ = unix.Close(fd)
			return answer(name)
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			_ = unix.Close(fd)
			return -1, "", unix.ENOTDIR
		default:
			stack = append(stack, fd)
			if len(stack) > maxDepth {
				return -1, "", unix.ENAMETOOLONG
			}
		}
	}
	return answer(".")
}

// segments are the names of a path that mean something to walk.
func segments(path string) []string {
	var names []string
	for name := range strings.SplitSeq(path, "/") {
		if name != "" && name != "." {
			names = append(names, name)
		}
	}
	return names
}

// Readlink reads the link name in dir, or dir itself when name is "".
func Readlink(dir int, name string) (string, error) {
	var buf [PathMax + 1]byte
	n, err := unix.Readlinkat(dir, name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// NotFound says whether err means that nothing was there.
func NotFound(err error) bool {
	return errors.Is(err, unix.ENOENT) || sandboxd.ClassOf(err) == sandboxd.ClassNotFound
}
