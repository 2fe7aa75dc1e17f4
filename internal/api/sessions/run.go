package sessions

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sandboxd"
)

const (
	// outputLimit is the most that both streams of a run may be together; a run that
	// writes more is stopped.
	outputLimit = 10 << 20
	// partialOutput is what is shown of each stream of a run that was stopped.
	partialOutput = 64 << 10
	// stopGrace is between SIGTERM and SIGKILL.
	stopGrace = sandboxd.Seconds(2)
	// sparedTime is how long a run that was stopped before it was heard of is
	// remembered, and sparedMax how many such there are in a session.
	sparedTime = time.Minute
	sparedMax  = 1000
)

// running is a run from its request to its answer.
type running struct {
	started chan struct{} // closed when command says which it is, or that it is none
	ended   chan struct{} // closed with the answer
	command string
	stopped bool // somebody asked, perhaps before it was started; guarded by activity.mu
}

// enter notes a run. A stop that overtook it on the way is answered by nil.
func (a *activity) enter(id string) *running {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at, ok := a.spared[id]; ok && time.Since(at) < sparedTime {
		delete(a.spared, id)
		return nil
	}
	r := &running{started: make(chan struct{}), ended: make(chan struct{})}
	a.runs[id] = r
	return r
}

func (a *activity) leave(id string, r *running) {
	a.mu.Lock()
	if a.runs[id] == r {
		delete(a.runs, id)
	}
	a.mu.Unlock()
	close(r.ended)
}

// spare has a run that nobody has heard of not begin at all.
func (a *activity) spare(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for old, at := range a.spared {
		if time.Since(at) > sparedTime || len(a.spared) >= sparedMax {
			delete(a.spared, old)
		}
	}
	a.spared[id] = time.Now()
}

// result is how a run ended.
type result struct {
	Stdout        string `json:"stdout"`
	Stderr        string `json:"stderr"`
	ExitCode      *int   `json:"exit_code"`
	TimedOut      bool   `json:"timed_out"`
	OutputLimited bool   `json:"output_limited"`
	OutputLimit   *int   `json:"output_limit"`
}

func (r result) outcome() outcome {
	switch {
	case r.TimedOut:
		return outcome{detail: "timed out"}
	case r.OutputLimited:
		return outcome{detail: "output limit"}
	}
	return outcome{ok: *r.ExitCode == 0, detail: fmt.Sprintf("exit %d", *r.ExitCode)}
}

