package host

import (
	"context"
	"reflect"

	"sandboxd"
)

// What a sandbox's request does not name of its limits is the policy's, for as long as
// the sandbox lives: a change reaches what runs at once, where the driver can, and
// everything else with its next environment.

// wanted are the limits that a sandbox's next environment has.
func (h *Host) wanted(rec sandboxd.SandboxRecord) sandboxd.Limits {
	return h.wantedBy(h.policy.Now(), rec)
}

func (h *Host) wantedBy(p sandboxd.Policy, rec sandboxd.SandboxRecord) sandboxd.Limits {
	return withRoom(filled(rec.Asked, h.limitsBy(p, rec.Runtime)))
}

// settled says whether the limits of a record are those of something that is there.
func settled(rec sandboxd.SandboxRecord) bool {
	return rec.State.HasEnvironment() || rec.State == sandboxd.StateStopped
}

// showLimits puts into a record what its limits are, and by a policy will be.
func (h *Host) showLimits(p sandboxd.Policy, rec *sandboxd.SandboxRecord) {
	switch want := h.wantedBy(p, *rec); {
	case rec.State == sandboxd.StateDeleting, rec.State == sandboxd.StateDeleted, want == rec.Limits:
	case settled(*rec):
		rec.Next = &want
	default:
		rec.Limits = want
	}
}

// adapt has every environment get the limits that the policy says now, if it says others
// than before. It does not wait: what is being started or stopped comes after that.
func (h *Host) adapt() {
	h.mu.Lock()
	p, was := h.policy.Now(), h.adapted
	h.adapted = &p
	h.mu.Unlock()
	if was != nil && was.Limits == p.Limits && reflect.DeepEqual(was.Runtimes, p.Runtimes) {
		return
	}
	for _, b := range h.allBoxes() {
		if b.running() {
			h.spawn(func() {
				if _, err := b.exclusive(h.ctx, b.adaptLocked); err != nil && b.ctx.Err() == nil {
					h.log.Warn("limits of a running sandbox stay until its next start", "sandbox", b.id, "err", err)
				}
			})
		}
	}
}

// adaptLocked changes the limits of the running environment to those that are wanted.
func (b *box) adaptLocked(ctx context.Context) (sandboxd.SandboxRecord, error) {
	rec, err := b.h.store.Get(ctx, b.id)
	env := b.environment()
	changer, can := b.driver.(sandboxd.LimitChanger)
	if err != nil || env == nil || !can {
		return rec, err
	}
	// These are made with the environment and stay with it.
	want := b.h.wanted(rec)
	want.TmpBytes, want.OpenFiles = rec.Limits.TmpBytes, rec.Limits.OpenFiles
	if want == rec.Limits {
		return rec, nil
	}
	handle, err := changer.ChangeLimits(ctx, b.id, rec.Handle, want)
	if err != nil {
		return rec, err
	}
	env.limits.Store(&want)
	return b.h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
		if r.State == sandboxd.StateRunning {
			r.Limits, r.Handle = want, handle
		}
		return nil
	})
}
