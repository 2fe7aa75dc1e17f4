package host

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"sandboxd"
)

// seenDocument is when a host looked at its sandboxes for the last time.
const seenDocument = "seen"

const (
	slowestTick = time.Minute
	fastestTick = time.Second
	lookers     = 8 // how many sandboxes are looked at, or closed, at once
)

// readLeft finds out until when a former host was up.
func (h *Host) readLeft(ctx context.Context) error {
	h.left = h.clock()
	text, err := h.store.Document(ctx, seenDocument)
	if err != nil {
		return err
	}
	var seen sandboxd.Moment
	if len(text) > 0 && json.Unmarshal(text, &seen) == nil {
		h.left = seen
	}
	return nil
}

// tickEvery is how often sandboxes are looked at: the limits are met to a tenth.
func (h *Host) tickEvery() time.Duration {
	if h.cfg.Tick > 0 {
		return h.cfg.Tick
	}
	p := h.policy.Now()
	every := slowestTick
	for _, s := range []*sandboxd.Seconds{p.IdleTimeoutS, p.AppIdleTimeoutS, p.OwnerLeaseS, p.WorkspaceTTLS, p.EnvironmentTTLS, p.EvictIdleAfterS} {
		if s != nil {
			every = min(every, s.Duration()/10)
		}
	}
	return max(every, fastestTick)
}

// keepTime is the host's only clock for sandboxes that nobody uses.
func (h *Host) keepTime() {
	timer := time.NewTimer(h.tickEvery())
	defer timer.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.retick:
		case <-timer.C:
			h.tick()
		}
		timer.Reset(h.tickEvery())
	}
}

// tick looks at every sandbox once and does what is due.
func (h *Host) tick() {
	if h.policy.Reload() {
		h.obey()
	}
	p := h.policy.Now()
	slots := make(chan struct{}, lookers)
	var wg sync.WaitGroup
	for _, b := range h.allBoxes() {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			b.tick(p)
		})
	}
	wg.Wait()
	h.sweepTTL(p)
	if text, err := json.Marshal(h.clock()); err == nil {
		if err := h.store.PutDocument(h.ctx, seenDocument, text); err != nil && h.ctx.Err() == nil {
			h.log.Error("the time is not stored", "err", err)
		}
	}
}

// tick looks at one sandbox and closes it if its clock ran out.
func (b *box) tick(policy sandboxd.Policy) {
	p := &b.pulse
	p.mu.Lock()
	open, stale := p.open, time.Duration(max(p.worked, p.lastUsed.Load())-p.stored) > storeAfter
	p.mu.Unlock()
	if open {
		b.look(b.h.ctx)
	}
	if stale {
		b.storePulse()
	}
	if idle, limit := b.rest(policy); open && limit >= 0 && idle >= limit {
		b.closeIdle(policy)
	}
}

// closeIdle closes a sandbox whose clock ran out, if that is still so once it is
// its turn.
func (b *box) closeIdle(policy sandboxd.Policy) {
	err := b.attempt(func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		idle, limit := b.rest(policy)
		if limit < 0 || idle < limit || !b.quiet() {
			return sandboxd.SandboxRecord{}, nil
		}
		what := "no work"
		if b.pulse.leased() {
			what = "no request of its owner"
		}
		e := sandboxd.Ending{Cause: sandboxd.CauseIdle, At: time.Now().UTC(), Limit: fmt.Sprintf("%g s", limit.Seconds()),
			Message: fmt.Sprintf("%s for %v", what, idle.Round(time.Second)), Remedy: remedyOf(sandboxd.CauseIdle)}
		b.h.log.Info("closed", "sandbox", b.id, "key", b.key, "idle", idle.Round(time.Second), "limit", limit)
		return b.endLocked(ctx, parting{ending: e, close: true})
	})
	if err != nil && b.h.ctx.Err() == nil && sandboxd.ClassOf(err) != sandboxd.ClassGone {
		b.h.log.Error("an idle sandbox is not closed", "sandbox", b.id, "err", err)
	}
}

// attempt runs fn as this box's only lifecycle operation, unless one runs now.
func (b *box) attempt(fn func(context.Context) (sandboxd.SandboxRecord, error)) error {
	select {
	case b.life <- struct{}{}:
	default:
		return nil
	}
	defer func() { <-b.life }()
	_, err := fn(b.ctx)
	return err
}

// quiet says whether nothing keeps the sandbox awake, and sees to it that no command
// begins before its environment is ended: who asks for one waits for the next.
func (b *box) quiet() bool {
	b.starting.Lock()
	defer b.starting.Unlock()
	if reason, _ := b.live(); reason != "" {
		return false
	}
	if env := b.environment(); env != nil {
		env.detach()
	}
	return true
}

// evictIdle puts the sandbox to sleep that did not work for longest, if the policy
// lets it, to make room for another. false means that there is none.
func (h *Host) evictIdle(ctx context.Context) bool {
	p := h.policy.Now()
	if p.EvictIdleAfterS == nil {
		return false
	}
	after := p.EvictIdleAfterS.Duration()
	idle := func(b *box) time.Duration {
		rests, _ := b.rest(p)
		return rests
	}
	for _, b := range h.longestIdle(func(p *pulse) bool { return p.open && p.place && !p.asleep }) {
		if ctx.Err() != nil {
			return false
		}
		if idle(b) < after {
			continue
		}
		if b.look(ctx); idle(b) < after {
			continue
		}
		slept := false
		err := b.attempt(func(ctx context.Context) (sandboxd.SandboxRecord, error) {
			rests := idle(b)
			if rests < after || !b.quiet() {
				return sandboxd.SandboxRecord{}, nil
			}
			e := sandboxd.Ending{Cause: sandboxd.CauseAsleep, At: time.Now().UTC(), Remedy: remedyOf(sandboxd.CauseAsleep),
				Message: fmt.Sprintf("it made room for another after %v without work", rests.Round(time.Second))}
			rec, err := b.endLocked(ctx, parting{ending: e, sleep: true})
			slept = err == nil && rec.Asleep
			return rec, err
		})
		if err != nil && h.ctx.Err() == nil {
			h.log.Error("an idle sandbox is not put to sleep", "sandbox", b.id, "err", err)
		}
		if slept {
			h.log.Info("put to sleep", "sandbox", b.id, "key", b.key)
			return true
		}
	}
	return false
}

// closeSleeper closes the sandbox that sleeps for longest, to make room for another
// at the open ceiling. false means that none sleeps.
func (h *Host) closeSleeper(ctx context.Context) bool {
	for _, b := range h.longestIdle(func(p *pulse) bool { return p.open && p.asleep }) {
		if ctx.Err() != nil {
			return false
		}
		closed := false
		err := b.attempt(func(ctx context.Context) (sandboxd.SandboxRecord, error) {
			if reason, _ := b.live(); reason != "" {
				return sandboxd.SandboxRecord{}, nil
			}
			rec, err := b.endLocked(ctx, parting{ending: sandboxd.Ending{Cause: sandboxd.CauseIdle, At: time.Now().UTC()}, close: true})
			closed = err == nil && !rec.Open
			return rec, err
		})
		if err != nil && h.ctx.Err() == nil {
			h.log.Error("a sleeping sandbox is not closed", "sandbox", b.id, "err", err)
		}
		if closed {
			h.log.Info("closed to make room", "sandbox", b.id, "key", b.key)
			return true
		}
	}
	return false
}
