package host

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"sandboxd"
)

// What HOME may hold is enforced by looking: nothing in the kernel refuses a write. It is
// looked at more often the nearer to its limit it is while commands are started, and never
// for more than a hundredth of the time.

// homeMeasured is how a sandbox says so.
const homeMeasured = "measured"

const (
	// homeRate is how fast a command is taken to fill HOME, in bytes a second.
	homeRate = 1 << 30
	// homeSoonest is the shortest time between two looks and homeLatest the longest, while
	// commands are started; homeIdle is that while none are.
	homeSoonest = time.Second
	homeLatest  = 30 * time.Second
	homeIdle    = 5 * time.Minute
	// homeCost is how many times as long as a look the time to the next one is.
	homeCost = 100
	// homeGrowth is what a home that is over its limit may grow by while somebody removes
	// files of it.
	homeGrowth = 1 << 20
)

// homeLook is what is known of a sandbox's home.
type homeLook struct {
	at    int64 // Host.uptime; 0: nobody looked yet
	took  time.Duration
	holds int64 // bytes; at least a block for each entry
	more  bool  // and more than anybody counts
	floor int64 // the least it held since it was found to hold too much; else 0
}

// wait is how long after the last look comes the next.
func (l homeLook) wait(limit int64, busy bool) time.Duration {
	wait := homeIdle
	if busy {
		wait = max(homeSoonest, min(homeLatest, time.Duration(float64(max(limit-l.holds, 0))/homeRate*float64(time.Second))))
	}
	return max(wait, homeCost*l.took)
}

// settle takes what was found over, and says whether it is too much: more than the limit,
// and more than it was when that was found before.
func (l *homeLook) settle(limit int64) (tooMuch bool) {
	switch {
	case l.holds <= limit && !l.more:
		l.floor = 0
	case l.floor == 0 || l.more || l.holds > l.floor+homeGrowth:
		l.floor = l.holds
		return true
	default:
		l.floor = min(l.floor, l.holds)
	}
	return false
}

// mayWrite notes that a command was started, at the cost of nothing.
func (e *environment) mayWrite() {
	select {
	case e.busy <- struct{}{}:
	default:
	}
}

func (e *environment) homeLimit() int64 {
	return cmp.Or(e.limits.Load().HomeBytes, sandboxd.DefaultLimits().HomeBytes) // of one that an older host made
}

// keepHome looks at HOME until the environment ends.
func (e *environment) keepHome() {
	b := e.b
	if b.homeOf().at == 0 { // what it holds already nobody is ended for
		if e.measureHome() == nil {
			b.mu.Lock()
			b.home.settle(e.homeLimit())
			b.mu.Unlock()
		}
	}
	busy := len(e.commandList()) > 0
	for {
		// Not at once: most commands are over by then.
		last := b.homeOf()
		since := time.Duration(b.h.uptime() - last.at)
		timer := time.NewTimer(max(homeSoonest, last.wait(e.homeLimit(), busy)-since))
		waking := e.busy
		if busy {
			waking = nil
		}
		select {
		case <-e.ctx.Done():
			timer.Stop()
			return
		case <-waking:
			timer.Stop()
			busy = true
			continue
		case <-timer.C:
		}
		select {
		case <-e.busy: // those that are seen now
		default:
		}
		if err := e.lookAtHome(busy); err != nil && e.ctx.Err() == nil {
			b.h.log.Warn("a home is not measured", "sandbox", b.id, "err", err)
		}
		busy = len(e.commandList()) > 0
	}
}

func (b *box) homeOf() homeLook {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.home
}

// measureHome looks once, when nobody else does. What it failed to see is as it was.
func (e *environment) measureHome() error {
	b, limit := e.b, e.homeLimit()
	select {
	case b.h.looking <- struct{}{}:
		defer func() { <-b.h.looking }()
	case <-e.ctx.Done():
		return e.ctx.Err()
	}
	began := b.h.uptime()
	// As many again as there may be: who removes some must be seen to.
	use, err := b.h.root.HomeUse(e.ctx, b.key, 2*limit/blockSize)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.home.at = b.h.uptime()
	b.home.took = time.Duration(b.home.at - began)
	if err == nil {
		b.home.holds, b.home.more = max(use.Bytes, use.Entries*blockSize), use.Partial
	}
	return err
}

// lookAtHome looks, and ends what runs when there is too much. busy says that commands
// ran since the last look.
func (e *environment) lookAtHome(busy bool) error {
	if err := e.measureHome(); err != nil {
		return err
	}
	b := e.b
	b.mu.Lock()
	tooMuch, holds := b.home.settle(e.homeLimit()), b.home.holds
	b.mu.Unlock()
	if !tooMuch {
		return nil
	}
	running := e.commandList()
	b.h.log.Info("HOME holds too much", "sandbox", b.id, "key", b.key, "bytes", holds, "limit", e.homeLimit(), "commands", len(running))
	if len(running) == 0 {
		if !busy {
			e.endBehind(holds)
		}
		return nil
	}
	e.endForHome(running, holds)
	// With what was written until the last of them had ended.
	err := e.measureHome()
	b.mu.Lock()
	b.home.settle(e.homeLimit())
	b.mu.Unlock()
	return err
}

// endForHome ends commands and waits for that.
func (e *environment) endForHome(running []*command, holds int64) {
	var all sync.WaitGroup
	for _, c := range running {
		c.mu.Lock()
		c.inHome = holds
		c.mu.Unlock()
		all.Go(func() { c.cut(sandboxd.CauseDisk, killGrace) })
	}
	all.Wait()
}

// endBehind ends the environment: what commands left behind in it fills the home.
func (e *environment) endBehind(holds int64) {
	err := e.b.attempt(func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		if e.b.environment() != e {
			return sandboxd.SandboxRecord{}, nil
		}
		ending := sandboxd.Ending{At: time.Now().UTC()}
		e.tellHome(&ending, holds)
		ending.Message += "; processes that commands had left behind went on writing"
		return e.b.endLocked(ctx, parting{ending: ending})
	})
	if err != nil && e.b.h.ctx.Err() == nil {
		e.b.h.log.Error("a sandbox whose home is too large is not ended", "sandbox", e.b.id, "err", err)
	}
}

// explainHome says why a command ended that was ended for what HOME held, also one that
// an earlier host ended.
func (c *command) explainHome(e *sandboxd.Ending) {
	c.mu.Lock()
	holds := c.inHome
	c.mu.Unlock()
	c.env.tellHome(e, holds)
}

func (e *environment) tellHome(to *sandboxd.Ending, holds int64) {
	limit := e.homeLimit()
	to.Cause, to.Limit = sandboxd.CauseDisk, fmt.Sprintf("%d bytes of HOME", limit)
	to.Message = "HOME held more than it may"
	if holds > limit {
		to.PeakBytes, to.PeakSource = holds, "home"
		to.Message = fmt.Sprintf("HOME held %d bytes, of files and of a block for each", holds)
	}
	to.Remedy = "remove files below " + sandboxd.HomeDir + ", or open the sandbox with more limits.home_bytes"
}
