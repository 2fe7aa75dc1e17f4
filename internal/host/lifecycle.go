package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
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
	asked := req
	if err := h.checkOpen(&req); err != nil {
		return sandboxd.Sandbox{}, false, err
	}
	start := req.Start == nil || *req.Start
	wait := waitOf(req.Face)
	if req.WaitS != nil {
		wait = req.WaitS.Duration()
	}
	now := h.clock()
	rec := sandboxd.SandboxRecord{
		Sandbox: sandboxd.Sandbox{
			ID: sandboxd.NewID(), Key: req.Key, State: sandboxd.StateCold, Driver: req.Driver, Runtime: req.Runtime,
			Image: req.Image, OCIRuntime: req.OCIRuntime, Root: h.rootOf(req), Tenant: req.Tenant, Face: req.Face,
			Open:      start || staysOpen(req.Face),
			CreatedAt: now.Wall.UTC().Truncate(time.Microsecond), Limits: req.Limits, Network: req.Network, Labels: maps.Clone(req.Labels),
		},
		Env: maps.Clone(req.Env), Asked: asked.Limits,
		Life: sandboxd.Life{Worked: now, Reason: reasonOpened, Used: now},
	}
	fits := func(stored sandboxd.SandboxRecord) error { return attachable(asked, req, stored) }
	stored, b, created, err := h.admit(ctx, rec, passage{start: start, attach: req.Attach, fits: fits, wait: wait})
	switch {
	case err == nil && start:
		if stored, err = b.start(ctx, wait); err != nil && created {
			h.unmake(ctx, rec.ID, err)
		}
	case err == nil && req.Prepare:
		stored, err = b.within(ctx, b.prepareOnly)
	}
	return h.seen(stored), created, err
}

// passage is how a sandbox is to be opened.
type passage struct {
	start  bool
	attach bool                               // and not made
	fits   func(sandboxd.SandboxRecord) error // whether the one that is there will do
	wait   time.Duration                      // for a place
}

// admit opens the sandbox of a key, or makes it: one at a time of each key. What is
// refused leaves nothing behind.
func (h *Host) admit(ctx context.Context, rec sandboxd.SandboxRecord, how passage) (sandboxd.SandboxRecord, *box, bool, error) {
	done, err := h.opening.take(ctx, rec.Key)
	if err != nil {
		return sandboxd.SandboxRecord{}, nil, false, err
	}
	defer done()
	stored, err := h.store.ByKey(ctx, rec.Key)
	if err == nil {
		if err := how.fits(stored); err != nil {
			return stored, nil, false, err
		}
		b := h.boxOf(stored)
		if lacksEnv(stored) && len(rec.Env) > 0 {
			stored, err = b.update(ctx, func(r *sandboxd.SandboxRecord) error {
				r.Env, r.Life.EnvLost = rec.Env, false
				return nil
			})
			if err != nil {
				return stored, nil, false, err
			}
		}
		if !how.start && staysOpen(stored.Face) && !stored.Open {
			stored, err = b.reopen(ctx, how.wait)
		}
		return stored, b, false, err
	}
	if sandboxd.ClassOf(err) != sandboxd.ClassNotFound || how.attach {
		return sandboxd.SandboxRecord{}, nil, false, err
	}
	if rec.Open {
		err = h.admitOpen(ctx, rec.ID, rec.Tenant)
		if err == nil && (how.start || keepsPlace(rec.Sandbox)) {
			err = h.admitPlace(ctx, rec.ID, how.wait)
		}
	} else {
		err = nil
	}
	var b *box
	created := false
	if err == nil {
		stored, b, created, err = h.create(ctx, rec)
	}
	switch {
	case !created:
		h.gate.Close(rec.ID)
		h.shareRoom()
	case err != nil:
		_, uerr := b.update(context.WithoutCancel(ctx), func(r *sandboxd.SandboxRecord) error {
			r.Open = staysOpen(r.Face)
			return nil
		})
		err = errors.Join(err, uerr)
	}
	return stored, b, created, err
}

// create records a sandbox and makes its directories. The directories of a key belong
// to one id at a time: between a record and its directories, and between a delete and
// the move of its files, nobody else may name the key.
func (h *Host) create(ctx context.Context, rec sandboxd.SandboxRecord) (sandboxd.SandboxRecord, *box, bool, error) {
	defer h.naming.lock(rec.Key)()
	stored, created, err := h.store.Create(ctx, rec, h.uidsFor(rec))
	if err != nil {
		return sandboxd.SandboxRecord{}, nil, false, err
	}
	fpOpenRecorded.Hit()
	b := h.boxOf(stored)
	if created {
		err = b.makeFiles(stored)
	}
	return stored, b, created, err
}

