package beneath

import (
	"errors"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// Error gives a system call's failure its class; an error that has one already
// stays as it is, and nil stays nil. The errno is kept for errors.Is.
func Error(err error) error {
	var classed *sandboxd.Error
	if err == nil || errors.As(err, &classed) {
		return err
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	class, text := describe(errno)
	return sandboxd.Wrap(class, errno, "%s", text)
}

func describe(errno unix.Errno) (sandboxd.Class, string) {
	switch errno {
	case unix.ENOENT:
		return sandboxd.ClassNotFound, "no such file or directory"
	case unix.ENOTDIR:
		return sandboxd.ClassNotFound, "a name on the way is not a directory"
	case unix.ELOOP:
		return sandboxd.ClassInvalid, "too many links, or a link where none may be"
	case unix.ENAMETOOLONG:
		return sandboxd.ClassInvalid, "the path is too long"
	case unix.EINVAL:
		return sandboxd.ClassInvalid, "the file system refuses this name or operation"
	case unix.EISDIR:
		return sandboxd.ClassInvalid, "it is a directory"
	case unix.ENXIO, unix.ENODEV, unix.EOPNOTSUPP:
		return sandboxd.ClassInvalid, "it is neither a file nor a directory"
	case unix.EXDEV:
		return sandboxd.ClassForbidden, "the path leaves the workspace"
	case unix.EACCES, unix.EPERM, unix.EROFS:
		return sandboxd.ClassForbidden, "the file system does not permit it"
	case unix.EEXIST, unix.ENOTEMPTY:
		return sandboxd.ClassConflict, "something is there already"
	case unix.EAGAIN, unix.EBUSY, unix.ETXTBSY, unix.EMFILE, unix.ENFILE, unix.EINTR, unix.ESTALE:
		return sandboxd.ClassBusy, "the files are changing or in use"
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		return sandboxd.ClassNoSpace, "no space is left"
	}
	return sandboxd.ClassInternal, "the file system failed"
}
