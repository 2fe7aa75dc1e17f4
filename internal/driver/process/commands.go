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
	return filepath.Join(id, commandsDir, leafPrefix+command), nil
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
	g := d.groups
	pids := limits.PIDs
	if pids <= 0 {
		pids = e.limits.PIDs // so that what is refused is counted for the command
	}
	limited := limits.CPUs > 0
	if err := g.createCommand(sub, limited); errors.Is(err, fs.ErrExist) {
		return nil, sandboxd.Errorf(sandboxd.ClassConflict, "the command has a group already")
	} else if err != nil {
		return nil, g.unmade(ctx, sub, err)
	}
	if err := errors.Join(g.limitMemory(sub, limits.MemoryBytes), g.limitPIDs(sub, pids), g.limitCPU(sub, limits.CPUs)); err != nil {
		return nil, g.unmade(ctx, sub, err)
	}
	files, err := g.open(sub, limited)
	if err != nil {
		return nil, g.unmade(ctx, sub, err)
	}
	return files, nil
}

// unmade removes what there is of a command's group that could not be made.
func (g *groups) unmade(ctx context.Context, sub string, err error) error {
	return errors.Join(sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the command's cgroup cannot be made"), g.remove(ctx, sub))
}

// KillGroup is sandboxd.CommandGroups'.
func (d *Driver) KillGroup(ctx context.Context, id, command string) error {
	sub, err := d.commandGroup(id, command)
	if err != nil {
		return err
	}
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
	g := d.groups
	if unix.Access(g.dir("pids", sub), unix.F_OK) != nil {
		return sandboxd.GroupUsage{}, sandboxd.Errorf(sandboxd.ClassNotFound, "the command has no group")
	}
	own, whole := g.memoryLimit(sub), g.memoryLimit(filepath.Dir(sub))
	u := sandboxd.GroupUsage{
		Processes:   len(g.members(sub)),
		CPU:         g.cpu(sub),
		PeakBytes:   g.peak(sub),
		MemoryLimit: own,
		OOMKills:    g.oomKills(sub),
		PIDsLimit:   g.read("pids", sub, "pids.max"),
		PIDsRefused: g.field("pids", sub, "pids.events", "max"),
	}
	if own == 0 || whole != 0 && whole < own {
		u.MemoryLimit = whole
	}
	u.OOMInSandbox = u.OOMKills > 0 && (own == 0 || !g.hitLimit(sub))
	return u, nil
}

// RemoveGroup is sandboxd.CommandGroups'. It waits a little for a group whose
// last process has just been reaped.
func (d *Driver) RemoveGroup(ctx context.Context, id, command string) error {
	sub, err := d.commandGroup(id, command)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	if len(d.groups.members(sub)) > 0 {
		return sandboxd.Errorf(sandboxd.ClassBusy, "processes of the command are running")
	}
	err = d.groups.remove(ctx, sub)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, unix.EBUSY) {
		return sandboxd.Errorf(sandboxd.ClassBusy, "processes of the command are ending")
	}
	if err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "remove the command's cgroup")
	}
	return nil
}

// memoryLimit is 0 for none.
func (g *groups) memoryLimit(sub string) int64 {
	if g.v2 {
		return g.read("memory", sub, "memory.max")
	}
	n := g.read("memory", sub, "memory.limit_in_bytes")
	if n >= 1<<60 {
		return 0 // how version 1 writes none
	}
	return n
}

func (g *groups) peak(sub string) int64 {
	if g.v2 {
		return g.read("memory", sub, "memory.peak")
	}
	return g.read("memory", sub, "memory.max_usage_in_bytes")
}

// oomKills counts the processes of this group, by whichever limit they died.
func (g *groups) oomKills(sub string) int64 {
	if g.v2 {
		return g.field("memory", sub, "memory.events", "oom_kill")
	}
	return g.field("memory", sub, "memory.oom_control", "oom_kill")
}

// hitLimit says whether the group's own memory limit was reached.
func (g *groups) hitLimit(sub string) bool {
	if g.v2 {
		return g.field("memory", sub, "memory.events", "oom") > 0
	}
	return g.read("memory", sub, "memory.failcnt") > 0
}

func (g *groups) cpu(sub string) time.Duration {
	if g.v2 {
		return time.Duration(g.field("cpu", sub, "cpu.stat", "usage_usec")) * time.Microsecond
	}
	return time.Duration(g.read("cpuacct", sub, "cpuacct.usage"))
}