// run is POST /sessions/{session_id}/run: it answers when the command has ended. A
// caller who leaves does not end it; that is what stopping is for.
func (f *Face) run(c *call) error {
	spec := sandboxd.CommandSpec{Argv: c.body.list("argv", 1), Env: c.body.words("env")}
	timeout := c.body.number("timeout_seconds", false, aboveZero)
	spec.ID = c.body.required("run_id", runPattern)
	sb, err := f.opened(c)
	if err != nil {
		return err
	}
	if spec.TimeoutS, err = f.timeout(c.ctx(), timeout); err != nil {
		return err
	}
	var res result
	err = f.observe(c, "run", shellJoin(spec.Argv), func(o *outcome) error {
		var err error
		if res, err = f.execute(c, sb, spec); err != nil {
			var p *problem
			if errors.As(err, &p) && p.status == http.StatusGone {
				o.detail = "sandbox gone"
			}
			return err
		}
		*o = res.outcome()
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(res)
}

// timeout is the time that a command gets: what it asks for, at most what the policy says.
func (f *Face) timeout(ctx context.Context, asked *float64) (*sandboxd.Seconds, error) {
	policy, err := f.cfg.Lifetimes.Policy(ctx)
	if err != nil {
		return nil, err
	}
	most := policy.CommandTimeoutS
	if asked != nil && sandboxd.Seconds(*asked) < most {
		most = sandboxd.Seconds(*asked)
	}
	return &most, nil
}

// execute runs one command to its end.
func (f *Face) execute(c *call, sb sandboxd.Sandbox, spec sandboxd.CommandSpec) (result, error) {
	a, id := f.activityOf(c.session), spec.ID
	r := a.enter(id)
	if r == nil {
		code := 143
		return result{ExitCode: &code}, nil
	}
	defer a.leave(id, r)
	cmd, err := f.start(c.ctx(), sb.ID, spec)
	if err == nil {
		r.command = cmd.ID
	}
	close(r.started)
	if err != nil {
		return result{}, f.notRun(c, err)
	}
	a.mu.Lock()
	stopped := r.stopped
	a.mu.Unlock()
	if stopped {
		f.stopCommand(c.ctx(), sb.ID, cmd.ID)
	}
	res, ending, err := f.collect(c.ctx(), sb.ID, cmd.ID)
	if err != nil {
		return res, f.notRun(c, err)
	}
	if ending == nil || !f.lost(c.ctx(), a, cmd, *ending) {
		return res, nil
	}
	if a.closed() {
		return res, f.gone(c.id, nil)
	}
	return res, refuse(http.StatusGone, stoppedUnder+": "+string(ending.Cause))
}

// start starts a command, and before it the environment if that ended. The id of a run
// that is over starts another command.
func (f *Face) start(ctx context.Context, sandbox string, spec sandboxd.CommandSpec) (sandboxd.Command, error) {
	cmd, started, err := f.startAwake(ctx, sandbox, spec)
	if sandboxd.ClassOf(err) == sandboxd.ClassConflict && err != nil {
		old, gerr := f.cfg.Host.GetCommand(ctx, sandbox, spec.ID)
		if gerr != nil || old.Ending == nil {
			return cmd, err // another command is running under this id
		}
	} else if err != nil || started || cmd.Ending == nil {
		return cmd, err
	}
	spec.ID += "-" + sandboxd.NewID()
	cmd, _, err = f.startAwake(ctx, sandbox, spec)
	return cmd, err
}

// startAwake heals a sandbox whose environment ended by itself: its files are kept, and
// on this wire nobody is told.
func (f *Face) startAwake(ctx context.Context, sandbox string, spec sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
	cmd, started, err := f.cfg.Host.StartCommand(ctx, sandbox, spec)
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Class != sandboxd.ClassGone || e.Ending == nil {
		return cmd, started, err
	}
	if _, err := f.cfg.Host.Start(ctx, sandbox); err != nil {
		return cmd, started, err
	}
	return f.cfg.Host.StartCommand(ctx, sandbox, spec)
}

// notRun gives the error of a command that has no result the wire's words.
func (f *Face) notRun(c *call, err error) error {
	var p *problem
	var e *sandboxd.Error
	if errors.As(err, &p) || !errors.As(err, &e) {
		return err
	}
	switch e.Class {
	case sandboxd.ClassInvalid:
		return &problem{status: http.StatusUnprocessableEntity, cause: err,
			detail: []fault{{Type: "value_error", Loc: []any{"body", e.Field}, Msg: "Value error, " + e.Message}}}
	case sandboxd.ClassCapacity:
		return f.notWoken(c.ctx(), c.id, err)
	}
	sb, gerr := f.cfg.Host.Get(c.ctx(), c.session.SandboxID)
	switch over := e.Class == sandboxd.ClassGone || e.Class == sandboxd.ClassNotFound; {
	case over && gerr == nil && sb.State != sandboxd.StateLost:
		return &problem{status: http.StatusGone, detail: stoppedUnder, cause: err}
	case over, gerr == nil && sb.State == sandboxd.StateLost:
		return f.gone(c.id, err)
	}
	return err
}

// stoppedUnder is said of a sandbox whose environment ended before the command did. The
// files are there.
const stoppedUnder = "the sandbox stopped while the command was running"

// output gathers the beginning of what a command writes.
type output struct {
	stdout, stderr []byte
	total          int64 // of both, what was lost included
}

func (o *output) take(fr sandboxd.Frame) {
	o.total += int64(len(fr.Data))
	if fr.Gap != nil {
		o.total += fr.Gap.To - fr.Gap.From
	}
	into := &o.stdout
	if fr.Stream == sandboxd.StreamStderr {
		into = &o.stderr
	}
	*into = append(*into, fr.Data...)
}

// collect follows a command to its ending, or until it has written too much; then it is
// stopped.
func (f *Face) collect(ctx context.Context, sandbox, command string) (result, *sandboxd.Ending, error) {
	stream, err := f.cfg.Host.FollowCommand(ctx, sandbox, command, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		return result{}, nil, err
	}
	defer stream.Close()
	var out output
	for {
		fr, err := stream.Next(ctx)
		if err != nil {
			return result{}, nil, err
		}
		out.take(fr)
		if out.total > outputLimit {
			f.stopCommand(ctx, sandbox, command)
			limit := outputLimit
			return result{Stdout: beginning(out.stdout), Stderr: beginning(out.stderr), OutputLimited: true, OutputLimit: &limit}, nil, nil
		}
		if fr.Ending != nil {
			ending := *fr.Ending
			if ending.Cause == sandboxd.CauseTimeout {
				return result{Stdout: beginning(out.stdout), Stderr: beginning(out.stderr), TimedOut: true}, nil, nil
			}
			return result{Stdout: decoded(out.stdout), Stderr: decoded(out.stderr), ExitCode: ending.ExitCode}, &ending, nil
		}
	}
}

func beginning(data []byte) string { return decoded(data[:min(len(data), partialOutput)]) }

// lost tells a command that ended from one whose sandbox ended under it. An exit as if by
// a signal may be either.
func (f *Face) lost(ctx context.Context, a *activity, cmd sandboxd.Command, ending sandboxd.Ending) bool {
	switch ending.Cause {
	case sandboxd.CauseEnvironment, sandboxd.CauseHostRestart, sandboxd.CauseEngine, sandboxd.CauseRemoved:
		return true
	}
	if ending.ExitCode == nil {
		return true
	}
	if *ending.ExitCode <= 128 {
		return false
	}
	sb, err := f.cfg.Host.Get(ctx, cmd.SandboxID)
	return err != nil || a.closed() || sb.Generation != cmd.Generation || sb.State != sandboxd.StateRunning
}

// stopRun is POST .../runs/{run_id}/stop. It wakes nothing, and there is nothing that it
// fails for: who asks does not know how far the run has got.
func (f *Face) stopRun(c *call) error {
	sb, err := f.opened(c)
	if err != nil {
		return err
	}
	a := f.activityOf(c.session)
	a.mu.Lock()
	r := a.runs[c.run]
	if r != nil {
		r.stopped = true
	}
	a.mu.Unlock()
	if r == nil {
		f.stopUnheard(c, a, sb.ID)
		return c.done()
	}
	patience := time.NewTimer(f.wait.stop)
	defer patience.Stop()
	select {
	case <-r.started:
		if r.command != "" {
			f.stopCommand(c.ctx(), sb.ID, r.command)
		}
	case <-patience.C:
		// It is still being started; whoever starts it has been told.
	case <-c.ctx().Done():
	}
	return c.done()
}

// stopUnheard stops a run that another process began, or has one that is on its way not
// begin.
func (f *Face) stopUnheard(c *call, a *activity, sandbox string) {
	cmd, err := f.cfg.Host.GetCommand(c.ctx(), sandbox, c.run)
	switch {
	case err == nil && cmd.Ending == nil:
		f.stopCommand(c.ctx(), sandbox, cmd.ID)
	case sandboxd.ClassOf(err) == sandboxd.ClassNotFound && err != nil:
		a.spare(c.run)
	}
}

// stopCommand ends a command's whole tree. It is bounded, and goes on when its caller
// leaves.
func (f *Face) stopCommand(ctx context.Context, sandbox, command string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.wait.stop)
	defer cancel()
	if _, err := f.cfg.Host.StopCommand(ctx, sandbox, command, stopGrace); err != nil && sandboxd.ClassOf(err) != sandboxd.ClassGone {
		f.cfg.Log.Warn("a run was not stopped", "sandbox", sandbox, "command", command, "error", err.Error())
	}
}
