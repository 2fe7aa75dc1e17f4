package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"time"

	"sandboxd"
	"sandboxd/internal/failpoint"
	"sandboxd/internal/workspace"
)

// The places between two durable steps of a sandbox's life.
var (
	fpOpenRecorded  = failpoint.New("open.recorded")
	fpStartIntent   = failpoint.New("start.intent")
	fpStartMade     = failpoint.New("start.made")
	fpStartHandle   = failpoint.New("start.handle")
	fpStopIntent    = failpoint.New("stop.intent")
	fpStopDone      = failpoint.New("stop.done")
	fpDeleteIntent  = failpoint.New("delete.intent")
	fpDeleteStopped = failpoint.New("delete.stopped")
	fpDeleteTrashed = failpoint.New("delete.trashed")
)

// Open implements sandboxd.Host.
func (h *Host) Open(ctx context.Context, req sandboxd.OpenRequest) (sandboxd.Sandbox, bool, error) {
	if err := h.checkOpen(&req); err != nil {
		return sandboxd.Sandbox{}, false, err
	}
	start := req.Start == nil || *req.Start
	rec := sandboxd.SandboxRecord{
		Sandbox: sandboxd.Sandbox{
			ID: sandboxd.NewID(), Key: req.Key, State: sandboxd.StateCold, Driver: req.Driver, Runtime: req.Runtime,
			Image: req.Image, OCIRuntime: req.OCIRuntime, Root: h.rootOf(req), Tenant: req.Tenant, Face: req.Face,
			CreatedAt: time.Now().UTC().Truncate(time.Microsecond), Limits: req.Limits, Network: req.Network, Labels: maps.Clone(req.Labels),
		},
		Env: maps.Clone(req.Env),
	}
	stored, b, created, err := h.create(ctx, rec, start)
	if err == nil && start {
		stored, err = b.start(ctx)
	} else if err == nil && req.Prepare {
		stored, err = b.within(ctx, b.prepareOnly)
	}
	if err != nil {
		// A caller that has left does not end what it began, which frees the place itself.
		if created && ctx.Err() == nil && sandboxd.ClassOf(err) != sandboxd.ClassBusy && (b == nil || !b.running()) {
			h.release(rec.ID)
		}
		return h.seen(stored), created, err
	}
	return h.seen(stored), created, nil
}

// create records a sandbox and makes its directories, or finds the one of its key.
// The directories of a key belong to one id at a time: between a record and its
// directories, and between a delete and the move of its files, nobody else may
// name the key.
//
// One that is to be started takes its place before its record exists, so that a
// refusal leaves nothing behind.
func (h *Host) create(ctx context.Context, rec sandboxd.SandboxRecord, start bool) (sandboxd.SandboxRecord, *box, bool, error) {
	defer h.naming.lock(rec.Key)()
	stored, err := h.store.ByKey(ctx, rec.Key)
	if err == nil {
		return stored, h.boxOf(stored), false, nil
	}
	if start {
		if err := h.reserve(ctx, rec.ID); err != nil {
			return sandboxd.SandboxRecord{}, nil, false, err
		}
	}
	stored, created, err := h.store.Create(ctx, rec, h.uidsFor(rec))
	if err != nil {
		h.release(rec.ID)
		return sandboxd.SandboxRecord{}, nil, false, err
	}
	fpOpenRecorded.Hit()
	b := h.boxOf(stored)
	if created {
		err = b.makeFiles(stored)
	}
	return stored, b, created, err
}

// Start implements sandboxd.Host.
func (h *Host) Start(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.Sandbox{}, err
	}
	rec, err := b.start(ctx)
	return rec.Sandbox, err
}

// Stop implements sandboxd.Host.
func (h *Host) Stop(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.Sandbox{}, err
	}
	defer b.stopPreparing()()
	rec, err := b.exclusive(ctx, b.stopLocked)
	return rec.Sandbox, err
}

// Delete implements sandboxd.Host. The record says deleting and the place is free
// when it returns; the rest follows, and reconcile ends what a crash interrupts.
func (h *Host) Delete(ctx context.Context, id string) error {
	rec, err := h.record(ctx, id)
	if err != nil {
		return err
	}
	b := h.boxOf(rec)
	if err := h.acceptDelete(ctx, b); err != nil {
		return err
	}
	h.release(id)
	b.abort()
	h.spawn(func() { h.finishDelete(b) })
	return nil
}

