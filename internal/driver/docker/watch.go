package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandboxd"
)

// watching is the one stream of events, for all containers of this driver.
type watching struct {
	once  sync.Once
	retry chan struct{} // somebody waits for the stream

	mu    sync.Mutex
	up    bool
	err   error         // why not, after the last try
	tries int           // how often err was set
	news  chan struct{} // closed and replaced when something above changes
}

// replayTime is how long a stream that was interrupted may be silent before what
// it had to make up for counts as told.
const replayTime = 200 * time.Millisecond

// listen waits for the stream of events: without it nobody would hear that an
// environment ended.
func (d *Driver) listen(ctx context.Context) error {
	w := &d.watching
	w.once.Do(func() { d.work.Go(d.watch) })
	select {
	case w.retry <- struct{}{}:
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Patience)
	defer cancel()
	before := -1
	for {
		w.mu.Lock()
		up, err, tries, news := w.up, w.err, w.tries, w.news
		w.mu.Unlock()
		if before < 0 {
			before = tries
		}
		switch {
		case up:
			return nil
		case tries > before:
			return d.engine.explain(err)
		}
		select {
		case <-news:
		case <-d.ctx.Done():
			return errClosed
		case <-ctx.Done():
			return d.engine.silent(ctx.Err())
		}
	}
}

// heard notes that the stream is there or, with an error, why it is not.
func (d *Driver) heard(err error) {
	w := &d.watching
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up, w.err = err == nil, err
	if err != nil {
		w.tries++
	}
	close(w.news)
	w.news = make(chan struct{})
}

// watch reads the engine's events until the driver is closed. After an
// interruption it looks at every environment.
func (d *Driver) watch() {
	since, lost := "", false
	pause := 50 * time.Millisecond
	for d.ctx.Err() == nil {
		began := time.Now()
		err := d.stream(&since, lost)
		if d.ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Second {
			pause = 50 * time.Millisecond
		}
		d.cfg.Log.Warn("the container engine's events broke off", "err", err)
		d.heard(err)
		lost = true
		select {
		case <-time.After(pause):
		case <-d.watching.retry:
		case <-d.ctx.Done():
		}
		pause = min(2*pause, time.Second)
	}
}

// stream reads one stream of events to its end.
func (d *Driver) stream(since *string, lost bool) error {
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	stream := d.engine.api.Events(ctx, client.EventsListOptions{Since: *since, Filters: make(client.Filters).
		Add("type", "container").Add("label", labelData+"="+d.data).Add("event", "die", "oom", "kill")})
	hear := func(m events.Message) *environment {
		*since = fmt.Sprintf("%d.%09d", m.TimeNano/1e9, m.TimeNano%1e9)
		return d.hear(m)
	}
	if lost {
		if err := replay(stream, hear); err != nil {
			return err
		}
	}
	if err := d.lookAtAll(ctx, lost); err != nil {
		return err
	}
	select {
	case err := <-stream.Err: // what came was no stream of events
		return broken(err)
	default:
	}
	if *since == "" {
		*since = fmt.Sprintf("%d", time.Now().Unix())
	}
	d.heard(nil)
	for {
		select {
		case m := <-stream.Messages:
			if e := hear(m); e != nil {
				d.work.Go(func() { d.look(d.ctx, e) })
			}
		case err := <-stream.Err:
			return broken(err)
		}
	}
}

// replay takes what happened meanwhile: the engine tells it at once, if it still
// knows. Who ended is looked at afterwards.
func replay(stream client.EventsResult, hear func(events.Message) *environment) error {
	quiet := time.NewTimer(replayTime)
	defer quiet.Stop()
	for {
		select {
		case m := <-stream.Messages:
			hear(m)
			quiet.Reset(replayTime)
		case err := <-stream.Err:
			return broken(err)
		case <-quiet.C:
			return nil
		}
	}
}

