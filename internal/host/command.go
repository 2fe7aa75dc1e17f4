package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sandboxd"
	"sandboxd/internal/clock"
	"sandboxd/internal/failpoint"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
	"sandboxd/internal/journal"
)

// The places between two durable steps of a command's life.
var (
	fpCommandRecorded = failpoint.New("command.recorded")
	fpCommandStarted  = failpoint.New("command.started")
	fpCommandIntended = failpoint.New("command.intended")
	fpCommandFinished = failpoint.New("command.finished")
	fpCommandEnded    = failpoint.New("command.ended")
)

// killGrace is the time between SIGTERM and SIGKILL when a limit ends a command:
// enough for a handler that writes a last line, and the whole stays below a second.
const killGrace = 200 * time.Millisecond

// command is one that runs. It leaves its environment's table when its ending is
// stored; from then on the journal on disk and the store speak for it.
type command struct {
	env     *environment
	id      string
	spec    sandboxd.CommandSpec
	began   clock.Moment
	journal *journal.Journal
	group   bool        // has a cgroup of its own
	adopted bool        // started by a former process
	over    atomic.Bool // its init said so when the link began; the ending follows

	// What the driver had counted of MemoryKills and ProcessRefusals when it began.
	killsBefore, refusedBefore int64

	lastOutput atomic.Int64 // nanoseconds of Host.uptime
	followers  atomic.Int64
	left       atomic.Int64 // when the last follower left, as lastOutput

	// fed is closed when the input of the specification is delivered: what is
	// written later comes after it.
	fed chan struct{}

	mu     sync.Mutex
	cause  sandboxd.Cause // what this host decided to end it for; first decision wins
	inHome int64          // what HOME held when it was ended for that; else 0
	once   sync.Once
	done   chan struct{} // closed when the ending is stored
	result sandboxd.Command
}

func newCommand(env *environment, rec sandboxd.CommandRecord, j *journal.Journal) *command {
	c := &command{env: env, id: rec.ID, spec: rec.Spec, began: clock.Moment{Wall: rec.StartedAt, Boot: rec.StartedBoot}, journal: j, cause: rec.Intent, fed: make(chan struct{}), done: make(chan struct{}), result: rec.Command}
	now := env.b.h.uptime()
	c.lastOutput.Store(now)
	c.left.Store(now)
	return c
}

// StartCommand implements sandboxd.Host.
func (h *Host) StartCommand(ctx context.Context, id string, spec sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
	named := spec.ID != ""
	if err := checkCommand(&spec); err != nil {
		return sandboxd.Command{}, false, err
	}
	for attempt := 1; ; attempt++ {
		b, env := h.up(id)
		if named || env == nil || attempt > 1 {
			var rec sandboxd.SandboxRecord
			var err error
			if rec, b, err = h.lookup(ctx, id); err != nil {
				return sandboxd.Command{}, false, err
			}
			if named {
				if old, err := h.store.GetCommand(ctx, id, spec.ID); err == nil {
					return h.sameCommand(ctx, b, old, spec)
				}
			}
			if env, err = b.ready(ctx, rec); err != nil {
				return sandboxd.Command{}, false, err
			}
		}
		// The command is started whole or not at all, even if its caller goes away.
		kept := context.WithoutCancel(ctx)
		cmd, started, err := env.run(kept, spec)
		if err == errLeft && attempt < 3 {
			continue // it was just being stopped, perhaps for lack of work
		}
		if err != nil {
			err = h.overtaken(kept, id, err)
		}
		return cmd, started, err
	}
}

// errLeft is of a command that came too late for its environment.
var errLeft error = sandboxd.Errorf(sandboxd.ClassBusy, "the sandbox stopped before the command started")

// sameCommand answers a repeated start of an id.
func (h *Host) sameCommand(ctx context.Context, b *box, old sandboxd.CommandRecord, spec sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
	// Compared as they are stored, where nil and empty are the same.
	was, err := json.Marshal(old.Spec)
	if err != nil {
		return sandboxd.Command{}, false, err
	}
	is, err := json.Marshal(spec)
	if err != nil {
		return sandboxd.Command{}, false, err
	}
	if !bytes.Equal(was, is) {
		return sandboxd.Command{}, false, sandboxd.Errorf(sandboxd.ClassConflict, "a command with this id and another specification exists")
	}
	return b.view(ctx, old), false, nil
}

