package host

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd"
	"sandboxd/internal/clock"
)

// Why a sandbox is not idle.
const (
	reasonOpened     = "opened"
	reasonCommand    = "command"
	reasonTerminal   = "terminal"
	reasonConnection = "connection"
	reasonHold       = "hold"
	reasonCPU        = "cpu"
	reasonIO         = "io"
	reasonRequest    = "request"
)

// The work that counts: what a server that nobody asks does is far below both.
const (
	workCPU = 0.02     // of one core
	workIO  = 64 << 10 // bytes a second
)

// pulse is when a sandbox worked. While a host is up that is the time since the
// host began, which nobody can set; what is stored is a moment.
type pulse struct {
	moved    atomic.Int64 // uptime when data went over a connection to a port
	lastUsed atomic.Int64 // uptime when somebody had its files, or it worked
	usedHere atomic.Int64 // the same, since this host is up; 0 for never

	mu             sync.Mutex
	face           string
	open, asleep   bool
	place          bool  // it has an environment, or counts as if it had
	worked         int64 // uptime
	reason, detail string
	ended          int64 // uptime of the end of its last environment
	holds          []sandboxd.HeldHold
	stored         int64 // the later of worked and lastUsed as they are stored
	sample         sandboxd.Sample
	sampled        int64 // uptime of sample; 0 for none
	generation     int64 // of sample
}

// load begins with what is stored. The time in which no host was up does not count:
// none saw whether the sandbox worked.
func (p *pulse) load(rec sandboxd.SandboxRecord, h *Host) {
	ref, now := h.clock(), h.uptime()
	if h.former[rec.ID] {
		ref = h.left
	}
	at := func(m sandboxd.Moment) int64 {
		if m.Wall.IsZero() {
			return now
		}
		return now - int64(clock.Elapsed(m, ref))
	}
	p.face = rec.Face
	p.worked, p.reason, p.detail, p.ended = at(rec.Life.Worked), rec.Life.Reason, rec.Life.Detail, at(rec.Life.Ended)
	p.lastUsed.Store(at(rec.Life.Used))
	p.stored = max(p.worked, p.lastUsed.Load())
	p.note(rec)
}

// leased says whether requests of an owner wind the clock up, and not work. It is
// fixed for the life of the sandbox.
func (p *pulse) leased() bool { return p.face == sandboxd.FaceSandboxes }

// note takes over what a record says now.
func (p *pulse) note(rec sandboxd.SandboxRecord) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open, p.asleep, p.holds = rec.Open, rec.Asleep, rec.Life.Holds
	p.place = rec.State.HasEnvironment() || keepsPlace(rec.Sandbox)
}

// opened winds the clock up for a record that is about to be stored as open.
func (p *pulse) opened(r *sandboxd.SandboxRecord, h *Host) {
	now := h.clock()
	r.Life.Worked, r.Life.Used, r.Life.Reason, r.Life.Detail = now, now, reasonOpened, ""
	p.mu.Lock()
	defer p.mu.Unlock()
	p.worked, p.reason, p.detail = h.uptime(), reasonOpened, ""
	p.stored = p.worked
	p.lastUsed.Store(p.worked)
	p.usedHere.Store(p.worked)
}

// use notes that somebody had the files.
func (p *pulse) use(h *Host) {
	up := h.uptime()
	p.lastUsed.Store(up)
	p.usedHere.Store(up)
}

// work notes that the sandbox works now.
func (b *box) work(reason, detail string) { b.workAt(b.h.uptime(), reason, detail) }

func (b *box) workAt(when int64, reason, detail string) {
	p := &b.pulse
	p.mu.Lock()
	if when < p.worked {
		p.mu.Unlock()
		return
	}
	p.worked, p.reason, p.detail = when, reason, detail
	stale := when-p.stored > int64(storeAfter)
	if stale {
		p.stored = when
	}
	p.mu.Unlock()
	p.lastUsed.Store(max(when, p.lastUsed.Load()))
	p.usedHere.Store(p.lastUsed.Load())
	if stale && b.h.ctx.Err() == nil {
		b.h.spawn(b.storePulse)
	}
}

// storeAfter is how far what is stored may be behind: a host that dies takes no more
// with it.
const storeAfter = time.Minute

