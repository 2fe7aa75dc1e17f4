package setup

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An init of a container that is kept ready waits as root of the container, with the
// right to become a user and no other, and has seen nothing of any sandbox. When it has
// its Orders, it gives that up and executes what every container begins with.

const (
	// ArgAttached makes an init serve a container's streams, ArgWaiting wait first.
	ArgAttached = "attached"
	ArgWaiting  = "waiting"
	// waitTime is when nobody can come any more: a host replaces what is ready long
	// before, so there is none.
	waitTime = 15 * time.Minute
)

// Wait says by a Report on stdout that it waits, takes its Orders from stdin and
// executes the init as their user. It returns only by failing.
func Wait() error {
	runtime.LockOSThread() // credentials are a thread's; the exec keeps this one
	if err := WriteMessage(os.Stdout, Report{}); err != nil {
		return err
	}
	var orders Orders
	if err := awaitInput(0, waitTime); err != nil {
		return err
	}
	if err := ReadMessage(os.Stdin, &orders); err != nil {
		return err
	}
	p := privileges{spec: Spec{UID: orders.UID}}
	last := []step{
		{StepCapabilities, p.dropBounding},
		{StepUser, p.changeUser},
		{"start process 1", func() error { return syscall.Exec(os.Args[0], []string{os.Args[0], ArgAttached}, os.Environ()) }},
	}
	name, err := do(last, nil)
	return errors.Join(WriteMessage(os.Stdout, Report{Step: name, Error: err.Error()}), err)
}

// awaitInput waits for the first byte, or the end, of what a descriptor has to read.
func awaitInput(fd int32, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		fds := []unix.PollFd{{Fd: fd, Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline))/time.Millisecond))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return errors.New("no host has come")
		default:
			return nil
		}
	}
}