// ready answers a running environment, starting one where that loses nothing
// silently: an environment that ended unasked is reported, not replaced.
func (b *box) ready(ctx context.Context, rec sandboxd.SandboxRecord) (*environment, error) {
	if env := b.environment(); env != nil && env.ctx.Err() == nil {
		return env, nil
	}
	if end := rec.LastEnding; rec.State != sandboxd.StateLost && !rec.State.HasEnvironment() && end != nil && !wakes(end.Cause) {
		err := sandboxd.Errorf(sandboxd.ClassGone, "the environment ended: %s", end.Cause).
			WithHint("the files are kept; start the sandbox to begin its next generation")
		err.Ending = end
		return nil, err
	}
	if _, err := b.start(ctx, waitOf(rec.Face)); err != nil {
		return nil, err
	}
	if env := b.environment(); env != nil {
		return env, nil
	}
	return nil, sandboxd.Errorf(sandboxd.ClassBusy, "the sandbox stopped again before the command started")
}

// wakes says whether a command starts a sandbox again that ended for this: nothing
// was lost that anybody was promised.
func wakes(c sandboxd.Cause) bool {
	switch c {
	case sandboxd.CauseStopped, sandboxd.CauseStartFailed, sandboxd.CauseIdle, sandboxd.CauseAsleep:
		return true
	}
	return false
}

// run records a command and starts it.
func (e *environment) run(ctx context.Context, spec sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
	e.b.starting.RLock()
	defer e.b.starting.RUnlock()
	if e.ctx.Err() != nil {
		return sandboxd.Command{}, false, errLeft
	}
	h := e.b.h
	now := h.clock()
	rec := sandboxd.CommandRecord{
		Command: sandboxd.Command{
			ID: spec.ID, SandboxID: e.b.id, Generation: e.generation, Argv: spec.Argv, Shell: spec.Shell,
			TTY: spec.TTY != nil, StartedAt: now.Wall.UTC(),
		},
		Spec: spec, StartedBoot: now.Boot,
	}
	rec, created, err := h.store.CreateCommand(ctx, rec)
	if err != nil {
		return sandboxd.Command{}, false, err
	}
	if !created {
		return h.sameCommand(ctx, e.b, rec, spec)
	}
	fpCommandRecorded.Hit()
	c := newCommand(e, rec, journal.Create(h.commandDir(e.b.id, spec.ID), journal.Options{Limit: spec.OutputLimit}))
	e.add(c)
	link, err := c.begin(ctx)
	if err != nil {
		var start *guest.StartError
		if !errors.As(err, &start) {
			if c.group {
				// Whether it runs, or will when the init has read so far, nobody knows.
				kill, cancel := context.WithTimeout(ctx, knowTime)
				c.killGroup(kill)
				cancel()
			}
			if e.over(ctx) {
				err = errEnded // which is why
			}
			c.finish(sandboxd.Ending{Cause: sandboxd.CauseStartFailed, Message: publicText(err), At: time.Now().UTC()})
			return sandboxd.Command{}, false, err
		}
		code := start.Exit.Code
		c.finish(sandboxd.Ending{Cause: sandboxd.CauseStartFailed, ExitCode: &code, Message: start.Exit.Error, At: time.Now().UTC()})
		return c.result, true, nil
	}
	fpCommandStarted.Hit()
	e.b.work(reasonCommand, "a command was started")
	e.mayWrite()
	c.arm()
	if len(spec.Stdin) == 0 {
		close(c.fed)
	} else {
		// Bound to the environment: a command that does not read its input keeps
		// only this goroutine.
		h.spawn(func() {
			defer close(c.fed)
			if err := link.Stdin(e.ctx, c.id, spec.Stdin, !spec.StdinOpen); err != nil && !c.isDone() {
				h.log.Debug("stdin not delivered", "sandbox", e.b.id, "command", c.id, "err", err)
			}
		})
	}
	return rec.Command, true, nil
}

