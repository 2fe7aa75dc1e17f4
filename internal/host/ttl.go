package host

import (
	"context"
	"time"

	"sandboxd"
	"sandboxd/internal/clock"
)

// sweepTTL removes environments that are kept for longer than the policy's time, and
// deletes closed sandboxes whose files nobody used for the policy's time. It
// starts nothing and takes no place. Of what is overdue by a clock.Leap one goes in
// each sweep, so that a wrong clock costs one and not all before it is seen.
func (h *Host) sweepTTL(policy sandboxd.Policy) {
	if policy.WorkspaceTTLS == nil && policy.EnvironmentTTLS == nil {
		return
	}
	recs, err := h.store.List(h.ctx)
	if err != nil {
		if h.ctx.Err() == nil {
			h.log.Error("sandboxes are not looked through for old ones", "err", err)
		}
		return
	}
	h.sweepKept(policy, recs)
	if policy.WorkspaceTTLS == nil {
		return
	}
	ttl, leapt := policy.WorkspaceTTLS.Duration(), false
	for _, rec := range recs {
		if rec.Open || rec.State != sandboxd.StateCold && rec.State != sandboxd.StateStopped {
			continue
		}
		age, known := h.unused(rec)
		if !known {
			h.stampUsed(rec.ID)
			continue
		}
		if age < ttl || age-ttl > clock.Leap && leapt {
			continue
		}
		leapt = leapt || age-ttl > clock.Leap
		if err := h.purge(rec.ID, ttl); err != nil && h.ctx.Err() == nil {
			h.log.Error("an old sandbox is not deleted", "sandbox", rec.ID, "key", rec.Key, "err", err)
		}
	}
}

// sweepKept removes the environments of sandboxes that are stopped for too long. Their
// files stay. Of what is overdue by a leap, one goes.
func (h *Host) sweepKept(policy sandboxd.Policy, recs []sandboxd.SandboxRecord) {
	if policy.EnvironmentTTLS == nil {
		return
	}
	ttl := policy.EnvironmentTTLS.Duration()
	overdue := func(r sandboxd.SandboxRecord) time.Duration {
		return clock.Elapsed(r.Life.Ended, h.clock()) - ttl
	}
	leapt := false
	for _, rec := range recs {
		if late := overdue(rec); rec.State != sandboxd.StateStopped || late < 0 || late > clock.Leap && leapt {
			continue
		} else if late > clock.Leap {
			leapt = true
		}
		b := h.boxOf(rec)
		err := b.attempt(func(ctx context.Context) (sandboxd.SandboxRecord, error) {
			now, err := h.store.Get(ctx, b.id)
			if err != nil || now.State != sandboxd.StateStopped || overdue(now) < 0 {
				return now, err
			}
			h.log.Info("what was installed is removed: it was stopped for too long", "sandbox", b.id, "key", b.key, "environment_ttl", ttl)
			return b.discardKept(ctx)
		})
		if err != nil && h.ctx.Err() == nil {
			h.log.Error("a kept environment is not removed", "sandbox", b.id, "err", err)
		}
	}
}

// unused is for how long nobody used a sandbox; known is false for one of which
// nothing was ever noted, as it was made by an older server.
func (h *Host) unused(rec sandboxd.SandboxRecord) (age time.Duration, known bool) {
	if rec.Life.Used.Wall.IsZero() {
		return 0, false
	}
	age = clock.Elapsed(rec.Life.Used, h.clock())
	h.mu.Lock()
	b := h.boxes[rec.ID]
	h.mu.Unlock()
	if b != nil && b.queued() {
		return 0, true
	}
	if b != nil { // somebody may have had its files since
		if used := b.pulse.usedHere.Load(); used > 0 {
			age = min(age, time.Duration(h.uptime()-used))
		}
	}
	return age, true
}

func (h *Host) stampUsed(id string) {
	_, err := h.store.Update(h.ctx, id, func(r *sandboxd.SandboxRecord) error {
		r.Life.Used = h.clock()
		return nil
	})
	if err != nil && h.ctx.Err() == nil {
		h.log.Error("when a sandbox was used is not stored", "sandbox", id, "err", err)
	}
}

// purge deletes a sandbox if it is still closed and unused.
func (h *Host) purge(id string, ttl time.Duration) error {
	return h.deleteIf(h.ctx, id, func(r *sandboxd.SandboxRecord) error {
		if age, known := h.unused(*r); r.Open || r.State != sandboxd.StateCold && r.State != sandboxd.StateStopped || !known || age < ttl {
			return errUsed
		}
		h.log.Warn("deleted: nobody used its files", "sandbox", r.ID, "key", r.Key, "workspace_ttl", ttl)
		return nil
	})
}

// errUsed is of a purge that somebody was quicker than.
var errUsed error = sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox was used meanwhile")

// Delete implements sandboxd.Host. The record says deleting and the place is free
// when it returns; the rest follows, and reconcile ends what a crash interrupts.
func (h *Host) Delete(ctx context.Context, id string) error {
	return h.deleteIf(ctx, id, func(*sandboxd.SandboxRecord) error { return nil })
}

// deleteIf deletes a sandbox of which may, looking at its record, has nothing to say.
func (h *Host) deleteIf(ctx context.Context, id string, may func(*sandboxd.SandboxRecord) error) error {
	rec, err := h.record(ctx, id)
	if err != nil {
		return err
	}
	b := h.boxOf(rec)
	if err := h.acceptDelete(ctx, b, may); err != nil {
		if err == errUsed {
			return nil
		}
		return err
	}
	h.gate.Close(id)
	h.shareRoom()
	b.abort()
	h.spawn(func() { h.finishDelete(b) })
	return nil
}