func broken(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// hear takes one event, and answers the environment that by it has ended. Those of
// containers that are not ours any more are of no interest.
func (d *Driver) hear(m events.Message) *environment {
	d.mu.Lock()
	defer d.mu.Unlock()
	var e *environment
	for _, held := range d.envs { // not by the label: one from the pool has another's
		if held.container != "" && held.container == m.Actor.ID {
			e = held
		}
	}
	if e == nil {
		return nil
	}
	if e.made != "" && time.Unix(0, m.TimeNano).Before(e.started) {
		return nil // of the container's life before
	}
	switch m.Action {
	case events.ActionOOM:
		e.outOfMemory++
	case events.ActionKill:
		if n, err := strconv.Atoi(m.Actor.Attributes["signal"]); err == nil {
			e.signal = unix.SignalName(unix.Signal(n))
		}
	case events.ActionDie:
		e.died = true
	}
	if e.died && e.live && !e.stopping {
		return e
	}
	return nil
}

// lookAtAll compares what is held with what the engine has.
func (d *Driver) lookAtAll(ctx context.Context, lost bool) error {
	found, err := d.engine.list(ctx, labelData+"="+d.data)
	if err != nil {
		return err
	}
	running := map[string]bool{}
	for _, c := range found {
		running[c.ID] = c.State == container.StateRunning || c.State == container.StatePaused
	}
	d.mu.Lock()
	var dead []*environment
	for _, e := range d.envs {
		if e.live && !e.stopping && !running[e.container] {
			dead = append(dead, e)
		}
	}
	d.mu.Unlock()
	for _, e := range dead {
		if lost {
			// An engine that comes up kills what its dead predecessor left running.
			d.mu.Lock()
			told := e.died && e.signal == ""
			d.mu.Unlock()
			if !told {
				if err := d.lookAfterLoss(ctx, e); err != nil {
					return err // the stream is tried again, and so is this
				}
				continue
			}
		}
		d.look(ctx, e)
	}
	return nil
}

// look sees whether an environment has ended, and if so makes its ending known. It
// says whether it has.
func (d *Driver) look(ctx context.Context, e *environment) bool {
	seen, err := d.engine.inspect(ctx, e.container)
	if err == nil && seen.State.Running && seen.State.Status != container.StateRemoving {
		return false
	}
	if err != nil && !isClass(err, sandboxd.ClassNotFound) {
		return false // heard of when the engine is back
	}
	ending := d.endingOf(e, seen, err)
	if ending.Cause == sandboxd.CauseSignal && d.leaving(ctx, e) {
		ending = byEngine(ending)
	}
	d.ended(e, ending)
	return true
}

// leaving says whether the engine that killed a container is itself about to stop.
// It tells of such a kill as of any other, and answers whoever is connected, but
// takes no new connection any more.
func (d *Driver) leaving(ctx context.Context, e *environment) bool {
	d.mu.Lock()
	killed := e.signal != ""
	d.mu.Unlock()
	if !killed {
		return false
	}
	fresh, err := newEngine(d.engine.where, d.engine.limit)
	if err != nil {
		return false
	}
	defer fresh.close()
	_, err = fresh.info(ctx)
	return err != nil && ctx.Err() == nil
}

// byEngine is an ending for which the engine's own end is why.
func byEngine(e sandboxd.Ending) sandboxd.Ending {
	e.Cause, e.Signal, e.ExitCode = sandboxd.CauseEngine, "", nil
	e.Message = "the container engine stopped or restarted, and ended it"
	e.Remedy = "start the sandbox again; its files are kept. With live-restore an engine keeps its containers"
	return e
}

// lookAfterLoss is look when the engine was away: its own end is why. An engine that
// does not answer to this, or says that it runs, has not said that it ended.
func (d *Driver) lookAfterLoss(ctx context.Context, e *environment) error {
	seen, err := d.engine.inspect(ctx, e.container)
	if err != nil && !isClass(err, sandboxd.ClassNotFound) {
		return err
	}
	if err == nil && seen.State.Running && seen.State.Status != container.StateRemoving {
		return nil
	}
	ending := d.endingOf(e, seen, err)
	if err == nil && ending.Cause != sandboxd.CauseMemory {
		ending = byEngine(ending)
	}
	d.ended(e, ending)
	return nil
}

func (d *Driver) ended(e *environment, ending sandboxd.Ending) {
	said := ""
	d.mu.Lock()
	if e.conn != nil {
		said = e.conn.Said()
	}
	d.mu.Unlock()
	if !d.finish(e, &ending) {
		return
	}
	d.cfg.Log.Warn("a sandbox's container ended by itself", "sandbox", e.id, "cause", ending.Cause, "said", said)
	d.events.Push(sandboxd.DriverEvent{ID: e.id, Generation: e.generation, Ending: ending})
}

// endingOf says what is known about a death: what the engine keeps of the
// container, and what it told before.
func (d *Driver) endingOf(e *environment, seen container.InspectResponse, err error) sandboxd.Ending {
	d.mu.Lock()
	kills, signal := e.outOfMemory, e.signal
	d.mu.Unlock()
	ending := sandboxd.Ending{Cause: sandboxd.CauseUnknown, At: time.Now().UTC()}
	if !e.started.IsZero() {
		ending.WallS = sandboxd.InSeconds(time.Since(e.started))
	}
	var classed *sandboxd.Error
	if errors.As(err, &classed) && classed.Class == sandboxd.ClassNotFound || err == nil && seen.State.Status == container.StateRemoving {
		ending.Cause, ending.Message = sandboxd.CauseRemoved, "its container was removed, not by this host"
		return ending
	}
	if err != nil {
		return ending
	}
	code := seen.State.ExitCode
	ending.ExitCode = &code
	switch {
	case seen.State.OOMKilled, kills > 0 && code == 128+int(unix.SIGKILL):
		ending.Cause, ending.Limit = sandboxd.CauseMemory, memoryLimit(e.limits)
	case signal != "":
		ending.Cause, ending.Signal, ending.Message = sandboxd.CauseSignal, signal, "its container was killed through the engine, not by this host"
	case code > 128 && code < 128+65:
		ending.Cause, ending.Signal = sandboxd.CauseSignal, unix.SignalName(unix.Signal(code-128))
	default:
		ending.Cause = sandboxd.CauseExit
	}
	return ending
}
