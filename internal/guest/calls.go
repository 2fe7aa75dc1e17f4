package guest

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/guest/wire"
)

// messages is a connection that carries descriptors, as *net.UnixConn.
type messages interface {
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (n, oobn int, err error)
}

// withFiles is a Write that sends files with its first byte.
func withFiles(conn messages, files []*os.File) func([]byte) (int, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	oob := unix.UnixRights(fds...)
	return func(b []byte) (int, error) {
		done := 0
		for done < len(b) {
			n, _, err := conn.WriteMsgUnix(b[done:], oob, nil)
			if err != nil {
				return done, err
			}
			done += n
			oob = nil
		}
		return done, nil
	}
}

func unavailable(err error, text string) error {
	return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "%s", text)
}

// find answers the command of an id; ClassNotFound, or ClassConflict while it is
// being started.
func (l *Link) find(id string) (*command, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	c := l.byID[id]
	if c == nil {
		return nil, sandboxd.Errorf(sandboxd.ClassNotFound, "no such command in the sandbox")
	}
	return c, nil
}

// Start starts a command and returns when it runs. groups are files of cgroups
// for it to join, which stay the caller's; start.Groups is set from them. Errors:
// *StartError when it could not be run; ClassConflict if the id exists inside;
// ClassInvalid when arguments and environment are too large; ClassUnsupported for
// groups on a connection that carries no descriptors. With ClassUnavailable by ctx
// the command is ended and forgotten; by a broken link, the next link's Commands
// say whether it exists.
func (l *Link) Start(ctx context.Context, start wire.Start, groups []*os.File) error {
	if !sandboxd.ValidCommandID(start.ID) {
		return sandboxd.Invalid("command_id", "is not 1-64 of [A-Za-z0-9._-]")
	}
	if len(start.Argv) == 0 {
		return sandboxd.Invalid("argv", "is empty")
	}
	if len(groups) > wire.MaxGroups {
		return sandboxd.Errorf(sandboxd.ClassInternal, "more than %d groups for one command", wire.MaxGroups)
	}
	if _, ok := l.conn.(messages); !ok && len(groups) > 0 {
		return sandboxd.Errorf(sandboxd.ClassUnsupported, "this driver's connection carries no descriptors")
	}
	start.Groups = len(groups)
	body, err := json.Marshal(start)
	if err != nil {
		return sandboxd.Wrap(sandboxd.ClassInternal, err, "start message")
	}
	if len(body) > wire.MaxStart {
		return sandboxd.Invalid("argv", "and environment together are above %d bytes", wire.MaxStart)
	}
	started := make(chan startResult, 1)
	c, err := l.add(start, started)
	if err != nil {
		return err
	}
	var frames []wire.Frame
	for len(body) > wire.MaxPayload {
		frames = append(frames, wire.Frame{Type: wire.TypeStart, Flags: wire.FlagMore, Number: c.number, Payload: body[:wire.MaxPayload]})
		body = body[wire.MaxPayload:]
	}
	frames = append(frames, wire.Frame{Type: wire.TypeStart, Number: c.number, Payload: body})
	if err := l.send(ctx, groups, frames...); err != nil {
		l.mu.Lock()
		c.remove()
		l.mu.Unlock()
		return err
	}
	select {
	case result := <-started:
		switch {
		case result.conflict:
			return sandboxd.Errorf(sandboxd.ClassConflict, "a command with this id exists in the sandbox")
		case result.exit != nil:
			return &StartError{Exit: *result.exit}
		}
		return nil
	case <-l.broken:
		return l.Err()
	case <-ctx.Done():
		l.background(wire.Frame{Type: wire.TypeSignal, Flags: wire.FlagWhole, Number: c.number, Arg: uint64(syscall.SIGKILL)})
		l.Forget(start.ID)
		return unavailable(ctx.Err(), "the command was not started in time")
	}
}

func (l *Link) add(start wire.Start, started chan startResult) (*command, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return nil, l.err
	case l.byID[start.ID] != nil:
		return nil, sandboxd.Errorf(sandboxd.ClassConflict, "a command with this id exists in the sandbox")
	case len(l.byNumber) >= wire.MaxCommands || l.last >= 2*maxNumber:
		return nil, sandboxd.Errorf(sandboxd.ClassCapacity, "the sandbox holds %d commands", len(l.byNumber))
	}
	l.last++
	c := newCommand(l, l.last, start.ID)
	c.started = started
	c.inputOpen = start.Stdin || start.TTY
	c.credit = wire.StdinWindow
	l.byNumber[c.number], l.byID[c.id] = c, c
	return c, nil
}