// acceptDelete records that the sandbox is to go and moves its files aside, so
// that its key is free for another.
func (h *Host) acceptDelete(ctx context.Context, b *box) error {
	defer h.naming.lock(b.key)()
	_, err := h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
		if r.State == sandboxd.StateDeleting || r.State == sandboxd.StateDeleted {
			return sandboxd.Errorf(sandboxd.ClassGone, "the sandbox was deleted")
		}
		r.State = sandboxd.StateDeleting
		return nil
	})
	if err != nil {
		return err
	}
	fpDeleteIntent.Hit()
	// An environment that runs keeps the directories it has mounted.
	if err := h.root.Trash(b.key, b.id); err != nil {
		return err
	}
	fpDeleteTrashed.Hit()
	return nil
}

// finishDelete does what a delete accepted: environment, journals and files go,
// in this order, and each step may be repeated.
func (h *Host) finishDelete(b *box) {
	err := b.conclude(func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		deleted := sandboxd.Ending{Cause: sandboxd.CauseStopped, Message: "the sandbox was deleted", At: time.Now().UTC()}
		if err := b.endEnvironment(ctx, deleted); err != nil {
			return sandboxd.SandboxRecord{}, err
		}
		fpDeleteStopped.Hit()
		if err := os.RemoveAll(h.journalDir(b.id)); err != nil {
			return sandboxd.SandboxRecord{}, err
		}
		if err := h.store.DeleteCommands(ctx, b.id); err != nil {
			return sandboxd.SandboxRecord{}, err
		}
		// Before the record lets go of the uid: who gets it next must not find files
		// that belong to it.
		if err := h.root.Discard(ctx, b.id); err != nil {
			return sandboxd.SandboxRecord{}, err
		}
		return h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
			r.State, r.Handle, r.Nonce, r.Env = sandboxd.StateDeleted, nil, "", nil
			return nil
		})
	})
	if err != nil {
		// The record stays in deleting; the next start of the host tries again.
		h.log.Error("delete did not finish", "sandbox", b.id, "err", err)
		return
	}
	h.mu.Lock()
	delete(h.boxes, b.id)
	h.mu.Unlock()
	b.closeGate()
}

func (h *Host) journalDir(id string) string { return filepath.Join(h.cfg.DataDir, "journal", id) }

// makeFiles makes the directories of a sandbox; made before is no error.
func (b *box) makeFiles(rec sandboxd.SandboxRecord) error {
	return b.h.root.Create(workspace.Meta{
		ID: rec.ID, Key: rec.Key, UID: rec.UID, CreatedAt: rec.CreatedAt,
		Runtime: rec.Runtime, Driver: rec.Driver, Limits: rec.Limits, Network: rec.Network, Labels: rec.Labels,
		Image: rec.Image, OCIRuntime: rec.OCIRuntime, Root: rec.Root, Tenant: rec.Tenant, Face: rec.Face,
	})
}

// start brings the sandbox to running and answers its record.
func (b *box) start(ctx context.Context) (sandboxd.SandboxRecord, error) {
	return b.within(ctx, b.startLocked)
}

func (b *box) startLocked(ctx context.Context) (sandboxd.SandboxRecord, error) {
	rec, err := b.h.record(ctx, b.id)
	if err != nil {
		return rec, err
	}
	if b.running() {
		return rec, nil
	}
	switch rec.State {
	case sandboxd.StateLost:
		return rec, sandboxd.Errorf(sandboxd.ClassUnavailable, "the files of this sandbox are lost; it is not replaced by an empty one")
	case sandboxd.StateCold:
	default:
		return rec, sandboxd.Errorf(sandboxd.ClassBusy, "the sandbox is %s", rec.State)
	}
	if err := b.h.reserve(ctx, b.id); err != nil {
		return rec, err
	}
	if rec, err = b.prepare(ctx, rec); err != nil {
		b.h.release(b.id)
		return rec, err
	}
	nonce, image := newNonce(), rec.Image
	rec, err = b.h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
		r.State, r.Image = sandboxd.StateStarting, image
		r.Generation++
		r.Nonce = nonce
		r.Handle = nil
		return nil
	})
	if err != nil {
		b.h.release(b.id)
		return rec, err
	}
	fpStartIntent.Hit()
	running, err := b.launch(ctx, rec)
	if err == nil {
		return running, nil
	}
	b.h.release(b.id)
	// The work's own context may be what failed: cleaning up must not fail with it.
	clean := context.WithoutCancel(ctx)
	if serr := b.driver.Stop(clean, b.id); serr != nil {
		b.h.log.Error("half-made environment not removed", "sandbox", b.id, "err", serr)
	}
	b.h.log.Warn("start failed", "sandbox", b.id, "err", err)
	cold, uerr := b.h.store.Update(clean, b.id, func(r *sandboxd.SandboxRecord) error {
		if !r.State.HasEnvironment() {
			return nil // deleted meanwhile
		}
		r.State, r.Handle = sandboxd.StateCold, nil
		r.LastEnding = &sandboxd.Ending{Cause: sandboxd.CauseStartFailed, Message: publicText(err), At: time.Now().UTC()}
		return nil
	})
	if uerr != nil {
		return rec, uerr
	}
	if cold.State == sandboxd.StateDeleting || cold.State == sandboxd.StateDeleted {
		return cold, sandboxd.Errorf(sandboxd.ClassGone, "the sandbox was deleted while it started")
	}
	return cold, err
}

