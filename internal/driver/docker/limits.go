package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/limits"
)

var _ sandboxd.LimitChanger = (*Driver)(nil)

// bounds are the limits that an engine can also change while a container runs. A weight is
// always named: to an engine 0 means the one that is there, and the kernel's own for a
// group that was given none is not what every OCI runtime makes of the usual one.
func bounds(l sandboxd.Limits) container.Resources {
	pids := l.PIDs + initProcesses
	return container.Resources{
		Memory: l.MemoryBytes, MemorySwap: max(l.MemoryBytes, l.SwapBytes),
		CPUPeriod: limits.Period, CPUQuota: limits.Quota(l.CPUs), CPUShares: cmp.Or(l.CPUShares, limits.UsualShares),
		PidsLimit: &pids,
	}
}

// ChangeLimits is sandboxd.LimitChanger's. An OCI runtime that cannot put one of the limits
// in force, or none at all, leaves those that it came to before.
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
	if err := d.engine.bound(ctx, h.Container, wanted); err != nil {
		if _, gone := d.running(id); gone != nil {
			return nil, gone
		}
		err = errors.Join(err, d.engine.bound(context.WithoutCancel(ctx), h.Container, was))
		return nil, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the limits cannot be changed")
	}
	d.mu.Lock()
	e.limits = wanted
	d.mu.Unlock()
	h.Limits = wanted
	return json.Marshal(h)
}

// bound puts limits in force for a container that runs.
func (e *engine) bound(ctx context.Context, name string, l sandboxd.Limits) error {
	return e.call(ctx, func(ctx context.Context) error {
		resources := bounds(l)
		_, err := e.api.ContainerUpdate(ctx, name, client.ContainerUpdateOptions{Resources: &resources})
		return err
	})
}

// limitsOf are those of an environment, which may be changed while it runs.
func (d *Driver) limitsOf(e *environment) sandboxd.Limits {
	d.mu.Lock()
	defer d.mu.Unlock()
	return e.limits
}