// Stdin sends data to a command and, with eof, ends its input. It waits for the
// command to take it, up to the window of 64 KiB. ClassConflict: the command has
// ended or its input is closed; ClassNotFound; ClassUnavailable: ctx ended or the
// link broke, with a beginning of data sent or none.
func (l *Link) Stdin(ctx context.Context, command string, data []byte, eof bool) error {
	c, err := l.find(command)
	if err != nil {
		return err
	}
	select {
	case c.input <- struct{}{}:
	case <-l.broken:
		return l.Err()
	case <-ctx.Done():
		return unavailable(ctx.Err(), "the command does not take its input")
	}
	defer func() { <-c.input }()
	for {
		n, err := l.credit(ctx, c, len(data))
		if err != nil {
			return err
		}
		f := wire.Frame{Type: wire.TypeStdin, Number: c.number, Payload: data[:n]}
		data = data[n:]
		last := len(data) == 0
		if last && eof {
			f.Flags = wire.FlagEOF
			l.mu.Lock()
			c.inputOpen = false
			l.mu.Unlock()
		}
		if len(f.Payload) > 0 || f.Flags != 0 {
			if err := l.send(ctx, nil, f); err != nil {
				l.unsent(c, f)
				return err
			}
		}
		if last {
			return nil
		}
	}
}

// unsent takes back an input frame whose turn to be written did not come.
func (l *Link) unsent(c *command, f wire.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.credit += len(f.Payload)
	c.inputOpen = c.ended == nil && !c.forgotten
	c.notify()
}

// credit takes what may be sent of n bytes, waiting for at least one.
func (l *Link) credit(ctx context.Context, c *command, n int) (int, error) {
	for {
		l.mu.Lock()
		open, changed := c.inputOpen && c.ended == nil, c.changed
		take := min(c.credit, n, wire.MaxPayload)
		if open && (take > 0 || n == 0) {
			c.credit -= take
			l.mu.Unlock()
			return take, nil
		}
		err := l.err
		l.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if !open {
			return 0, sandboxd.Errorf(sandboxd.ClassConflict, "the command takes no more input")
		}
		select {
		case <-changed:
		case <-l.broken:
		case <-ctx.Done():
			return 0, unavailable(ctx.Err(), "the command does not take its input")
		}
	}
}

// Signal sends a signal to the process group of a command's leader. A command
// that has ended is no error; one that is not known is ClassNotFound.
func (l *Link) Signal(ctx context.Context, command string, sig int) error {
	if sig < 1 || sig > 64 {
		return sandboxd.Invalid("signal", "is not a signal")
	}
	c, err := l.find(command)
	if err != nil {
		return err
	}
	return l.send(ctx, nil, wire.Frame{Type: wire.TypeSignal, Number: c.number, Arg: uint64(sig)})
}

// End is Signal for a command that is to end with all that it started; see
// wire.FlagWhole. It does not wait. Where the command has a cgroup, ending that is
// left to the caller.
func (l *Link) End(ctx context.Context, command string, sig syscall.Signal) error {
	c, err := l.find(command)
	if err != nil {
		return err
	}
	return l.send(ctx, nil, wire.Frame{Type: wire.TypeSignal, Flags: wire.FlagWhole, Number: c.number, Arg: uint64(sig)})
}

// Resize sets the size of a command's terminal; without one it does nothing.
func (l *Link) Resize(ctx context.Context, command string, size sandboxd.TTY) error {
	c, err := l.find(command)
	if err != nil {
		return err
	}
	return l.send(ctx, nil, wire.Frame{Type: wire.TypeResize, Number: c.number, Arg: uint64(size.Cols)<<16 | uint64(size.Rows)})
}

// Forget tells the init that nothing of a command is wanted any more. One that
// runs goes on, its output thrown away, and is dropped when it ends. Handler calls
// for it stop, except one under way.
func (l *Link) Forget(command string) {
	l.mu.Lock()
	c := l.byID[command]
	if c == nil || l.err != nil {
		l.mu.Unlock()
		return
	}
	c.remove()
	l.mu.Unlock()
	l.background(wire.Frame{Type: wire.TypeForget, Number: c.number})
}

// Ping waits for the init to answer.
func (l *Link) Ping(ctx context.Context) error {
	answered := make(chan struct{})
	l.mu.Lock()
	l.ping++
	number := l.ping
	l.pings[number] = answered
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.pings, number)
		l.mu.Unlock()
	}()
	if err := l.send(ctx, nil, wire.Frame{Type: wire.TypePing, Arg: number}); err != nil {
		return err
	}
	select {
	case <-answered:
		return nil
	case <-l.broken:
		return l.Err()
	case <-ctx.Done():
		return unavailable(ctx.Err(), "the init does not answer")
	}
}
