package host

import (
	"context"
	"sync"
	"sync/atomic"

	"sandboxd"
	"sandboxd/internal/egress"
)

// box is one id on this host. Its lifecycle operations run one at a time, on a
// context of their own: a caller that goes away stops waiting, not the work.
type box struct {
	h      *Host
	id     string
	key    string
	uid    uint32
	driver sandboxd.Driver
	old    bool // an earlier process may have written to the files

	life     chan struct{} // holds one token while a lifecycle operation runs
	starting sync.RWMutex  // read-held while a command is being started

	ctx   context.Context // of lifecycle work; ends when the sandbox is to be deleted
	abort context.CancelFunc

	pulse pulse // when it worked

	mu         sync.Mutex
	env        *environment
	leaveQueue context.CancelFunc // while it waits for a place
	files      sandboxd.Files
	home       homeLook
	gate       *egress.Gate // of a sandbox with a proxy, once it was needed
	// unprepare ends the wait for the image of its runtime; nil when it does not wait.
	unprepare context.CancelCauseFunc
	stops     int // that go on; each ends a preparation that begins meanwhile, too

	written atomic.Int64 // bytes of output
	resting sync.Mutex   // held while one of its commands rests; see flow
}

func newBox(h *Host, rec sandboxd.SandboxRecord, d sandboxd.Driver) *box {
	b := &box{h: h, id: rec.ID, key: rec.Key, uid: rec.UID, driver: d, old: h.former[rec.ID], life: make(chan struct{}, 1)}
	b.ctx, b.abort = context.WithCancel(h.ctx)
	b.pulse.load(rec, h)
	return b
}

// outcome is what a lifecycle operation answers.
type outcome struct {
	rec sandboxd.SandboxRecord
	err error
}

// exclusive runs fn as this box's only lifecycle operation and waits for it or
// for ctx. A delete ends the context that fn gets.
func (b *box) exclusive(ctx context.Context, fn func(context.Context) (sandboxd.SandboxRecord, error)) (sandboxd.SandboxRecord, error) {
	select {
	case r := <-b.serial(b.ctx, fn):
		if r.err != nil && b.ctx.Err() != nil && b.h.ctx.Err() == nil {
			return r.rec, sandboxd.Errorf(sandboxd.ClassGone, "the sandbox was deleted")
		}
		return r.rec, r.err
	case <-ctx.Done():
		return sandboxd.SandboxRecord{}, ctx.Err()
	}
}

// conclude is exclusive for work that nobody waits for and a delete does not
// cancel: endings, and deletes themselves.
func (b *box) conclude(fn func(context.Context) (sandboxd.SandboxRecord, error)) error {
	return (<-b.serial(b.h.ctx, fn)).err
}

// serial runs fn on ctx once no other lifecycle operation of this box runs.
func (b *box) serial(ctx context.Context, fn func(context.Context) (sandboxd.SandboxRecord, error)) <-chan outcome {
	done := make(chan outcome, 1)
	b.h.spawn(func() {
		var r outcome
		select {
		case b.life <- struct{}{}:
			r.rec, r.err = fn(ctx)
			<-b.life
		case <-ctx.Done():
			r.err = ctx.Err()
		}
		done <- r
	})
	return done
}

func (b *box) environment() *environment {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.env
}

func (b *box) running() bool { return b.environment() != nil }

func (b *box) setEnvironment(env *environment) {
	b.mu.Lock()
	b.env = env
	b.mu.Unlock()
}

// endEnvironment stops the environment, if there is one, and ends its commands
// with it. It says whether what else there is of it was kept.
func (b *box) endEnvironment(ctx context.Context, ending sandboxd.Ending, keep bool) (kept bool, err error) {
	env := b.environment()
	if env != nil {
		env.ending.Store(true)
		for _, c := range env.commandList() {
			c.intend(environmentCause(ending.Cause))
		}
	}
	if kept, err = b.endProcesses(ctx, keep); err != nil {
		if env != nil {
			env.ending.Store(false)
		}
		return false, err
	}
	if env != nil {
		env.detach()
		<-env.gone
		// Who is starting a command now fails on the detached environment; after
		// this nobody adds a command or a journal.
		b.starting.Lock()
		b.starting.Unlock()
		for _, c := range env.commandList() {
			c.lose(ending)
		}
		b.setEnvironment(nil) // last: who follows a command finds it until it has an ending
	}
	return kept, nil
}

// environmentCause is what the end of an environment is for its commands.
func environmentCause(c sandboxd.Cause) sandboxd.Cause {
	if c == sandboxd.CauseStopped || c == sandboxd.CauseEvicted {
		return c
	}
	return sandboxd.CauseEnvironment
}

// openFiles answers the workspace. What interrupted writes of an earlier process
// left is swept before the first use by this one.
func (b *box) openFiles() (sandboxd.Files, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.files == nil {
		f, err := b.h.root.Files(b.key, b.uid)
		if err != nil {
			return nil, err
		}
		// A delete may just have been accepted, and what has the key by now be another's.
		if _, err := b.h.record(b.h.ctx, b.id); err != nil {
			return nil, err
		}
		if b.old {
			if err := f.SweepTemp(b.h.ctx); err != nil {
				b.h.log.Warn("leftovers of writes not swept", "sandbox", b.id, "err", err)
			}
		}
		b.files = f
	}
	return b.files, nil
}
