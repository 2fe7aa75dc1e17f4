package process

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// watch waits for an environment's process 1 to die. It is a goroutine parked in
// the runtime's poller: an idle sandbox costs no thread and no wake-up.
func (d *Driver) watch(e *environment) {
	raw, err := e.pidfd.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool { return readable(int(fd)) })
	}
	if err != nil {
		return // closed: the driver let go
	}
	ending := d.endingOf(e)
	d.mu.Lock()
	stopping := e.stopping
	if !stopping {
		e.ending = &ending
	}
	closed := d.closed
	e.pidfd.Close() // before anybody hears of the end, who may look what is left
	close(e.ended)
	d.mu.Unlock()
	if stopping || closed {
		return
	}
	d.cfg.Log.Warn("a sandbox's init ended by itself", "sandbox", e.id, "cause", ending.Cause, "said", d.said(e.name))
	d.events.Push(sandboxd.DriverEvent{ID: e.id, Generation: e.generation, Ending: ending})
}

func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && n > 0
	}
}

// endingOf says what is known about a death: the kernel's counters, and the wait
// status when the process is our child, which an adopted one is not.
func (d *Driver) endingOf(e *environment) sandboxd.Ending {
	status, known := waitPID(e.pid, unix.WNOHANG)
	ending := sandboxd.Ending{Cause: sandboxd.CauseUnknown, At: time.Now().UTC()}
	if !e.started.IsZero() {
		ending.WallS = sandboxd.InSeconds(time.Since(e.started))
	}
	code := -1
	if known && status.Signaled() {
		ending.Cause, ending.Signal = sandboxd.CauseSignal, unix.SignalName(status.Signal())
		code = 128 + int(status.Signal())
	} else if known {
		ending.Cause, code = sandboxd.CauseExit, status.ExitStatus()
	}
	if d.groups != nil && d.groups.oomKills(filepath.Join(e.name, initLeaf)) > 0 {
		ending.Cause, ending.Limit = sandboxd.CauseMemory, "128 MiB of the init"
	}
	if code >= 0 {
		ending.ExitCode = &code
	}
	return ending
}
