package host

import (
	"context"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/guest"
	"sandboxd/internal/journal"
)

// view is a record with what only the running command knows.
func (b *box) view(ctx context.Context, rec sandboxd.CommandRecord) sandboxd.Command {
	if rec.Ending != nil {
		return rec.Command
	}
	if c := b.runningCommand(rec.ID); c != nil {
		// A follower may have read the ending a moment before it is stored. The offset
		// second: with an ending it is that of all output.
		rec.Ending = c.journal.Ending()
		rec.Offset = c.journal.Next()
	} else if now, err := b.h.store.GetCommand(ctx, b.id, rec.ID); err == nil {
		rec = now // it ended after the record was read
	}
	return rec.Command
}

func (b *box) runningCommand(id string) *command {
	if env := b.environment(); env != nil {
		return env.command(id)
	}
	return nil
}

// find answers a command's record and its box.
func (h *Host) find(ctx context.Context, id, cmd string) (sandboxd.CommandRecord, *box, error) {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.CommandRecord{}, nil, err
	}
	if !sandboxd.ValidCommandID(cmd) {
		return sandboxd.CommandRecord{}, nil, sandboxd.Errorf(sandboxd.ClassNotFound, "no such command")
	}
	rec, err := h.store.GetCommand(ctx, id, cmd)
	return rec, b, err
}

// live answers a running command, or a conflict that says it has ended.
func (h *Host) live(ctx context.Context, id, cmd string) (*command, error) {
	_, b, err := h.find(ctx, id, cmd)
	if err != nil {
		return nil, err
	}
	if c := b.runningCommand(cmd); c != nil {
		return c, nil
	}
	return nil, sandboxd.Errorf(sandboxd.ClassConflict, "the command has ended")
}

// GetCommand implements sandboxd.Host.
func (h *Host) GetCommand(ctx context.Context, id, cmd string) (sandboxd.Command, error) {
	rec, b, err := h.find(ctx, id, cmd)
	if err != nil {
		return sandboxd.Command{}, err
	}
	return b.view(ctx, rec), nil
}

// ListCommands implements sandboxd.Host.
func (h *Host) ListCommands(ctx context.Context, id string) ([]sandboxd.Command, error) {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	recs, err := h.store.ListCommands(ctx, id)
	if err != nil {
		return nil, err
	}
	list := make([]sandboxd.Command, 0, len(recs))
	for _, rec := range recs {
		list = append(list, b.view(ctx, rec))
	}
	return list, nil
}

// FollowCommand implements sandboxd.Host.
func (h *Host) FollowCommand(ctx context.Context, id, cmd string, opts sandboxd.FollowOptions) (sandboxd.CommandStream, error) {
	if opts.Offset < 0 {
		return nil, sandboxd.Invalid("offset", "must not be negative")
	}
	if _, env := h.up(id); env != nil {
		if c := env.command(cmd); c != nil {
			s, err := c.journal.Follow(opts)
			if err != nil {
				return nil, err
			}
			c.followers.Add(1)
			return &followed{CommandStream: s, c: c}, nil
		}
	}
	rec, _, err := h.find(ctx, id, cmd)
	if err != nil {
		return nil, err
	}
	if rec.Ending == nil {
		return nil, sandboxd.Errorf(sandboxd.ClassBusy, "the command is being started")
	}
	j, err := h.openJournal(rec)
	if err != nil {
		return nil, err
	}
	// A journal that a crash kept from being finished gets the stored ending now;
	// where there is one it stands. On a full disk its followers get it all the same.
	if err := j.Finish(*rec.Ending); err != nil && sandboxd.ClassOf(err) != sandboxd.ClassNoSpace {
		j.Close()
		return nil, err
	}
	s, err := j.Follow(opts)
	if err != nil {
		j.Close()
		return nil, err
	}
	return &opened{CommandStream: s, j: j}, nil
}

// followed counts its reader while it reads.
type followed struct {
	sandboxd.CommandStream
	c    *command
	once sync.Once
}

