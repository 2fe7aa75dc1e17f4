package fake

import (
	"context"

	"sandboxd"
)

var _ sandboxd.LimitChanger = (*Driver)(nil)

// ChangeLimits implements sandboxd.LimitChanger: what uses more memory is told so.
func (d *Driver) ChangeLimits(_ context.Context, id string, handle sandboxd.Handle, limits sandboxd.Limits) (sandboxd.Handle, error) {
	env := d.find(id)
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	if env == nil || env.over() {
		return nil, sandboxd.Errorf(sandboxd.ClassGone, "there is no environment")
	}
	if used := env.used.MemoryBytes; used != nil && *used > limits.MemoryBytes {
		return nil, sandboxd.Errorf(sandboxd.ClassConflict, "it uses %d bytes of memory", *used)
	}
	env.spec.Limits = limits
	env.used.MemoryLimit = &limits.MemoryBytes
	return handle, nil
}