// reopen has a closed sandbox be open again, without starting it.
func (b *box) reopen(ctx context.Context, wait time.Duration) (sandboxd.SandboxRecord, error) {
	b.pulse.use(b.h)
	return b.exclusive(ctx, func(work context.Context) (sandboxd.SandboxRecord, error) {
		rec, err := b.h.record(work, b.id)
		if err != nil || rec.Open {
			return rec, err
		}
		if err := b.enter(ctx, rec, passage{wait: wait}); err != nil {
			return rec, err
		}
		return b.update(work, func(r *sandboxd.SandboxRecord) error {
			r.Open, r.Asleep = true, false
			b.pulse.opened(r, b.h)
			return nil
		})
	})
}

// enter has a sandbox pass the ceilings that it is not behind yet. ctx is that of
// who waits: the wait ends with it.
func (b *box) enter(ctx context.Context, rec sandboxd.SandboxRecord, how passage) error {
	if err := b.h.admitOpen(ctx, b.id, rec.Tenant); err != nil {
		return err
	}
	after := rec.Sandbox
	after.Open, after.Asleep = true, false
	if !how.start && !keepsPlace(after) {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	b.queueing(cancel)
	defer b.queueing(nil)
	err := b.h.admitPlace(ctx, b.id, how.wait)
	if err != nil {
		b.h.counted(rec.Sandbox) // as before
	}
	if err == context.Canceled {
		return sandboxd.Errorf(sandboxd.ClassBusy, "the sandbox was stopped while it waited for a place")
	}
	return err
}

// queueing notes how to end the wait for a place, nil when there is none.
func (b *box) queueing(cancel context.CancelFunc) {
	b.mu.Lock()
	b.leaveQueue = cancel
	b.mu.Unlock()
}

// queued says whether it waits for a place.
func (b *box) queued() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leaveQueue != nil
}

// unqueue ends a wait for a place: who waits holds up every other operation.
func (b *box) unqueue() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leaveQueue != nil {
		b.leaveQueue()
	}
}

// update changes the sandbox's record and brings what is known here up to date.
func (b *box) update(ctx context.Context, fn func(*sandboxd.SandboxRecord) error) (sandboxd.SandboxRecord, error) {
	rec, err := b.h.store.Update(ctx, b.id, fn)
	if err == nil {
		b.pulse.note(rec)
		b.h.counted(rec.Sandbox)
	}
	return rec, err
}

// Start implements sandboxd.Host.
func (h *Host) Start(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.Sandbox{}, err
	}
	rec, err := b.start(ctx, waitElse)
	return h.seen(rec), err
}

// Stop implements sandboxd.Host.
func (h *Host) Stop(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.Sandbox{}, err
	}
	defer b.stopPreparing()()
	b.unqueue()
	rec, err := b.exclusive(ctx, func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		return b.endLocked(ctx, stopped("stopped on request"))
	})
	return h.seen(rec), err
}

