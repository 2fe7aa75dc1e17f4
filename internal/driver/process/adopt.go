package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// handle is what a later server needs to be sure that a process is the one.
type handle struct {
	PID        int             `json:"pid"`
	Start      uint64          `json:"start"` // clock ticks after boot
	Boot       string          `json:"boot"`
	Init       string          `json:"init"` // name of its program
	Generation int64           `json:"generation"`
	Limits     sandboxd.Limits `json:"limits"`
	Image      string          `json:"image,omitempty"`
}

// startTime is when a process was started, in clock ticks after boot: together
// with the pid and the boot it names one process.
func startTime(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything, also parentheses.
	s := string(text)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	const at = 22 - 3 // field 22, counted from field 3
	if len(fields) <= at {
		return 0, errors.New("the process's stat is short")
	}
	return strconv.ParseUint(fields[at], 10, 64)
}

// Adopt is sandboxd.Driver's.
func (d *Driver) Adopt(ctx context.Context, id string, raw sandboxd.Handle) error {
	if !sandboxd.ValidID(id) {
		return sandboxd.Invalid("id", "no sandbox has this id")
	}
	if d.groups == nil && !d.rootless {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, d.groupErr, "the machine has no cgroups that the process driver can use")
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return errClosed
	}
	if d.envs[id] != nil {
		d.mu.Unlock()
		return sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox's environment is held already")
	}
	var h handle
	herr := json.Unmarshal(raw, &h)
	e := &environment{id: id, name: d.names.Of(id), generation: h.Generation, limits: h.Limits, groups: newCommandGroups(d.groups), busy: make(chan struct{}), ended: make(chan struct{})}
	d.envs[id] = e
	d.mu.Unlock()

	pidfd, err := d.prove(ctx, e.name, h)
	if herr != nil {
		err = herr
	}
	if err == nil {
		if d.groups != nil {
			e.groups.adopt(e.name)
		}
		if h.Image != "" {
			e.release = d.images.Keep(h.Image)
		}
		if err = d.commit(e, h.PID, pidfd); err == nil {
			d.release(e, true)
			return nil
		}
	}
	if pidfd >= 0 {
		unix.Close(pidfd)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	cerr := d.clear(ctx, id)
	if h.PID > 0 {
		waitPID(h.PID, unix.WNOHANG) // ours when the same process started it
	}
	d.release(e, false)
	e.letGo()
	if cerr != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, cerr, "remove what the sandbox left")
	}
	gone := sandboxd.Wrap(sandboxd.ClassGone, err, "the sandbox's environment is gone")
	if errors.Is(err, errRestarted) {
		gone.Ending = &sandboxd.Ending{Cause: sandboxd.CauseHostRestart, Message: errRestarted.Error(), At: time.Now().UTC()}
	}
	return gone
}

// errRestarted is a handle of another boot: what ended the environment is certain.
var errRestarted = errors.New("the machine, or the container that the server is in, has restarted")

// prove answers a descriptor of the process that the handle means: of this boot,
// started at the same tick, alive, and the one that listens on the socket.
func (d *Driver) prove(ctx context.Context, name string, h handle) (int, error) {
	if h.Boot != d.bootID {
		return -1, errRestarted
	}
	if h.PID <= 1 {
		return -1, errors.New("the handle names no process")
	}
	pidfd, err := unix.PidfdOpen(h.PID, 0)
	if err != nil {
		return -1, err
	}
	// From here on the number is the descriptor's process or, if that has ended,
	// nobody's that the checks below would take.
	start, err := startTime(h.PID)
	if err == nil && start != h.Start {
		err = errors.New("another process has the number")
	}
	if err == nil && readable(pidfd) {
		err = errors.New("it has ended")
	}
	if err == nil {
		err = d.proveSocket(ctx, name, h.PID)
	}
	if err != nil {
		unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}

func (d *Driver) proveSocket(ctx context.Context, name string, pid int) error {
	conn, err := d.dial(ctx, name)
	if err != nil {
		return err
	}
	defer conn.Close()
	listener, err := peer(conn)
	if err != nil {
		return err
	}
	if listener != pid {
		return errors.New("another process listens on its socket")
	}
	return nil
}
