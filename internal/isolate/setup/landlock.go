package setup

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	fsRead  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_EXECUTE
	fsWrite = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	fsABI1  = 1<<13 - 1 // everything that the first version knew
)

// landlockAccess are the rights that a ruleset of that version can handle.
func landlockAccess(abi int) uint64 {
	access := uint64(fsABI1)
	for _, later := range []struct {
		abi   int
		right uint64
	}{{2, unix.LANDLOCK_ACCESS_FS_REFER}, {3, unix.LANDLOCK_ACCESS_FS_TRUNCATE}, {5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV}} {
		if abi >= later.abi {
			access |= later.right
		}
	}
	return access
}

type landlockRuleset struct {
	fs     uint64
	net    uint64
	scoped uint64
}

// landlockBeneath is packed in the kernel: 12 bytes.
type landlockBeneath struct {
	access [2]uint32
	fd     int32
}

// landlock repeats with another mechanism what the mounts and the user already
// say, so that one bug in either is not enough: writes below four directories
// only, no signal and no abstract socket to anybody outside.
func (p privileges) landlock() error {
	if p.spec.Landlock < 2 {
		return nil // version 1 forbids renames between directories
	}
	all := landlockAccess(p.spec.Landlock)
	rules := landlockRuleset{fs: all}
	size := unsafe.Sizeof(rules.fs)
	if p.spec.Landlock >= 4 {
		size += unsafe.Sizeof(rules.net)
	}
	if p.spec.Landlock >= 6 {
		rules.scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
		size = unsafe.Sizeof(rules)
	}
	set, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), size, 0)
	if e != 0 {
		return e
	}
	defer unix.Close(int(set))
	for _, rule := range []struct {
		path   string
		access uint64
	}{
		{"/", fsRead},
		{"/workspace", all}, {"/home/sandbox", all}, {"/tmp", all}, {"/dev/shm", all},
		{"/dev", fsRead | fsWrite}, {"/proc", fsRead | fsWrite},
	} {
		fd, err := unix.Open(rule.path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = landlockAllow(int(set), fd, rule.access&all)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	// The init's program is outside the new root and is executed once more.
	if err := landlockAllow(int(set), p.self, unix.LANDLOCK_ACCESS_FS_EXECUTE|unix.LANDLOCK_ACCESS_FS_READ_FILE); err != nil {
		return err
	}
	if _, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0); e != 0 {
		return e
	}
	return nil
}

func landlockAllow(set, fd int, access uint64) error {
	rule := landlockBeneath{access: [2]uint32{uint32(access), uint32(access >> 32)}, fd: int32(fd)}
	_, _, e := unix.RawSyscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(set), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}
