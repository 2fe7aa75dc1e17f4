package docker

import (
	"context"
	"time"

	"github.com/moby/moby/client"

	"sandboxd"
)

var _ sandboxd.Keeper = (*Driver)(nil)

// Keep is sandboxd.Keeper's: the container stays, without a process.
func (d *Driver) Keep(ctx context.Context, id string) error {
	if !sandboxd.ValidID(id) {
		return sandboxd.Invalid("id", "no sandbox has this id")
	}
	e, err := d.hold(ctx, id)
	if err != nil {
		return err
	}
	_, err = d.keep(context.WithoutCancel(ctx), id)
	if err == nil {
		d.finish(e, nil)
	}
	d.release(e, err != nil && e.live)
	return err
}

// keep ends what runs in the container of an id, and answers the container.
func (d *Driver) keep(ctx context.Context, id string) (kept, error) {
	seen, err := d.engine.inspect(ctx, containerName(id))
	if isClass(err, sandboxd.ClassNotFound) {
		return kept{}, gone(id)
	}
	if err != nil {
		return kept{}, err
	}
	labels := seen.Config.Labels
	if labels[labelID] != id || labels[labelData] != d.data {
		return kept{}, gone(id) // another's
	}
	return kept{container: seen.ID, generation: labels[labelGeneration], environ: environOf(seen.Config.Env)}, d.engine.stop(ctx, seen.ID)
}

// kept is a container without a process.
type kept struct {
	container, generation string
	environ               []string
}

// startKept starts the container that Keep kept. A failure keeps it.
func (d *Driver) startKept(ctx context.Context, e *environment, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	if err := d.listen(ctx); err != nil {
		return nil, err
	}
	k, err := d.keep(ctx, spec.ID)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	e.container, e.made, e.environ, e.started = k.container, k.generation, k.environ, time.Now()
	d.mu.Unlock()
	handle, err := d.run(ctx, e, spec)
	if err != nil {
		if serr := d.engine.stop(context.WithoutCancel(ctx), k.container); serr != nil {
			d.cfg.Log.Error("a failed start left something running", "sandbox", spec.ID, "error", serr)
		}
	}
	return handle, err
}

// stop ends a container's processes; one without is no error.
func (e *engine) stop(ctx context.Context, id string) error {
	return e.call(ctx, func(ctx context.Context) error {
		now := 0
		_, err := e.api.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &now})
		return err
	})
}