// storePulse stores when the sandbox worked.
func (b *box) storePulse() {
	p := &b.pulse
	_, err := b.h.store.Update(b.h.ctx, b.id, func(r *sandboxd.SandboxRecord) error {
		now, up := b.h.clock(), b.h.uptime()
		at := func(when int64) sandboxd.Moment {
			ago := time.Duration(up - when)
			return sandboxd.Moment{Wall: now.Wall.Add(-ago), Boot: sandboxd.BootTime{ID: now.Boot.ID, Since: now.Boot.Since - ago}}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		used := p.lastUsed.Load()
		r.Life.Worked, r.Life.Reason, r.Life.Detail, r.Life.Used = at(p.worked), p.reason, p.detail, at(used)
		p.stored = max(p.worked, used)
		return nil
	})
	if err != nil && b.h.ctx.Err() == nil {
		b.h.log.Error("when a sandbox worked is not stored", "sandbox", b.id, "err", err)
	}
}

// live says what keeps the sandbox from being idle at this moment; "" for nothing.
func (b *box) live() (reason, detail string) {
	p := &b.pulse
	p.mu.Lock()
	holds := p.holds
	p.mu.Unlock()
	now := b.h.clock()
	for _, held := range holds {
		if left := leftOf(held, now); left > 0 {
			return reasonHold, fmt.Sprintf("hold %s for %v more", held.ID, left.Round(time.Second))
		}
	}
	env := b.environment()
	if env == nil {
		return "", ""
	}
	for _, c := range env.commandList() {
		switch {
		case c.spec.TTY != nil:
			if c.followers.Load() > 0 {
				return reasonTerminal, "somebody has terminal " + c.id
			}
		case !c.spec.Background:
			return reasonCommand, "command " + c.id + " runs"
		}
	}
	return "", ""
}

// leftOf is how long a hold has still to go.
func leftOf(held sandboxd.HeldHold, now sandboxd.Moment) time.Duration {
	return held.For - clock.Elapsed(held.From, now)
}

// look brings the pulse up to date: with what runs, what moved, and what was used
// since the last look.
func (b *box) look(ctx context.Context) {
	p := &b.pulse
	p.mu.Lock()
	byWork := !p.leased()
	p.mu.Unlock()
	if moved := p.moved.Load(); byWork && moved > 0 {
		b.workAt(moved, reasonConnection, "data went over a connection to a port")
	}
	if env := b.environment(); byWork && env != nil {
		b.measure(ctx, env)
	}
	if reason, detail := b.live(); reason != "" {
		b.work(reason, detail)
	}
}

// shortest is the time below which a difference of counters says nothing.
const shortest = 500 * time.Millisecond

// measure notes work by what the processes used since the last time.
func (b *box) measure(ctx context.Context, env *environment) {
	sampler, ok := b.driver.(sandboxd.Sampler)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	p := &b.pulse
	up := b.h.uptime()
	p.mu.Lock()
	early := p.generation == env.generation && p.sampled > 0 && time.Duration(up-p.sampled) < shortest
	p.mu.Unlock()
	if early {
		return
	}
	now, err := sampler.Sample(ctx, b.id)
	if err != nil {
		if sandboxd.ClassOf(err) != sandboxd.ClassGone && ctx.Err() == nil {
			b.h.log.Warn("sandbox not measured", "sandbox", b.id, "err", err)
		}
		return
	}
	p.mu.Lock()
	was, since, same := p.sample, time.Duration(up-p.sampled), p.generation == env.generation && p.sampled > 0
	p.sample, p.sampled, p.generation = now, up, env.generation
	p.mu.Unlock()
	if !same {
		return
	}
	cpu := (now.CPU - was.CPU).Seconds() / since.Seconds()
	moved := float64(now.IOBytes-was.IOBytes) / since.Seconds()
	switch {
	case cpu >= workCPU:
		b.work(reasonCPU, fmt.Sprintf("%.1f %% of one core over %v; %.0f %% are work", 100*cpu, since.Round(time.Second), 100*workCPU))
	case moved >= workIO:
		b.work(reasonIO, fmt.Sprintf("%.0f KiB/s read and written over %v; %d are work", moved/1024, since.Round(time.Second), workIO>>10))
	}
}

// sampleTime bounds a look at one sandbox: a container engine that hangs must not
// hold up the others.
const sampleTime = 3 * time.Second

// rest is how long nothing worked, and how long that may be; limit is negative for
// for ever.
func (b *box) rest(policy sandboxd.Policy) (idle, limit time.Duration) {
	p := &b.pulse
	p.mu.Lock()
	defer p.mu.Unlock()
	idle, limit = time.Duration(b.h.uptime()-p.worked), -1
	if bound := faceClock(policy, p.face).LimitS; bound != nil {
		limit = bound.Duration()
	}
	return idle, limit
}

// awake is what is known of an open sandbox, by its clock.
func (b *box) awake(policy sandboxd.Policy, rule sandboxd.SandboxClock) sandboxd.Awake {
	live, detail := b.live()
	if live == "" {
		p := &b.pulse
		if moved := p.moved.Load(); moved > 0 && !p.leased() {
			b.workAt(moved, reasonConnection, "data went over a connection to a port")
		}
	}
	idle, limit := b.rest(policy)
	now := b.h.clock()
	p := &b.pulse
	p.mu.Lock()
	defer p.mu.Unlock()
	a := sandboxd.Awake{Clock: rule.Name, Reason: p.reason, Detail: p.detail}
	for _, held := range p.holds {
		if leftOf(held, now) > 0 {
			a.Holding++
		}
	}
	if live != "" {
		a.Reason, a.Detail, idle = live, detail, 0
	}
	a.Since = now.Wall.Add(-idle).UTC()
	if limit < 0 {
		return a
	}
	left := limit - idle
	for _, held := range p.holds {
		if more := leftOf(held, now); more > 0 {
			left = max(left, more+limit)
		}
	}
	lapses := now.Wall.Add(left).UTC()
	a.Lapses = &lapses
	return a
}

// longestIdle are the boxes that match, the one that did not work for longest first.
func (h *Host) longestIdle(match func(*pulse) bool) []*box {
	type idler struct {
		b      *box
		worked int64
	}
	var found []idler
	for _, b := range h.allBoxes() {
		b.pulse.mu.Lock()
		if match(&b.pulse) {
			found = append(found, idler{b, max(b.pulse.worked, b.pulse.moved.Load())})
		}
		b.pulse.mu.Unlock()
	}
	slices.SortFunc(found, func(a, b idler) int {
		if a.worked != b.worked {
			return int(max(-1, min(1, a.worked-b.worked)))
		}
		return 0
	})
	list := make([]*box, len(found))
	for i, f := range found {
		list[i] = f.b
	}
	return list
}
