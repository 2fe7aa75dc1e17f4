package process

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/driver/limits"
)

var _ sandboxd.LimitChanger = (*Driver)(nil)

// limit puts the limits of a sandbox in force.
func (g *groups) limit(name string, l sandboxd.Limits) error {
	commands := filepath.Join(name, commandsDir)
	return errors.Join(g.limitCPU(name, l.CPUs), g.weighCPU(name, l.CPUShares),
		g.limitMemory(commands, l.MemoryBytes, l.SwapBytes), g.limitPIDs(commands, l.PIDs))
}

// ChangeLimits is sandboxd.LimitChanger's.
func (d *Driver) ChangeLimits(ctx context.Context, id string, raw sandboxd.Handle, wanted sandboxd.Limits) (sandboxd.Handle, error) {
	e, err := d.running(id)
	if err != nil {
		return nil, err
	}
	var h handle
	if err := json.Unmarshal(raw, &h); err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "the environment's handle is damaged")
	}
	was := d.limitsOf(e)
	if err := limits.Fits(ctx, d, id, was, wanted); err != nil {
		return nil, err
	}
	set := func(l sandboxd.Limits) error {
		return errors.Join(d.groups.limit(e.name, l), e.groups.limitPIDs(l.PIDs))
	}
	if err := set(wanted); err != nil {
		if _, gone := d.running(id); gone != nil {
			return nil, gone
		}
		err = errors.Join(err, set(was))
		if errors.Is(err, unix.EBUSY) {
			return nil, limits.InUse(wanted.MemoryBytes)
		}
		return nil, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the limits cannot be changed")
	}
	d.mu.Lock()
	e.limits = wanted
	d.mu.Unlock()
	h.Limits = wanted
	return json.Marshal(h)
}

// limitsOf are those of an environment, which may be changed while it runs.
func (d *Driver) limitsOf(e *environment) sandboxd.Limits {
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.limits
}