func (f *followed) Close() error {
	f.once.Do(func() {
		f.c.left.Store(f.c.env.b.h.uptime())
		f.c.followers.Add(-1)
	})
	return f.CommandStream.Close()
}

// opened owns the journal it reads.
type opened struct {
	sandboxd.CommandStream
	j *journal.Journal
}

func (o *opened) Close() error {
	err := o.CommandStream.Close()
	o.j.Close()
	return err
}

// withLink runs fn with a running command's link.
func (h *Host) withLink(ctx context.Context, id, cmd string, fn func(*command, *guest.Link) error) error {
	c, err := h.live(ctx, id, cmd)
	if err != nil {
		return err
	}
	link, err := c.env.connected(ctx)
	if err != nil {
		return err
	}
	return fn(c, link)
}

// WriteStdin implements sandboxd.Host.
func (h *Host) WriteStdin(ctx context.Context, id, cmd string, data []byte, eof bool) error {
	return h.withLink(ctx, id, cmd, func(c *command, link *guest.Link) error {
		if !c.spec.StdinOpen && c.spec.TTY == nil {
			return sandboxd.Errorf(sandboxd.ClassConflict, "the command's stdin is closed").WithHint("start it with stdin_open")
		}
		select {
		case <-c.fed:
		case <-c.done:
		case <-ctx.Done():
			return sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the command does not read its input")
		}
		return link.Stdin(ctx, cmd, data, eof)
	})
}

// SignalCommand implements sandboxd.Host.
func (h *Host) SignalCommand(ctx context.Context, id, cmd, signal string) error {
	name := strings.ToUpper(signal)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	if sig == 0 {
		return sandboxd.Invalid("signal", "not the name of a signal")
	}
	return h.withLink(ctx, id, cmd, func(_ *command, link *guest.Link) error {
		return link.Signal(ctx, cmd, int(sig))
	})
}

// ResizeCommand implements sandboxd.Host.
func (h *Host) ResizeCommand(ctx context.Context, id, cmd string, size sandboxd.TTY) error {
	if err := checkTTY(&size); err != nil {
		return err
	}
	return h.withLink(ctx, id, cmd, func(c *command, link *guest.Link) error {
		if c.spec.TTY == nil {
			return sandboxd.Invalid("command_id", "the command has no terminal")
		}
		return link.Resize(ctx, cmd, size)
	})
}

// stopRest ends what an ended command left behind, which no leader is there to
// signal.
func (b *box) stopRest(ctx context.Context, rec sandboxd.CommandRecord) error {
	env := b.environment()
	groups, ok := b.driver.(sandboxd.CommandGroups)
	if !ok || env == nil || env.generation != rec.Generation {
		return nil
	}
	err := groups.KillGroup(ctx, b.id, rec.ID)
	if err == nil {
		err = groups.RemoveGroup(ctx, b.id, rec.ID)
	}
	if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		return err
	}
	return nil
}

// StopCommand implements sandboxd.Host.
func (h *Host) StopCommand(ctx context.Context, id, cmd string, grace sandboxd.Seconds) (sandboxd.Command, error) {
	if grace < 0 || grace > 60 {
		return sandboxd.Command{}, sandboxd.Invalid("grace_s", "must be between 0 and 60")
	}
	rec, b, err := h.find(ctx, id, cmd)
	if err != nil {
		return sandboxd.Command{}, err
	}
	c := b.runningCommand(cmd)
	if c == nil {
		if rec, err = h.store.GetCommand(ctx, id, cmd); err != nil {
			return rec.Command, err
		}
		return rec.Command, b.stopRest(ctx, rec)
	}
	// Its own work: a caller that leaves during the grace must not spare the tree.
	h.spawn(func() { c.cut(sandboxd.CauseStopped, grace.Duration()) })
	select {
	case <-c.done:
		return c.result, nil
	case <-ctx.Done():
		return sandboxd.Command{}, ctx.Err()
	case <-time.After(grace.Duration() + 10*time.Second):
		return sandboxd.Command{}, sandboxd.Errorf(sandboxd.ClassUnavailable, "the command did not report its end")
	}
}
