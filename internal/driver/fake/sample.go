package fake

import (
	"context"

	"sandboxd"
)

var _ sandboxd.Sampler = (*Driver)(nil)

// Use adds to what the environment of an id has used; false when there is none.
func (w *World) Use(id string, more sandboxd.Sample) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	env := w.envs[id]
	if env == nil || env.over() {
		return false
	}
	env.used.CPU += more.CPU
	env.used.IOBytes += more.IOBytes
	if more.MemoryBytes != nil {
		env.used.MemoryBytes = more.MemoryBytes
	}
	return true
}

// Sample implements sandboxd.Sampler.
func (d *Driver) Sample(_ context.Context, id string) (sandboxd.Sample, error) {
	env := d.find(id)
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	if env == nil || env.over() {
		return sandboxd.Sample{}, sandboxd.Errorf(sandboxd.ClassGone, "there is no environment")
	}
	d.world.samples++
	return env.used, nil
}

// Samples is how often drivers of this world were asked for one.
func (w *World) Samples() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.samples
}