// begin makes the command's cgroup and has the init start it.
func (c *command) begin(ctx context.Context) (*guest.Link, error) {
	link, err := c.env.connected(ctx)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	groups, ok := c.env.b.driver.(sandboxd.CommandGroups)
	if !ok && c.spec.Limits != (sandboxd.CommandLimits{}) {
		return nil, sandboxd.Errorf(sandboxd.ClassUnsupported, "a command cannot be given limits of its own here").
			WithHint("they need cgroups; `sandboxd doctor` says why there are none")
	}
	if ok {
		files, err = groups.CreateGroup(ctx, c.env.b.id, c.id, c.spec.Limits)
		if err != nil {
			return nil, err
		}
		c.group = true
	}
	if kills, ok := c.env.b.driver.(sandboxd.MemoryKills); ok {
		c.killsBefore = kills.MemoryKills(c.env.b.id)
	}
	if refusals, ok := c.env.b.driver.(sandboxd.ProcessRefusals); ok {
		c.refusedBefore, _ = refusals.ProcessRefusals(c.env.b.id)
	}
	argv := c.spec.Argv
	if c.spec.Shell != "" {
		argv = []string{"/bin/sh", "-c", c.spec.Shell}
	}
	start := wire.Start{
		ID: c.id, Argv: argv, Env: c.env.environ(c.spec), Cwd: inWorkDir(c.spec.Cwd),
		Stdin: len(c.spec.Stdin) > 0 || c.spec.StdinOpen, Wait: string(c.spec.Wait), Groups: len(files),
	}
	if !c.group {
		start.Env = append(start.Env, wire.MarkVariable+"="+c.id)
	}
	if t := c.spec.TTY; t != nil {
		start.TTY, start.Cols, start.Rows = true, t.Cols, t.Rows
	}
	err = link.Start(ctx, start, files)
	for _, f := range files {
		f.Close()
	}
	return link, err
}

func inWorkDir(cwd string) string {
	if path.IsAbs(cwd) {
		return path.Clean(cwd)
	}
	return path.Join(sandboxd.WorkDir, cwd)
}

func (h *Host) commandDir(id, command string) string {
	return filepath.Join(h.journalDir(id), command)
}

// arm starts the clocks that may end the command. The total time counts from its
// start, whichever host that was. Silence and the lack of followers count from
// now: a host that was away could see neither.
func (c *command) arm() {
	total := c.spec.Timeout()
	silence := c.spec.NoOutputTimeoutS.Duration()
	orphan := c.spec.OrphanAfterS.Duration()
	if c.spec.Background {
		orphan = 0
	}
	if total == 0 && silence == 0 && orphan == 0 {
		return
	}
	c.env.b.h.spawn(func() { c.watchClocks(total, silence, orphan) })
}

func (c *command) watchClocks(total, silence, orphan time.Duration) {
	h := c.env.b.h
	var over <-chan time.Time
	if total > 0 {
		left := total - clock.Elapsed(c.began, h.clock())
		if left < -clock.Leap {
			select {
			case h.late <- struct{}{}:
				defer func() { <-h.late }()
			case <-c.done:
				return
			case <-c.env.ctx.Done():
				return
			}
		}
		t := time.NewTimer(left)
		defer t.Stop()
		over = t.C
	}
	quiet, unseen := newIdle(silence), newIdle(orphan)
	defer quiet.stop()
	defer unseen.stop()
	for {
		select {
		case <-c.done:
			return
		case <-c.env.ctx.Done():
			return
		case <-over:
			c.cut(sandboxd.CauseTimeout, killGrace)
			return
		case <-quiet.fired():
			if quiet.over(h.uptime() - c.lastOutput.Load()) {
				c.cut(sandboxd.CauseNoOutput, killGrace)
				return
			}
		case <-unseen.fired():
			if c.followers.Load() > 0 {
				unseen.again(orphan)
			} else if unseen.over(h.uptime() - c.left.Load()) {
				c.cut(sandboxd.CauseOrphaned, killGrace)
				return
			}
		}
	}
}

// idle is a timer that is pushed back by looking, when it fires, at when the last
// activity was: activity itself costs one atomic store.
type idle struct {
	limit time.Duration
	timer *time.Timer
}

func newIdle(limit time.Duration) *idle {
	i := &idle{limit: limit}
	if limit > 0 {
		i.timer = time.NewTimer(limit)
	}
	return i
}

func (i *idle) fired() <-chan time.Time {
	if i.timer == nil {
		return nil
	}
	return i.timer.C
}

func (i *idle) again(d time.Duration) { i.timer.Reset(d) }

// over says whether nothing happened for so many nanoseconds is long enough; if
// not, the timer fires again when it may be.
func (i *idle) over(nanos int64) bool {
	left := i.limit - time.Duration(nanos)
	if left <= 0 {
		return true
	}
	i.again(left)
	return false
}

