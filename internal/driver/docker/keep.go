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

// keep ends what runs in the container of an id, and answers the container. One that
// has a network is in none until it is started again.
func (d *Driver) keep(ctx context.Context, id string) (kept, error) {
	if d.names.Of(id) != id {
		return kept{}, gone(id) // from the pool: it would not get the sandbox's files again
	}
	seen, err := d.engine.inspect(ctx, d.containerName(id))
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
	if err := d.engine.stop(ctx, seen.ID); err != nil {
		return kept{}, err
	}
	network := labels[labelNetwork]
	return kept{container: seen.ID, generation: labels[labelGeneration], network: network, environ: environOf(seen.Config.Env)}, d.leave(ctx, id, network != "")
}

// kept is a container without a process.
type kept struct {
	container, generation string
	network               string // empty for none
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
	var handle sandboxd.Handle
	if err = d.reconnect(ctx, k, spec); err == nil {
		handle, err = d.run(ctx, e, spec)
	}
	if err != nil {
		if _, serr := d.keep(context.WithoutCancel(ctx), spec.ID); serr != nil {
			d.cfg.Log.Error("a failed start left something running", "sandbox", spec.ID, "error", serr)
		}
	}
	return handle, err
}

// reconnect gives a kept container the network of its tenant, which may be another of
// the same name than the one that it had.
func (d *Driver) reconnect(ctx context.Context, k kept, spec sandboxd.EnvironmentSpec) error {
	if k.network == "" {
		return nil
	}
	name, err := d.join(ctx, spec)
	if err != nil {
		return err
	}
	err = d.engine.call(ctx, func(ctx context.Context) error {
		_, err := d.engine.api.NetworkDisconnect(ctx, name, client.NetworkDisconnectOptions{Container: k.container, Force: true})
		return err
	})
	if err != nil && !isClass(err, sandboxd.ClassNotFound) {
		return err
	}
	return d.engine.call(ctx, func(ctx context.Context) error {
		_, err := d.engine.api.NetworkConnect(ctx, name, client.NetworkConnectOptions{Container: k.container})
		return err
	})
}

// stop ends a container's processes; one without is no error.
func (e *engine) stop(ctx context.Context, id string) error {
	return e.call(ctx, func(ctx context.Context) error {
		now := 0
		_, err := e.api.ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &now})
		return err
	})
}
