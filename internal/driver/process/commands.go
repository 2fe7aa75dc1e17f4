package process

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// commandGroup is the group of a command; an error when a name is none.
func (d *Driver) commandGroup(id, command string) (string, error) {
	if !sandboxd.ValidID(id) || !sandboxd.ValidCommandID(command) {
		return "", sandboxd.Invalid("command_id", "no command has this id")
	}
	if d.groups == nil {
		return "", sandboxd.Wrap(sandboxd.ClassUnavailable, d.groupErr, "the machine has no cgroups that the process driver can use")
	}
	return filepath.Join(d.nameOf(id), commandsDir, leafPrefix+command), nil
}

// CreateGroup is sandboxd.CommandGroups'. A group that exists is ClassConflict.
func (d *Driver) CreateGroup(ctx context.Context, id, command string, limits sandboxd.CommandLimits) ([]*os.File, error) {
	sub, err := d.commandGroup(id, command)
	if err != nil {
		return nil, err
	}
	e, err := d.running(id)
	if err != nil {
		return nil, err
	}
	files, err := e.groups.create(sub, limits, d.limitsOf(e).PIDs)
	if errors.Is(err, fs.ErrExist) {
		return nil, sandboxd.Errorf(sandboxd.ClassConflict, "the command has a group already")
	}
	if err != nil {
		return nil, errors.Join(sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the command's cgroup cannot be made"), d.groups.remove(ctx, sub))
	}
	return files, nil
}

// KillGroup is sandboxd.CommandGroups'.
func (d *Driver) KillGroup(ctx context.Context, id, command string) error {
	sub, err := d.commandGroup(id, command)
	if err != nil {
		return err
	}
	d.commandsOf(id).used(sub)
	if err := d.groups.kill(ctx, sub); err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the command's processes do not end")
	}
	return nil
}

// GroupUsage is sandboxd.CommandGroups'.
func (d *Driver) GroupUsage(_ context.Context, id, command string) (sandboxd.GroupUsage, error) {
	sub, err := d.commandGroup(id, command)
	if err != nil {
		return sandboxd.GroupUsage{}, err
	}
	var u sandboxd.GroupUsage
	err = d.commandsOf(id).with(sub, func(c *group) error {
		processes, err := c.processes()
		if err != nil {
			return sandboxd.Errorf(sandboxd.ClassNotFound, "the command has no group")
		}
		u = sandboxd.GroupUsage{
			Processes: processes, CPU: c.cpu(), PeakBytes: c.peak(), OOMKills: c.oomKills(), PIDsRefused: c.pidsRefused(),
		}
		if u.OOMKills > 0 {
			own, whole := c.memoryLimit(), d.groups.memoryLimit(filepath.Dir(sub))
			u.OOMInSandbox = own == 0 || !c.hitLimit()
			u.MemoryLimit = own
			if own == 0 || whole != 0 && whole < own {
				u.MemoryLimit = whole
			}
		}
		if u.PIDsRefused > 0 {
			u.PIDsLimit = c.number("pids", "pids.max")
		}
		return nil
	})
	return u, err
}

// RemoveGroup is sandboxd.CommandGroups'. It waits a little for a group whose
// last process has just been reaped.
func (d *Driver) RemoveGroup(ctx context.Context, id, command string) error {
	sub, err := d.commandGroup(id, command)
	if err != nil {
		return err
	}
	kept := false
	set := d.commandsOf(id)
	set.sweep()
	err = set.with(sub, func(c *group) error {
		processes, err := c.processes()
		if err == nil && processes > 0 {
			return sandboxd.Errorf(sandboxd.ClassBusy, "processes of the command are running")
		}
		kept = err == nil && set.keep(c)
		return nil
	})
	if kept {
		return nil
	}
	// Nobody asks again what it counted: no descriptor is kept for what was left behind.
	set.drop(sub)
	if err != nil {
		set.leave(sub)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	err = d.groups.remove(ctx, sub)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, unix.EBUSY) {
		set.leave(sub)
		return sandboxd.Errorf(sandboxd.ClassBusy, "processes of the command are ending")
	}
	if err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "remove the command's cgroup")
	}
	return nil
}

// commandsOf answers the groups of a sandbox's commands; of one that is not here,
// an empty set, with which what is left on disk can be read and removed.
func (d *Driver) commandsOf(id string) *commandGroups {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.envs[id]; e != nil && e.groups != nil {
		return e.groups
	}
	return &commandGroups{g: d.groups, closed: true}
}