// launch asks the driver and attaches to the init. Its caller cleans up.
func (b *box) launch(ctx context.Context, rec sandboxd.SandboxRecord) (sandboxd.SandboxRecord, error) {
	work, home := b.h.root.Dirs(rec.Key)
	handle, err := b.driver.Start(ctx, sandboxd.EnvironmentSpec{
		ID: rec.ID, Generation: rec.Generation, Workspace: work, Home: home, CABundle: b.h.cfg.CABundle, UID: rec.UID,
		Hostname: "sandbox", Limits: rec.Limits, Nonce: rec.Nonce, Tenant: rec.Tenant,
		Image: rec.Image, OCIRuntime: rec.OCIRuntime, WritableRoot: rec.Root == sandboxd.RootWritable,
	})
	if err != nil {
		return rec, err
	}
	fpStartMade.Hit()
	env, err := newEnvironment(b, rec)
	if err != nil {
		return rec, err
	}
	// The record is written while the link is made: neither waits for the other, and
	// nobody is told of this before both are done.
	written := make(chan outcome, 1)
	go func() {
		var o outcome
		o.rec, o.err = b.h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
			r.State, r.Handle = sandboxd.StateRunning, handle
			return nil
		})
		written <- o
	}()
	err = env.attach(ctx)
	o := <-written
	fpStartHandle.Hit()
	if err != nil {
		return rec, err
	}
	b.h.spawn(env.keepAttached)
	if o.err != nil {
		env.detach()
		return o.rec, o.err
	}
	b.setEnvironment(env)
	return o.rec, nil
}

func (b *box) stopLocked(ctx context.Context) (sandboxd.SandboxRecord, error) {
	rec, err := b.h.record(ctx, b.id)
	if err != nil || !rec.State.HasEnvironment() {
		return rec, err
	}
	rec, err = b.h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
		r.State = sandboxd.StateStopping
		return nil
	})
	if err != nil {
		return rec, err
	}
	fpStopIntent.Hit()
	return b.toCold(ctx, sandboxd.Ending{Cause: sandboxd.CauseStopped, Message: "stopped on request", At: time.Now().UTC()})
}

// toCold ends the environment, if there still is one, and records why.
func (b *box) toCold(ctx context.Context, ending sandboxd.Ending) (sandboxd.SandboxRecord, error) {
	if err := b.endEnvironment(ctx, ending); err != nil {
		return sandboxd.SandboxRecord{}, err
	}
	fpStopDone.Hit()
	rec, err := b.h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
		if !r.State.HasEnvironment() && r.State != sandboxd.StatePreparing {
			return nil
		}
		r.State, r.Handle, r.Nonce = sandboxd.StateCold, nil, ""
		r.LastEnding = &ending
		return nil
	})
	b.h.release(b.id)
	return rec, err
}

// environmentEnded records the end of an environment that nobody here asked for.
func (h *Host) environmentEnded(id string, generation int64, ending sandboxd.Ending) {
	h.mu.Lock()
	b := h.boxes[id]
	h.mu.Unlock()
	if b == nil {
		return
	}
	err := b.conclude(func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		env := b.environment()
		if env == nil || env.generation != generation {
			return sandboxd.SandboxRecord{}, nil // an older one, or ended meanwhile
		}
		return b.toCold(ctx, ending)
	})
	if err != nil && h.ctx.Err() == nil {
		h.log.Error("ending not recorded", "sandbox", id, "err", err)
	}
}

func newNonce() string {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		panic("host: the kernel gave no randomness: " + err.Error())
	}
	return hex.EncodeToString(raw[:])
}