func (i *idle) stop() {
	if i.timer != nil {
		i.timer.Stop()
	}
}

// output appends to the journal; only what is there is acknowledged.
func (c *command) output(stream sandboxd.Stream, offset int64, data []byte) error {
	c.lastOutput.Store(c.env.b.h.uptime())
	err := c.journal.Append(stream, offset, data)
	if err == nil {
		c.env.b.wrote(len(data))
		return nil
	}
	cause := sandboxd.CauseUnknown
	if sandboxd.ClassOf(err) == sandboxd.ClassNoSpace {
		cause = sandboxd.CauseDisk
	}
	c.env.b.h.log.Error("output not kept", "sandbox", c.env.b.id, "command", c.id, "err", err)
	// Its own goroutine: this one is the command's only reader, and the ending
	// must not wait for output that has no place to go.
	c.env.b.h.spawn(func() {
		c.end(cause, 0)
		c.finish(sandboxd.Ending{Cause: cause, Message: "its output could not be kept", At: time.Now().UTC()})
		// The init still waits for output to be taken.
		c.env.forget(c.id)
	})
	return err
}

// intend notes what the command is being ended for. The first decision stands.
func (c *command) intend(cause sandboxd.Cause) {
	c.mu.Lock()
	if c.cause == "" {
		c.cause = cause
	}
	c.mu.Unlock()
}

func (c *command) intended() sandboxd.Cause {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// knowTime is how long a command may keep running for want of a link, by which alone
// it is known whether it does.
const knowTime = 3 * time.Second

// cut ends a command that runs. One that ended by itself while no host was looking,
// before its time or before a caller asked, is told as that.
func (c *command) cut(cause sandboxd.Cause, grace time.Duration) {
	ctx, cancel := context.WithTimeout(c.env.ctx, knowTime)
	defer cancel()
	if _, err := c.env.connected(ctx); err == nil && c.over.Load() {
		select {
		case <-c.done:
		case <-ctx.Done():
		}
		if c.isDone() || c.env.ctx.Err() != nil {
			return
		}
		// An init's word alone keeps nothing running.
	}
	c.end(cause, grace)
}

// end ends the whole tree for a cause: SIGTERM to the leader's group, after the
// grace SIGKILL to every process of the command.
func (c *command) end(cause sandboxd.Cause, grace time.Duration) {
	c.intend(cause)
	// A later host must not take for the program's doing what this one does now.
	h := c.env.b.h
	if err := h.store.IntendCommand(context.WithoutCancel(h.ctx), c.env.b.id, c.id, c.intended()); err != nil {
		h.log.Error("the intent to end a command not recorded", "sandbox", c.env.b.id, "command", c.id, "err", err)
	}
	fpCommandIntended.Hit()
	ctx, cancel := context.WithTimeout(c.env.ctx, grace+5*time.Second)
	defer cancel()
	link, err := c.env.connected(ctx)
	if err == nil && grace > 0 {
		if err := link.End(ctx, c.id, syscall.SIGTERM); err == nil {
			t := time.NewTimer(grace)
			select {
			case <-c.done:
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
		}
	}
	if c.group {
		c.killGroup(ctx)
	} else if !c.isDone() {
		c.killTree(ctx)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if c.env.ctx.Err() == nil {
			c.finish(sandboxd.Ending{Cause: cause, Message: "it was killed and its init did not report the end", At: time.Now().UTC()})
		}
	}
}

// killTree ends what is known to be of a command that has no cgroup.
func (c *command) killTree(ctx context.Context) {
	link, err := c.env.connected(ctx)
	if err == nil {
		err = link.End(ctx, c.id, syscall.SIGKILL)
	}
	if err != nil && c.env.ctx.Err() == nil {
		c.env.b.h.log.Warn("command not killed", "sandbox", c.env.b.id, "command", c.id, "err", err)
	}
}

// killGroup ends every process in the command's cgroup.
func (c *command) killGroup(ctx context.Context) {
	err := c.env.b.driver.(sandboxd.CommandGroups).KillGroup(ctx, c.env.b.id, c.id)
	if err != nil && c.env.ctx.Err() == nil && sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		c.env.b.h.log.Error("command not killed", "sandbox", c.env.b.id, "command", c.id, "err", err)
	}
}

func (c *command) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
