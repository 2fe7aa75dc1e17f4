package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"

	"sandboxd"
	"sandboxd/internal/driver/names"
)

// handle is what a later server needs to be sure that a container is the one.
type handle struct {
	Container  string          `json:"container"`
	Boot       string          `json:"boot"`
	Generation int64           `json:"generation"`
	Limits     sandboxd.Limits `json:"limits"`
	// Made is the label of the generation for which the container was made, if that is
	// an earlier one; Writable says that what was installed outlives the processes.
	Made     string `json:"made,omitempty"`
	Writable bool   `json:"writable,omitempty"`
}

func (d *Driver) handleOf(e *environment, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	return json.Marshal(handle{Container: e.container, Boot: d.bootID, Generation: spec.Generation, Limits: spec.Limits,
		Made: e.made, Writable: spec.WritableRoot})
}

// Adopt is sandboxd.Driver's.
func (d *Driver) Adopt(ctx context.Context, id string, raw sandboxd.Handle) error {
	if !sandboxd.ValidID(id) {
		return sandboxd.Invalid("id", "no sandbox has this id")
	}
	var h handle
	herr := json.Unmarshal(raw, &h)
	e := &environment{id: id, name: d.names.Of(id), generation: h.Generation, limits: h.Limits, busy: make(chan struct{}), ended: make(chan struct{}), looked: make(chan struct{})}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return errClosed
	}
	if d.envs[id] != nil {
		d.mu.Unlock()
		return sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox's environment is held already")
	}
	d.envs[id] = e
	d.mu.Unlock()
	err := herr
	if err == nil {
		err = d.adopt(ctx, e, h)
	}
	d.release(e, err == nil)
	if err == nil {
		return nil
	}
	if isClass(err, sandboxd.ClassUnavailable) {
		return err // nothing is known: it may well run
	}
	gone := sandboxd.Wrap(sandboxd.ClassGone, err, "the sandbox's environment is gone")
	var known *endedError
	if errors.As(err, &known) {
		gone.Ending = &known.ending
	}
	if known != nil && h.Writable {
		return gone // no process is left; what was installed may be kept
	}
	if cerr := d.clear(context.WithoutCancel(ctx), id); cerr != nil {
		return cerr
	}
	return gone
}

// endedError is a container that is the one and has ended.
type endedError struct{ ending sandboxd.Ending }

func (e *endedError) Error() string { return "it has ended: " + string(e.ending.Cause) }

// adopt proves that the handle's container is this environment, and alive.
func (d *Driver) adopt(ctx context.Context, e *environment, h handle) error {
	if err := d.listen(ctx); err != nil {
		return err
	}
	if h.Container == "" {
		return errors.New("the handle names no container")
	}
	d.mu.Lock()
	e.container = h.Container
	d.mu.Unlock()
	seen, err := d.engine.inspect(ctx, h.Container)
	if err != nil {
		return err
	}
	labels, made := seen.Config.Labels, cmp.Or(h.Made, strconv.FormatInt(h.Generation, 10))
	if names.IsMember(e.name) {
		made = "0" // it had none when it was made; the link is of the one that it has now
	}
	if seen.ID != h.Container || labels[labelID] != e.name || labels[labelData] != d.data || labels[labelGeneration] != made {
		return errors.New("the container is another sandbox's")
	}
	if seen.State.Running {
		if name := labels[labelNetwork]; name != "" {
			if err := d.rejoin(name, e.id); err != nil {
				return d.endUnfenced(ctx, h.Container, err)
			}
		}
		d.findRefusals(e, seen, true)
		close(e.looked)
		d.mu.Lock()
		e.environ = environOf(seen.Config.Env)
		d.mu.Unlock()
		return d.commit(e, nil)
	}
	return &endedError{d.endingAtAdoption(seen, h)}
}

// endUnfenced ends what runs without a fence around it, which cannot be made: it must
// not go on, and neither must a server be kept from starting by it.
func (d *Driver) endUnfenced(ctx context.Context, id string, why error) error {
	d.cfg.Log.Error("the fence around sandboxes with a bridge cannot be made; one is ended", "container", id, "err", why)
	if err := d.engine.stop(ctx, id); err != nil && !isClass(err, sandboxd.ClassNotFound) {
		return err
	}
	return &endedError{sandboxd.Ending{Cause: sandboxd.CauseStopped, At: time.Now().UTC(),
		Message: "a server that was started found that it cannot keep sandboxes with a bridge apart, and ended it"}}
}

// endingAtAdoption says what is known of a container that ended while no server
// was looking.
func (d *Driver) endingAtAdoption(seen container.InspectResponse, h handle) sandboxd.Ending {
	ending := sandboxd.Ending{Cause: sandboxd.CauseUnknown, At: time.Now().UTC(), Message: "it ended while no host was looking"}
	switch {
	case seen.State.OOMKilled:
		ending.Cause, ending.Limit = sandboxd.CauseMemory, memoryLimit(h.Limits)
	case h.Boot != d.bootID && d.bootID != "":
		ending.Cause, ending.Message = sandboxd.CauseHostRestart, "the machine has restarted"
	case seen.State.ExitCode == lostExit:
		ending.Cause, ending.Message = sandboxd.CauseEngine, "the container engine lost it in a restart"
	}
	if at, err := time.Parse(time.RFC3339Nano, seen.State.FinishedAt); err == nil && at.Year() > 1 {
		ending.At = at.UTC()
	}
	return ending
}

// lostExit is the exit status that an engine gives a container whose end it has
// not seen.
const lostExit = 255

func memoryLimit(l sandboxd.Limits) string {
	return fmt.Sprintf("%d bytes of memory, of the whole sandbox", l.MemoryBytes)
}