// acceptDelete records that the sandbox is to go and moves its files aside, so
// that its key is free for another.
func (h *Host) acceptDelete(ctx context.Context, b *box, may func(*sandboxd.SandboxRecord) error) error {
	defer h.naming.lock(b.key)()
	_, err := h.store.Update(ctx, b.id, func(r *sandboxd.SandboxRecord) error {
		if r.State == sandboxd.StateDeleting || r.State == sandboxd.StateDeleted {
			return sandboxd.Errorf(sandboxd.ClassGone, "the sandbox was deleted")
		}
		if err := may(r); err != nil {
			return err
		}
		r.State, r.Open, r.Asleep = sandboxd.StateDeleting, false, false
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
		if _, err := b.endEnvironment(ctx, deleted, false); err != nil {
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
	h.gate.Close(b.id) // a start that was overtaken may have come back
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

// start brings the sandbox to running and answers its record. It waits so long for a
// place, and no longer than its caller.
func (b *box) start(ctx context.Context, wait time.Duration) (sandboxd.SandboxRecord, error) {
	b.pulse.use(b.h) // what somebody waits for is not deleted under him
	return b.within(ctx, func(work context.Context) (sandboxd.SandboxRecord, error) {
		return b.startLocked(work, func(rec sandboxd.SandboxRecord) error {
			return b.enter(ctx, rec, passage{start: true, wait: wait})
		})
	})
}

func (b *box) startLocked(ctx context.Context, enter func(sandboxd.SandboxRecord) error) (sandboxd.SandboxRecord, error) {
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
	case sandboxd.StateCold, sandboxd.StateStopped:
	default:
		return rec, sandboxd.Errorf(sandboxd.ClassBusy, "the sandbox is %s", rec.State)
	}
	if err := enter(rec); err != nil {
		return rec, err
	}
	before, kept := rec, rec.State == sandboxd.StateStopped
	if !kept { // else what is to run is there
		if rec, err = b.prepare(ctx, rec); err != nil {
			_, uerr := b.update(context.WithoutCancel(ctx), func(r *sandboxd.SandboxRecord) error {
				r.Open = staysOpen(r.Face)
				return nil
			})
			return rec, errors.Join(err, uerr)
		}
	}
	nonce, image := newNonce(), rec.Image
	rec, err = b.update(ctx, func(r *sandboxd.SandboxRecord) error {
		r.State, r.Image = sandboxd.StateStarting, image
		if !kept {
			r.Limits = b.h.wanted(*r)
		}
		r.Open, r.Asleep = true, false
		b.pulse.opened(r, b.h)
		r.Generation++
		r.Nonce = nonce
		r.Handle = nil
		return nil
	})
	if err != nil {
		b.h.counted(before.Sandbox)
		return rec, b.h.overtaken(ctx, b.id, err)
	}
	fpStartIntent.Hit()
	running, err := b.launch(ctx, rec, kept)
	if err == nil {
		if kept { // it was made with the limits of then
			if adapted, err := b.adaptLocked(ctx); err == nil {
				running = adapted
			}
		}
		return running, nil
	}
	// The work's own context may be what failed: cleaning up must not fail with it.
	clean := context.WithoutCancel(ctx)
	kept, serr := b.endProcesses(clean, kept)
	if serr != nil {
		b.h.log.Error("half-made environment not removed", "sandbox", b.id, "err", serr)
	}
	b.h.log.Warn("start failed", "sandbox", b.id, "err", err)
	cold, uerr := b.update(clean, func(r *sandboxd.SandboxRecord) error {
		if !r.State.HasEnvironment() {
			return nil // deleted meanwhile
		}
		r.Open = staysOpen(r.Face)
		r.State, r.Handle = without(kept), nil
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
func (b *box) launch(ctx context.Context, rec sandboxd.SandboxRecord, kept bool) (sandboxd.SandboxRecord, error) {
	work, home := b.h.root.Dirs(rec.Key)
	handle, err := b.driver.Start(ctx, sandboxd.EnvironmentSpec{
		ID: rec.ID, Generation: rec.Generation, Workspace: work, Home: home, Seed: b.seedOf(rec), CABundle: b.h.cfg.CABundle, UID: rec.UID,
		Hostname: "sandbox", Limits: rec.Limits, Nonce: rec.Nonce, Tenant: rec.Tenant,
		Image: rec.Image, OCIRuntime: rec.OCIRuntime, WritableRoot: rec.Root == sandboxd.RootWritable, Kept: kept,
		Bridge: rec.Network.Mode == sandboxd.NetworkBridge,
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
	b.h.spawn(env.keepHome)
	if o.err != nil {
		env.detach()
		return o.rec, o.err
	}
	b.setEnvironment(env)
	return o.rec, nil
}

// parting is how an environment ends and what becomes of its sandbox.
type parting struct {
	ending sandboxd.Ending
	close  bool // it is no longer open
	sleep  bool // it is open, and asleep
}

func stopped(why string) parting {
	return parting{ending: sandboxd.Ending{Cause: sandboxd.CauseStopped, Message: why, At: time.Now().UTC()}}
}

// endLocked ends the environment, if there is one, and the sandbox is what p says.
func (b *box) endLocked(ctx context.Context, p parting) (sandboxd.SandboxRecord, error) {
	rec, err := b.h.record(ctx, b.id)
	if err != nil {
		return rec, err
	}
	if !rec.State.HasEnvironment() {
		if p.close && rec.Open || p.sleep && !rec.Asleep {
			return b.update(ctx, func(r *sandboxd.SandboxRecord) error { p.part(r, b.h.clock()); return nil })
		}
		return rec, nil
	}
	rec, err = b.update(ctx, func(r *sandboxd.SandboxRecord) error {
		r.State = sandboxd.StateStopping
		r.LastEnding = &p.ending // a host that dies now tells its successor
		return nil
	})
	if err != nil {
		return rec, err
	}
	fpStopIntent.Hit()
	return b.toCold(ctx, p)
}

// part makes of a record without an environment what p says.
func (p parting) part(r *sandboxd.SandboxRecord, now sandboxd.Moment) {
	r.Life.Ended = now
	switch {
	case p.sleep:
		r.Asleep = true
	case p.close || !staysOpen(r.Face):
		r.Open, r.Asleep, r.Life.Holds = false, false, nil
	}
}

// toCold ends the environment, if there still is one, and records why.
func (b *box) toCold(ctx context.Context, p parting) (sandboxd.SandboxRecord, error) {
	rec, err := b.h.store.Get(ctx, b.id)
	if err != nil {
		return rec, err
	}
	kept, err := b.endEnvironment(ctx, p.ending, b.keeps(rec))
	if err != nil {
		return sandboxd.SandboxRecord{}, err
	}
	fpStopDone.Hit()
	return b.update(ctx, func(r *sandboxd.SandboxRecord) error {
		if !r.State.HasEnvironment() && r.State != sandboxd.StatePreparing {
			return nil
		}
		r.State, r.Handle, r.Nonce = without(kept), nil, ""
		r.LastEnding = &p.ending
		p.part(r, b.h.clock())
		return nil
	})
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
		return b.toCold(ctx, parting{ending: ending})
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
