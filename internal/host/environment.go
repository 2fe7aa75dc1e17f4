package host

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sandboxd"
	"sandboxd/internal/egress"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
)

// environment is one generation of a box: the link to its init and the commands
// that run there. It hears the init's output and endings.
type environment struct {
	b          *box
	generation int64
	nonce      string
	vars       atomic.Pointer[map[string]string]
	gate       *egress.Gate // nil without a network
	limits     atomic.Pointer[sandboxd.Limits]

	ending atomic.Bool   // somebody here ends it
	busy   chan struct{} // has a token when a command was started since HOME was looked at

	ctx    context.Context // ends with detach
	detach context.CancelFunc
	gone   chan struct{} // closed when detached and no output or ending is being taken

	mu       sync.Mutex
	link     *guest.Link
	up       chan struct{} // closed while link works; replaced when it breaks
	commands map[string]*command
}

var _ guest.Handler = (*environment)(nil)

func newEnvironment(b *box, rec sandboxd.SandboxRecord) (*environment, error) {
	gate, err := b.openGate(rec.Network)
	if err != nil {
		return nil, err
	}
	env := &environment{
		b: b, generation: rec.Generation, nonce: rec.Nonce, gate: gate,
		up: make(chan struct{}), gone: make(chan struct{}), busy: make(chan struct{}, 1), commands: map[string]*command{},
	}
	vars := b.h.varsOf(rec)
	env.vars.Store(&vars)
	env.limits.Store(&rec.Limits)
	env.ctx, env.detach = context.WithCancel(b.h.ctx)
	return env, nil
}

// attachTimeout bounds one attempt to reach an init. A healthy one answers in a
// millisecond; ten seconds are for a machine that swaps.
const attachTimeout = 10 * time.Second

// attach connects to the init and settles what it says of its commands with what
// is known here.
func (e *environment) attach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	conn, err := e.b.driver.Connect(ctx, e.b.id)
	if err != nil {
		return err
	}
	opts := guest.Options{Nonce: e.nonce, Handler: e, Have: e.have}
	e.offerNetwork(&opts)
	link, err := guest.Attach(ctx, conn, opts)
	if err != nil {
		conn.Close()
		return err
	}
	for _, state := range link.Commands() {
		if c := e.command(state.ID); c != nil && state.Ended {
			c.over.Store(true) // before anybody can end it by this link
		}
	}
	e.mu.Lock()
	e.link = link
	up := e.up
	e.mu.Unlock()
	close(up)
	inside := map[string]bool{}
	for _, state := range link.Commands() {
		inside[state.ID] = true
		if e.command(state.ID) == nil {
			// Its ending is stored, perhaps just now, or its record never was: nobody
			// waits for it.
			if !state.Ended {
				if err := link.End(ctx, state.ID, syscall.SIGKILL); err != nil {
					e.b.h.log.Warn("unknown command not ended", "sandbox", e.b.id, "command", state.ID, "err", err)
				}
			}
			link.Forget(state.ID)
		}
	}
	for _, c := range e.commandList() {
		// Known here and not inside: the former host died between the record and
		// the start. A command being started by this host is not settled by this.
		if !inside[c.id] && c.adopted {
			c.finish(sandboxd.Ending{Cause: sandboxd.CauseStartFailed, Message: "the host ended before it started the command; it never ran", At: time.Now().UTC()})
		}
	}
	return nil
}

const (
	// The pauses between attempts to attach. A link that breaks before it is steady
	// counts as an attempt: an init that only makes links and breaks them, or is broken
	// itself, must not keep the host busy.
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
	steady     = 5 * time.Second
)

// keepAttached re-attaches a broken link until the environment is let go of. That
// the environment is gone is the driver's to say.
func (e *environment) keepAttached() {
	defer close(e.gone)
	pause, since := firstPause, time.Now()
	for {
		e.mu.Lock()
		link := e.link
		e.mu.Unlock()
		if link != nil {
			select {
			case <-e.ctx.Done():
				link.Close()
				<-link.Done()
				return
			case <-link.Done():
				e.b.h.log.Warn("link to init broke", "sandbox", e.b.id, "err", link.Err())
			}
			e.mu.Lock()
			e.link = nil
			e.up = make(chan struct{})
			e.mu.Unlock()
			if time.Since(since) >= steady {
				pause = firstPause
			} else if !e.rest(&pause) {
				return
			}
		}
		if err := e.attach(e.ctx); err != nil {
			if st, serr := e.b.driver.Inspect(e.ctx, e.b.id); serr == nil && !st.Running {
				ending := sandboxd.Ending{Cause: sandboxd.CauseUnknown, At: time.Now().UTC()}
				if st.Ending != nil {
					ending = *st.Ending
				}
				e.b.h.spawn(func() { e.b.h.environmentEnded(e.b.id, e.generation, ending) })
				<-e.ctx.Done()
				return
			}
			if !e.rest(&pause) {
				return
			}
		}
		since = time.Now()
	}
}

