package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/journal"
	"sandboxd/internal/workspace"
)

// adopters bounds how many environments are adopted at once.
const adopters = 16

// reconcile compares what the store says with what is: it ends in every sandbox
// having its true state.
func (h *Host) reconcile(ctx context.Context) error {
	recs, err := h.store.List(ctx)
	if err == nil {
		recs, err = h.rebuild(ctx, recs)
	}
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, adopters)
	errs := make([]error, len(recs))
	h.former = map[string]bool{}
	for _, rec := range recs {
		h.former[rec.ID] = true
	}
	h.countAll(recs)
	for i, rec := range recs {
		if without := rec.State == sandboxd.StateCold || rec.State == sandboxd.StateStopped; without && h.root.Exists(rec.Key, rec.ID) {
			continue // nothing to compare with: the common case costs one look
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := h.settle(ctx, rec); err != nil {
				errs[i] = fmt.Errorf("sandbox %s: %w", rec.ID, err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h.spawn(func() { h.reapOrphans() })
	h.spawn(func() {
		if err := h.root.EmptyTrash(h.ctx); err != nil && h.ctx.Err() == nil {
			h.log.Error("trash not emptied", "err", err)
		}
	})
	return nil
}

// countAll counts what is open, before anything is settled: what then turns out to
// be otherwise is counted anew with its record.
func (h *Host) countAll(recs []sandboxd.SandboxRecord) {
	for _, rec := range recs {
		if rec.Open && rec.State != sandboxd.StateDeleting {
			h.gate.Restore(rec.ID, rec.Tenant, rec.State.HasEnvironment() || keepsPlace(rec.Sandbox))
			h.boxOf(rec) // its clock runs
		}
	}
}

// resumed is how a stop that a former host had begun is to end.
func resumed(rec sandboxd.SandboxRecord) parting {
	p := stopped("stopped on request")
	if e := rec.LastEnding; e != nil {
		p.ending = *e
	}
	p.sleep, p.close = p.ending.Cause == sandboxd.CauseAsleep, p.ending.Cause == sandboxd.CauseIdle
	return p
}

// settle brings one record and the world together.
func (h *Host) settle(ctx context.Context, rec sandboxd.SandboxRecord) error {
	b := h.boxOf(rec)
	if a, ok := b.driver.(absent); ok && a.running {
		h.log.Warn("sandbox cannot be looked after", "sandbox", rec.ID, "err", a.err())
		return nil
	}
	switch rec.State {
	case sandboxd.StateDeleting:
		if err := h.root.Trash(b.key, b.id); err != nil {
			return err
		}
		h.spawn(func() { h.finishDelete(b) })
		return nil
	case sandboxd.StateRunning:
		return h.adopt(ctx, b, rec)
	case sandboxd.StatePreparing:
		return h.settleCold(ctx, b, parting{ending: sandboxd.Ending{Cause: sandboxd.CauseStartFailed, Message: "the host ended while the image of its runtime was prepared", At: time.Now().UTC()}})
	case sandboxd.StateStarting:
		// It never was announced as running, and no command can be in it.
		return h.settleCold(ctx, b, parting{ending: sandboxd.Ending{Cause: sandboxd.CauseStartFailed, Message: "the host ended during the start", At: time.Now().UTC()}})
	case sandboxd.StateStopping:
		return h.settleCold(ctx, b, resumed(rec))
	case sandboxd.StateCold, sandboxd.StateStopped:
		return h.settleFiles(ctx, b, rec)
	}
	return nil
}

func (h *Host) adopt(ctx context.Context, b *box, rec sandboxd.SandboxRecord) error {
	err := b.driver.Adopt(ctx, rec.ID, rec.Handle)
	if err != nil {
		ending := sandboxd.Ending{Cause: sandboxd.CauseUnknown, Message: "it ended while no host was looking", At: time.Now().UTC()}
		var e *sandboxd.Error
		if errors.As(err, &e) && e.Ending != nil {
			ending = *e.Ending
		} else if sandboxd.ClassOf(err) != sandboxd.ClassGone {
			return err
		}
		return h.settleCold(ctx, b, parting{ending: ending})
	}
	env, err := newEnvironment(b, rec)
	if err != nil {
		return err
	}
	if err := h.loadCommands(ctx, b, env, sandboxd.Ending{Cause: sandboxd.CauseUnknown}); err != nil {
		return err
	}
	b.setEnvironment(env)
	if err := env.attach(ctx); err != nil {
		// keepAttached goes on trying; what is running is not ended for a slow init.
		h.log.Warn("adopted but not attached yet", "sandbox", rec.ID, "err", err)
	}
	h.spawn(env.keepAttached)
	h.spawn(env.keepHome)
	for _, c := range env.commandList() {
		if cause := c.intended(); cause != "" {
			h.spawn(func() { c.end(cause, killGrace) }) // what the former host had begun
		} else {
			c.arm()
		}
	}
	h.log.Info("adopted", "sandbox", rec.ID, "key", rec.Key, "generation", rec.Generation, "commands", len(env.commandList()))
	return nil
}

// loadCommands opens the journals of the commands that ran when the former host
// ended. Those of another environment ended with it, which ended so.
func (h *Host) loadCommands(ctx context.Context, b *box, env *environment, other sandboxd.Ending) error {
	recs, err := h.store.ListCommands(ctx, b.id)
	if err != nil {
		return err
	}
	_, grouped := b.driver.(sandboxd.CommandGroups)
	for _, rec := range recs {
		if rec.Ending != nil {
			continue
		}
		j, err := h.openJournal(rec)
		if err != nil {
			return err
		}
		c := newCommand(env, rec, j)
		c.adopted, c.group = true, grouped
		close(c.fed) // what was not delivered died with the former host
		switch ending := j.Ending(); {
		case ending != nil:
			// The journal was finished and the store was not told.
			c.finish(*ending)
		case rec.Generation != env.generation:
			c.intend(environmentCause(other.Cause))
			c.lose(other)
		default:
			env.add(c)
		}
	}
	return nil
}

func (h *Host) openJournal(rec sandboxd.CommandRecord) (*journal.Journal, error) {
	return journal.Open(h.commandDir(rec.SandboxID, rec.ID), journal.Options{Limit: rec.Spec.OutputLimit})
}

// settleCold removes what is left of an environment and records its ending.
func (h *Host) settleCold(ctx context.Context, b *box, p parting) error {
	rec, err := b.toCold(ctx, p)
	if err != nil {
		return err
	}
	env, err := newEnvironment(b, rec)
	if err != nil {
		return err
	}
	env.detach()
	// No command can run now: each that has no ending gets this one.
	env.generation = -1
	if err := h.loadCommands(ctx, b, env, p.ending); err != nil {
		return err
	}
	return h.settleFiles(ctx, b, rec)
}

// settleFiles looks whether the files of a cold sandbox are there. A record whose
// host died before it made the directories never had any.
func (h *Host) settleFiles(ctx context.Context, b *box, rec sandboxd.SandboxRecord) error {
	_, err := h.root.ReadMeta(rec.Key)
	damaged := err != nil && sandboxd.ClassOf(err) != sandboxd.ClassNotFound
	if rec.Generation == 0 || damaged || h.root.Exists(rec.Key, rec.ID) {
		return b.makeFiles(rec)
	}
	h.log.Error("files are missing", "sandbox", rec.ID, "key", rec.Key)
	_, err = h.store.Update(ctx, rec.ID, func(r *sandboxd.SandboxRecord) error {
		r.State = sandboxd.StateLost
		return nil
	})
	return err
}

// rebuild adds records for workspaces that the store does not know, so that a
// lost or older host.db loses no files.
func (h *Host) rebuild(ctx context.Context, recs []sandboxd.SandboxRecord) ([]sandboxd.SandboxRecord, error) {
	listed := map[string]bool{}
	for _, rec := range recs {
		listed[rec.ID] = true
	}
	metas, err := h.root.Metas()
	if err != nil {
		// A damaged one does not keep the others from being served; if the store
		// knows it, it is written anew below.
		h.log.Error("records of workspaces not readable", "err", err)
	}
	for _, m := range metas {
		if listed[m.ID] {
			continue
		}
		if _, err := h.store.Get(ctx, m.ID); err == nil {
			continue // deleted
		}
		rec, created, err := h.store.Create(ctx, recordOf(m), h.poolOf(m))
		if err != nil {
			return nil, fmt.Errorf("workspace %s: %w", m.Key, err)
		}
		if created {
			recs = append(recs, rec)
			h.log.Warn("record rebuilt from the workspace", "sandbox", m.ID, "key", m.Key)
		}
	}
	return recs, nil
}

func recordOf(m workspace.Meta) sandboxd.SandboxRecord {
	return sandboxd.SandboxRecord{Sandbox: sandboxd.Sandbox{
		ID: m.ID, Key: m.Key, State: sandboxd.StateCold, Driver: m.Driver, Runtime: m.Runtime,
		Image: m.Image, OCIRuntime: m.OCIRuntime, Tenant: m.Tenant,
		Root: cmp.Or(m.Root, sandboxd.RootReadonly), Face: cmp.Or(m.Face, sandboxd.FaceNative),
		CreatedAt: m.CreatedAt, Limits: m.Limits, Network: known(m.Network), Labels: m.Labels,
	}, Life: sandboxd.Life{EnvLost: true}, Asked: m.Limits}
}

// reapOrphans ends environments that no record explains. The grace is for an
// operator who started a second server on a copy of the store and notices.
func (h *Host) reapOrphans() {
	t := time.NewTimer(h.cfg.OrphanGrace)
	defer t.Stop()
	select {
	case <-t.C:
	case <-h.ctx.Done():
		return
	}
	for name, d := range h.drivers {
		ids, err := d.List(h.ctx)
		if err != nil {
			h.log.Error("environments not listed", "driver", name, "err", err)
			continue
		}
		for _, id := range ids {
			h.mu.Lock()
			_, ours := h.boxes[id]
			h.mu.Unlock()
			if ours || h.former[id] {
				continue
			}
			h.log.Warn("orphan environment ended", "driver", name, "sandbox", id)
			if err := d.Stop(h.ctx, id); err != nil {
				h.log.Error("orphan not ended", "driver", name, "sandbox", id, "err", err)
			}
		}
	}
}
