package spawn

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// The runtime keeps these for programs that fork by themselves: they block
// signals, forbid stack growth and restore both (go.dev/issue/67401).

//go:linkname beforeFork syscall.runtime_BeforeFork
func beforeFork()

//go:linkname afterFork syscall.runtime_AfterFork
func afterFork()

//go:linkname afterForkInChild syscall.runtime_AfterForkInChild
func afterForkInChild()

// vclone is clone without a new stack; see the assembly. It must be called
// directly, never through a value: a wrapper's frame would not survive the child.
//
//go:noescape
func vclone(flags uintptr) (pid, errno uintptr)

// child is all that the new process needs, laid out beforehand: it runs in the
// parent's memory until its exec, while the parent's thread waits, and may not
// allocate, lock or grow its stack.
type child struct {
	path   *byte
	argv   []*byte
	envv   []*byte
	dir    *byte
	stdio  [3]int
	groups []int
	tty    bool
	limits []rlimit
	zero   [1]byte

	// Written by the new process when it fails.
	step   uint32
	failed syscall.Errno
}

// rlimit is one of a new process's limits, soft and hard alike.
type rlimit struct {
	resource uintptr
	value    unix.Rlimit
	key      key // of who sets it; nothing for most
}

func newLimit(resource int, most uint64) rlimit {
	return rlimit{resource: uintptr(resource), value: unix.Rlimit{Cur: most, Max: most}}
}

// usualSlack is the kernel's own, in nanoseconds; process 1 has more.
const usualSlack = 50_000

// The steps of a new process.
const (
	stepGroup = iota + 1
	stepSession
	stepStdio
	stepTerminal
	stepDir
	stepLimit
	stepSlack
	stepClose
	stepExec
)

func newChild(path string, spec wire.Start, stdio [3]int, groups []int) (*child, error) {
	c := &child{stdio: stdio, groups: groups, tty: spec.TTY, zero: [1]byte{'0'}}
	var err error
	if c.path, err = syscall.BytePtrFromString(path); err != nil {
		return nil, fmt.Errorf("the program's name holds a NUL byte")
	}
	if c.dir, err = syscall.BytePtrFromString(spec.Cwd); err != nil {
		return nil, fmt.Errorf("the directory's name holds a NUL byte")
	}
	if c.argv, err = syscall.SlicePtrFromStrings(spec.Argv); err != nil {
		return nil, fmt.Errorf("an argument holds a NUL byte")
	}
	if c.envv, err = syscall.SlicePtrFromStrings(spec.Env); err != nil {
		return nil, fmt.Errorf("the environment holds a NUL byte")
	}
	return c, nil
}

// fork starts the process and answers its pid once it runs its program. One that fails is
// gone when this returns: unreaped it would be seen, and count among the processes of the
// sandbox, by whoever was told that nothing started. The caller keeps the reaper away.
func (c *child) fork() (int, error) {
	pid, errno := c.clone()
	runtime.KeepAlive(c)
	if errno != 0 {
		return 0, fmt.Errorf("fork: %w", syscall.Errno(errno))
	}
	if c.failed != 0 {
		for {
			if _, err := unix.Wait4(int(pid), nil, 0, nil); err != unix.EINTR {
				break
			}
		}
		return 0, c.explain(c.step, c.failed)
	}
	return int(pid), nil
}

func (c *child) explain(step uint32, errno syscall.Errno) error {
	switch step {
	case stepDir:
		return &inside.SpawnError{Code: 126, Text: "working directory: " + errno.Error()}
	case stepExec:
		code := 126
		if errno == unix.ENOENT {
			code = 127
		}
		return &inside.SpawnError{Code: code, Text: unix.BytePtrToString(c.path) + ": " + errno.Error()}
	}
	return fmt.Errorf("start: step %d of the new process: %w", step, errno)
}

// clone forks. In the child it does not return.
//
//go:noinline
//go:norace
func (c *child) clone() (pid, errno uintptr) {
	var e syscall.Errno
	argv, envv := &c.argv[0], &c.envv[0]
	beforeFork()
	pid, errno = vclone(unix.CLONE_VM | unix.CLONE_VFORK | uintptr(unix.SIGCHLD))
	if errno != 0 || pid != 0 {
		afterFork()
		return pid, errno
	}
	afterForkInChild()

	c.step = stepGroup
	for i := 0; i < len(c.groups); i++ {
		if _, _, e = unix.RawSyscall(unix.SYS_WRITE, uintptr(c.groups[i]), uintptr(unsafe.Pointer(&c.zero)), 1); e != 0 {
			goto failed
		}
	}
	c.step = stepSession
	if _, _, e = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0); e != 0 {
		goto failed
	}
	c.step = stepStdio
	for i := 0; i < len(c.stdio); i++ {
		if _, _, e = unix.RawSyscall(unix.SYS_DUP3, uintptr(c.stdio[i]), uintptr(i), 0); e != 0 {
			goto failed
		}
	}
	if c.tty {
		c.step = stepTerminal
		if _, _, e = unix.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); e != 0 {
			goto failed
		}
	}
	c.step = stepDir
	if _, _, e = unix.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)), 0, 0); e != 0 {
		goto failed
	}
	c.step = stepLimit
	for i := 0; i < len(c.limits); i++ {
		if _, _, e = unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, c.limits[i].resource, uintptr(unsafe.Pointer(&c.limits[i].value)), 0,
			uintptr(c.limits[i].key[0]), uintptr(c.limits[i].key[1])); e != 0 {
			goto failed
		}
	}
	c.step = stepSlack
	if _, _, e = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, usualSlack, 0); e != 0 && e != unix.EINVAL {
		goto failed // EINVAL: a kernel, as gVisor's, that has none
	}
	c.step = stepClose
	if _, _, e = unix.RawSyscall(unix.SYS_CLOSE_RANGE, 3, uintptr(^uint32(0)), unix.CLOSE_RANGE_CLOEXEC); e != 0 && e != unix.ENOSYS && e != unix.EINVAL {
		goto failed // gVisor may lack it: it is the second belt, every descriptor is opened close-on-exec
	}
	c.step = stepExec
	_, _, e = unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(argv)), uintptr(unsafe.Pointer(envv)))
failed:
	c.failed = e
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}