// rest waits for a pause, makes the next one longer, and says whether the environment
// is still wanted.
func (e *environment) rest(pause *time.Duration) bool {
	timer := time.NewTimer(*pause)
	defer timer.Stop()
	*pause = min(2**pause, lastPause)
	select {
	case <-e.ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// connected answers the link, waiting for one that is being re-attached.
func (e *environment) connected(ctx context.Context) (*guest.Link, error) {
	for {
		e.mu.Lock()
		link, up := e.link, e.up
		e.mu.Unlock()
		if link != nil {
			return link, nil
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the sandbox does not answer")
		case <-e.ctx.Done():
			return nil, errEnded
		}
	}
}

// errEnded is of what was begun in an environment that ended meanwhile.
var errEnded error = sandboxd.Errorf(sandboxd.ClassGone, "the environment has ended")

// over says whether the environment has ended, perhaps before anybody here was told.
func (e *environment) over(ctx context.Context) bool {
	if e.ctx.Err() != nil || e.ending.Load() {
		return true
	}
	state, err := e.b.driver.Inspect(ctx, e.b.id)
	return err == nil && !state.Running
}

func (e *environment) command(id string) *command {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.commands[id]
}

func (e *environment) commandList() []*command {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]*command, 0, len(e.commands))
	for _, c := range e.commands {
		list = append(list, c)
	}
	return list
}

func (e *environment) add(c *command) {
	e.mu.Lock()
	e.commands[c.id] = c
	e.mu.Unlock()
}

func (e *environment) remove(id string) {
	e.mu.Lock()
	delete(e.commands, id)
	e.mu.Unlock()
}

// have tells the init how much output of a command is on disk.
func (e *environment) have(id string) (int64, bool) {
	c := e.command(id)
	if c == nil {
		return 0, false
	}
	return c.journal.Next(), true
}

// Output implements guest.Handler.
func (e *environment) Output(id string, stream sandboxd.Stream, offset int64, data []byte) error {
	c := e.command(id)
	if c == nil {
		return nil // ended here already; what it still says is not kept
	}
	return c.output(stream, offset, data)
}

// Ended implements guest.Handler.
func (e *environment) Ended(id string, offset int64, exit wire.Exit) {
	if c := e.command(id); c != nil {
		c.ended(exit)
	}
	e.forget(id)
}

// forget has the init drop what it holds of an ended command. Without a link the
// next attach does it.
func (e *environment) forget(id string) {
	e.mu.Lock()
	link := e.link
	e.mu.Unlock()
	if link != nil {
		link.Forget(id)
	}
}

// imageVars are what the image sets, but for who runs and where.
func (e *environment) imageVars() map[string]string {
	images, ok := e.b.driver.(sandboxd.Images)
	if !ok {
		return nil
	}
	vars := map[string]string{}
	for _, kv := range images.Environ(e.b.id) {
		switch k, v, _ := strings.Cut(kv, "="); k {
		case "HOME", "USER", "LOGNAME", "SHELL":
		case "PATH":
			vars[k] = sandboxd.HomeDir + "/.local/bin:" + v
		default:
			vars[k] = v
		}
	}
	return vars
}

// environ is the whole environment of a command: nothing is added inside.
func (e *environment) environ(spec sandboxd.CommandSpec) []string {
	all := map[string]string{
		"PATH": sandboxd.HomeDir + "/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": sandboxd.HomeDir, "USER": "sandbox", "LOGNAME": "sandbox", "SHELL": "/bin/sh", "LANG": "C.UTF-8",
	}
	if spec.TTY != nil {
		all["TERM"] = "xterm-256color"
	}
	for k, v := range e.imageVars() {
		all[k] = v
	}
	for _, m := range []map[string]string{e.networkVars(), *e.vars.Load(), spec.Env} {
		for k, v := range m {
			all[k] = v
		}
	}
	list := make([]string, 0, len(all))
	for k, v := range all {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}
