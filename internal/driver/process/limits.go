package process

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandboxd"
)

var _ sandboxd.LimitChanger = (*Driver)(nil)

// limit puts the limits of a sandbox in force.
func (g *groups) limit(name string, lim sandboxd.Limits) error {
	commands := filepath.Join(name, commandsDir)
	err := errors.Join(g.limitCPU(name, lim.CPUs), g.limitMemory(commands, lim.MemoryBytes, lim.SwapBytes), g.limitPIDs(commands, lim.PIDs))
	if lim.CPUShares != 0 {
		err = errors.Join(err, g.weighCPU(name, lim.CPUShares))
	}
	return err
}

// ChangeLimits is sandboxd.LimitChanger's.
func (d *Driver) ChangeLimits(ctx context.Context, id string, raw sandboxd.Handle, limits sandboxd.Limits) (sandboxd.Handle, error) {
	e, err := d.running(id)
	if err != nil {
		return nil, err
	}
	if d.groups == nil {
		return nil, sandboxd.Errorf(sandboxd.ClassUnsupported, "without cgroups no limit of a running sandbox can be changed")
	}
	var h handle
	if err := json.Unmarshal(raw, &h); err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "the environment's handle is damaged")
	}
	was := d.limitsOf(e)
	if limits.MemoryBytes < was.MemoryBytes {
		// Asked before: version 2 would make room by killing.
		var s sandboxd.Sample
		d.groups.sample(e.name, &s)
		if *s.MemoryBytes > limits.MemoryBytes {
			return nil, inUse(*s.MemoryBytes)
		}
	}
	set := func(lim sandboxd.Limits) error {
		err := d.groups.limit(e.name, lim)
		if lim.CPUShares == 0 && (was.CPUShares != 0 || limits.CPUShares != 0) {
			err = errors.Join(err, d.groups.weighCPU(e.name, 0))
		}
		return errors.Join(err, e.groups.limitPIDs(lim.PIDs))
	}
	if err := set(limits); err != nil {
		if _, gone := d.running(id); gone != nil {
			return nil, gone
		}
		err = errors.Join(err, set(was))
		if errors.Is(err, unix.EBUSY) {
			return nil, inUse(limits.MemoryBytes)
		}
		return nil, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the limits cannot be changed")
	}
	d.mu.Lock()
	e.limits = limits
	d.mu.Unlock()
	h.Limits = limits
	return json.Marshal(h)
}

// limitsOf are those of an environment, which may be changed while it runs.
func (d *Driver) limitsOf(e *environment) sandboxd.Limits {
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.limits
}

func inUse(bytes int64) error {
	return sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox uses at least %d bytes of memory, which is more than the new limit", bytes).
		WithHint("the limit holds from its next start on; stop it to have it now")
}
