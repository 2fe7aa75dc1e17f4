package host

import (
	"context"
	"errors"
	"time"

	"sandboxd"
	"sandboxd/internal/failpoint"
)

// The places between two durable steps of a preparation.
var (
	fpPrepareIntent = failpoint.New("prepare.intent")
	fpPrepareDone   = failpoint.New("prepare.done")
)

// openWait bounds how long an opening or a start is waited for. What is waited for goes
// on: the largest runtime may take longer on a slow line.
const openWait = 10 * time.Minute

// errStopped ends the wait for an image when the sandbox is stopped.
var errStopped = sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox was stopped while the image of its runtime was prepared")

// needsImage says which runtime's image a sandbox needs before it can start.
func (b *box) needsImage(rec sandboxd.SandboxRecord) (sandboxd.RuntimeEntry, bool) {
	if _, ok := b.driver.(sandboxd.ImageBuilder); !ok || rec.Image == "" {
		return sandboxd.RuntimeEntry{}, false
	}
	return b.h.entry(rec.Runtime)
}

// prepare has the image of a cold sandbox's runtime made, where it is not there, and
// answers what the sandbox starts with: always the one that the catalogue means now,
// whatever it meant when the sandbox was opened. Meanwhile the sandbox is preparing. A
// failure ends in cold, with the ending kept.
func (b *box) prepare(ctx context.Context, rec sandboxd.SandboxRecord) (sandboxd.SandboxRecord, error) {
	e, needed := b.needsImage(rec)
	if !needed {
		return rec, nil
	}
	ready, err := b.h.cfg.Runtimes.Ready(ctx, e.Name)
	if err != nil {
		return rec, err
	}
	if ready {
		rec.Image = e.Image
		return rec, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b.mu.Lock()
	if b.unprepare = cancel; b.stops > 0 {
		cancel(errStopped)
	}
	b.mu.Unlock()
	prepared, err := b.h.store.Update(context.WithoutCancel(ctx), b.id, func(r *sandboxd.SandboxRecord) error {
		r.State = sandboxd.StatePreparing
		return nil
	})
	if err != nil {
		return rec, err
	}
	fpPrepareIntent.Hit()
	err = b.h.cfg.Runtimes.Prepare(ctx, e.Name)
	fpPrepareDone.Hit()
	b.mu.Lock()
	b.unprepare = nil
	b.mu.Unlock()
	if ctx.Err() != nil {
		err = context.Cause(ctx) // also when it was just there: the stop came first
	}
	if err != nil {
		return b.unprepared(ctx, prepared, err)
	}
	prepared.Image = e.Image
	return prepared, nil
}

// unprepared records that a preparation failed or was given up.
func (b *box) unprepared(ctx context.Context, rec sandboxd.SandboxRecord, err error) (sandboxd.SandboxRecord, error) {
	ending := sandboxd.Ending{Cause: sandboxd.CauseStartFailed, Message: publicText(err), At: time.Now().UTC()}
	switch {
	case errors.Is(err, errStopped):
		ending.Cause, ending.Message = sandboxd.CauseStopped, "stopped on request, while the image of its runtime was prepared"
	case b.h.ctx.Err() != nil:
		ending.Message = "the host ended while the image of its runtime was prepared"
	}
	cold, uerr := b.h.store.Update(context.WithoutCancel(ctx), b.id, func(r *sandboxd.SandboxRecord) error {
		if r.State != sandboxd.StatePreparing {
			return nil // deleted meanwhile
		}
		r.State, r.LastEnding = sandboxd.StateCold, &ending
		return nil
	})
	if uerr != nil {
		return rec, uerr
	}
	if ending.Cause == sandboxd.CauseStartFailed && b.ctx.Err() == nil {
		b.h.log.Warn("preparation failed", "sandbox", b.id, "runtime", rec.Runtime, "err", err)
	}
	return cold, err
}

// prepareOnly prepares a sandbox without starting it.
func (b *box) prepareOnly(ctx context.Context) (sandboxd.SandboxRecord, error) {
	rec, err := b.h.record(ctx, b.id)
	if err != nil || rec.State != sandboxd.StateCold {
		return rec, err
	}
	if rec, err = b.prepare(ctx, rec); err != nil || rec.State != sandboxd.StatePreparing {
		return rec, err
	}
	image := rec.Image
	return b.h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
		if r.State == sandboxd.StatePreparing {
			r.State, r.Image = sandboxd.StateCold, image
		}
		return nil
	})
}

// stopPreparing ends the wait of a sandbox for its image, also one that begins before
// done is called: a stop does not wait for a build.
func (b *box) stopPreparing() (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stops++
	if b.unprepare != nil {
		b.unprepare(errStopped)
	}
	return func() {
		b.mu.Lock()
		b.stops--
		b.mu.Unlock()
	}
}

// within waits for a lifecycle operation no longer than openWait.
func (b *box) within(ctx context.Context, fn func(context.Context) (sandboxd.SandboxRecord, error)) (sandboxd.SandboxRecord, error) {
	limited, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	rec, err := b.exclusive(limited, fn)
	if err == nil || limited.Err() == nil || ctx.Err() != nil {
		return rec, err
	}
	return rec, sandboxd.Errorf(sandboxd.ClassBusy, "the sandbox is not ready after %s, and is still being made ready", openWait).
		WithHint("look at its state and try again")
}

// seen is a record as callers see it.
func (h *Host) seen(rec sandboxd.SandboxRecord) sandboxd.Sandbox {
	return h.seenBy(h.policy.Now(), rec)
}

// seenBy is seen with a policy that was asked for, for many records.
func (h *Host) seenBy(p sandboxd.Policy, rec sandboxd.SandboxRecord) sandboxd.Sandbox {
	if rec.State == sandboxd.StatePreparing && h.cfg.Runtimes != nil {
		p := h.cfg.Runtimes.Preparation(rec.Runtime)
		rec.Preparing = &p
	}
	h.showLimits(p, &rec)
	rec.Clock = clockOf(p, rec.Sandbox)
	rec.HomeLimit = homeMeasured
	return rec.Sandbox
}

// ImagesInUse are the images that sandboxes have, also kept ones, or, where their runtime is not in the
// catalogue any more, cannot do without.
func (h *Host) ImagesInUse(ctx context.Context) ([]string, error) {
	recs, err := h.store.List(ctx)
	if err != nil {
		return nil, err
	}
	var used []string
	for _, rec := range recs {
		if _, listed := h.entry(rec.Runtime); rec.Image != "" && (rec.State.HasEnvironment() || rec.State == sandboxd.StateStopped || !listed) {
			used = append(used, rec.Image)
		}
	}
	return used, nil
}
