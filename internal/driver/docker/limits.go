package docker

import (
	"context"
	"encoding/json"
	"math"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sandboxd"
)

var _ sandboxd.LimitChanger = (*Driver)(nil)

// resources are the limits that an engine can also change while a container runs.
func resources(l sandboxd.Limits) container.Resources {
	pids := l.PIDs + initProcesses
	return container.Resources{
		Memory: l.MemoryBytes, MemorySwap: max(l.MemoryBytes, l.SwapBytes),
		CPUPeriod: cpuPeriod, CPUQuota: int64(math.Ceil(l.CPUs * cpuPeriod)), CPUShares: l.CPUShares,
		PidsLimit: &pids,
	}
}

// usualShares is the weight of a container that none was given.
const usualShares = 1024

// ChangeLimits is sandboxd.LimitChanger's. What the engine cannot change, as under an OCI
// runtime that has no cgroups, it puts back.
func (d *Driver) ChangeLimits(ctx context.Context, id string, raw sandboxd.Handle, limits sandboxd.Limits) (sandboxd.Handle, error) {
	e, err := d.running(id)
	if err != nil {
		return nil, err
	}
	var h handle
	if err := json.Unmarshal(raw, &h); err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "the environment's handle is damaged")
	}
	was := d.limitsOf(e)
	if limits.MemoryBytes < was.MemoryBytes {
		// Asked before: the kernel may make room by killing.
		s, err := d.Sample(ctx, id)
		if err != nil {
			return nil, err
		}
		if s.MemoryBytes == nil {
			return nil, sandboxd.Errorf(sandboxd.ClassUnsupported, "its OCI runtime keeps the sandbox below no limit of memory")
		}
		if *s.MemoryBytes > limits.MemoryBytes {
			return nil, sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox uses %d bytes of memory, which is more than the new limit", *s.MemoryBytes).
				WithHint("the limit holds from its next start on; stop it to have it now")
		}
	}
	wanted := resources(limits)
	if wanted.CPUShares == 0 && was.CPUShares != 0 {
		wanted.CPUShares = usualShares // 0 would change nothing
	}
	err = d.engine.call(ctx, func(ctx context.Context) error {
		_, err := d.engine.api.ContainerUpdate(ctx, h.Container, client.ContainerUpdateOptions{Resources: &wanted})
		return err
	})
	if err != nil {
		if _, gone := d.running(id); gone != nil {
			return nil, gone
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
