// Package pool keeps environments ready before anybody asks for them: of the kinds
// that were asked for of late, as many as were asked for in the busiest minute that
// just passed, and one for a while after that. It decides when one is made, when it
// is too old and when it is one too many. What an environment is, and how it is
// handed over, the driver that uses it knows.
//
// It never makes anybody wait: a kind that is not ready is the caller's to make, at
// once, and the pool makes its own when nobody is being served and a core is idle.
package pool

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// window is the time in which what was asked for is counted.
	window = time.Minute
	// memory is how long one of a kind is kept after the last was asked for.
	memory = 10 * time.Minute
	// age is when a member is replaced: it shows the machine as it was then.
	age = 5 * time.Minute
	// quiet is how long nobody must have asked before one is made: who just got one is
	// about to use it.
	quiet = 30 * time.Millisecond
	// look is how often a busy machine is looked at again.
	look = 10 * time.Millisecond
	// patience is how long all of this holds up a member that is missing.
	patience = 200 * time.Millisecond
	// rest follows a failure to make one of a kind.
	rest = 30 * time.Second

	// asks bounds what is remembered of one kind, and so how many are kept of it.
	asks = 64
)

// Options say what a pool is of. Make and End are never called under a lock, Make
// only once at a time.
type Options[K comparable, M any] struct {
	Make func(ctx context.Context, kind K) (M, error)
	// End ends a member that no one will use.
	End func(M)
	// Busy says that no core is idle; nil means never.
	Busy func() bool
	// Failed hears why one could not be made; nil means nobody does.
	Failed func(error)
}

// Pool keeps members of type M by their kinds. Make it with New. Its methods are
// safe for concurrent use.
type Pool[K comparable, M any] struct {
	opts   Options[K, M]
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	making sync.Mutex // held while it is decided what to make, and that is made

	mu      sync.Mutex
	timer   *time.Timer
	limit   int
	last    time.Time // when somebody asked
	missing time.Time // since when one is missing
	kinds   map[K]*stock[M]
	closed  bool
}

// stock is what there is of a kind, and who asked for it.
type stock[M any] struct {
	asked  []time.Time // oldest first
	ready  []member[M] // oldest first
	resume time.Time   // after a failure, when the next is tried
}

type member[M any] struct {
	m    M
	made time.Time
}

// New makes an empty pool that keeps nothing until Limit says so.
func New[K comparable, M any](opts Options[K, M]) *Pool[K, M] {
	if opts.Busy == nil {
		opts.Busy = func() bool { return false }
	}
	if opts.Failed == nil {
		opts.Failed = func(error) {}
	}
	p := &Pool[K, M]{opts: opts, done: make(chan struct{}), kinds: map[K]*stock[M]{}, timer: time.NewTimer(time.Hour)}
	p.timer.Stop()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	go p.run()
	return p
}

// Take answers a ready member, which is the caller's from then on, or false. Either
// way the pool has learnt what is asked for.
func (p *Pool[K, M]) Take(kind K) (m M, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return m, false
	}
	s := p.kinds[kind]
	if s == nil {
		s = &stock[M]{}
		p.kinds[kind] = s
	}
	p.last = time.Now()
	if len(s.asked) == asks {
		s.asked = append(s.asked[:0], s.asked[1:]...)
	}
	s.asked = append(s.asked, p.last)
	if p.missing.IsZero() {
		p.timer.Reset(quiet)
	}
	if len(s.ready) == 0 {
		return m, false
	}
	m = s.ready[0].m
	s.ready = slices.Delete(s.ready, 0, 1)
	return m, true
}

// Limit says how many members there may be, of all kinds together. What is above it
// is ended a moment later.
func (p *Pool[K, M]) Limit(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || n == p.limit {
		return
	}
	p.limit = n
	p.timer.Reset(quiet)
}

// Forget ends the members of the kinds that match, what is just being made of them too.
func (p *Pool[K, M]) Forget(match func(K) bool) {
	p.mu.Lock()
	var all []M
	for kind, s := range p.kinds {
		if match(kind) {
			for _, m := range s.ready {
				all = append(all, m.m)
			}
			delete(p.kinds, kind)
		}
	}
	p.mu.Unlock()
	for _, m := range all {
		p.opts.End(m)
	}
	p.making.Lock() // what was being made has ended, too
	p.making.Unlock()
}

// Ready counts the members of a kind.
func (p *Pool[K, M]) Ready(kind K) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.kinds[kind]; s != nil {
		return len(s.ready)
	}
	return 0
}

// Close ends every member and waits for that.
func (p *Pool[K, M]) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	<-p.done
	p.mu.Lock()
	var all []M
	for _, s := range p.kinds {
		for _, m := range s.ready {
			all = append(all, m.m)
		}
	}
	clear(p.kinds)
	p.mu.Unlock()
	var ending sync.WaitGroup
	for _, m := range all {
		ending.Go(func() { p.opts.End(m) })
	}
	ending.Wait()
}

// run sleeps until the timer says that something may have to be done.
func (p *Pool[K, M]) run() {
	defer close(p.done)
	defer p.timer.Stop()
	for {
		select {
		case <-p.timer.C:
			for _, m := range p.surplus() {
				p.opts.End(m)
			}
			p.refill()
		case <-p.ctx.Done():
			return
		}
	}
}

// surplus takes out what is too old or one too many, and forgets kinds.
func (p *Pool[K, M]) surplus() (out []M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for kind, target := range p.targets(now) {
		s := p.kinds[kind]
		for len(s.ready) > 0 && (len(s.ready) > target || now.Sub(s.ready[0].made) >= age) {
			out = append(out, s.ready[0].m)
			s.ready = slices.Delete(s.ready, 0, 1)
		}
		if now.Sub(s.asked[len(s.asked)-1]) >= memory {
			delete(p.kinds, kind)
		}
	}
	return out
}

// targets says how many there should be of each kind: those asked for last come
// first when there is not room for all. Under mu.
func (p *Pool[K, M]) targets(now time.Time) map[K]int {
	order := make([]K, 0, len(p.kinds))
	for kind := range p.kinds {
		order = append(order, kind)
	}
	slices.SortFunc(order, func(a, b K) int {
		x, y := p.kinds[a].asked, p.kinds[b].asked
		return cmp.Compare(y[len(y)-1].UnixNano(), x[len(x)-1].UnixNano())
	})
	room := p.limit
	targets := map[K]int{}
	for _, kind := range order {
		asked := p.kinds[kind].asked
		n := 1
		if now.Sub(asked[len(asked)-1]) >= memory {
			n = 0
		}
		recent := 0
		for _, at := range asked {
			if now.Sub(at) < window {
				recent++
			}
		}
		n = max(n, recent)
		if s := p.kinds[kind]; now.Before(s.resume) {
			n = min(n, len(s.ready)) // what cannot be made takes no room from what can
		}
		targets[kind] = min(n, room)
		room -= targets[kind]
	}
	return targets
}

// refill makes at most one member and sets the timer for what comes next.
func (p *Pool[K, M]) refill() {
	p.making.Lock()
	defer p.making.Unlock()
	kind, lacking, wait := p.lacking()
	if !lacking {
		return
	}
	if wait > 0 || p.opts.Busy() && !p.impatient() {
		p.again(max(wait, look))
		return
	}
	m, err := p.opts.Make(p.ctx, kind)
	if err != nil {
		if p.ctx.Err() == nil {
			p.opts.Failed(err)
		}
		p.mu.Lock()
		if s := p.kinds[kind]; s != nil {
			s.resume = time.Now().Add(rest)
		}
		p.missing = time.Time{}
		p.mu.Unlock()
		p.again(look)
		return
	}
	p.mu.Lock()
	p.missing = time.Time{}
	s, now := p.kinds[kind], time.Now()
	if s != nil && !p.closed {
		s.ready = append(s.ready, member[M]{m: m, made: now})
	}
	unwanted := s == nil || p.closed
	if !p.closed {
		p.timer.Reset(time.Nanosecond) // more may be missing
	}
	p.mu.Unlock()
	if unwanted {
		p.opts.End(m)
	}
}

// lacking answers a kind of which one is missing, and how long it has to wait. With nothing missing it sets the timer to when
// something will have become too old.
func (p *Pool[K, M]) lacking() (kind K, lacking bool, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for k, target := range p.targets(now) {
		if len(p.kinds[k].ready) < target {
			if p.missing.IsZero() {
				p.missing = now
			}
			at := p.last.Add(quiet)
			if latest := p.missing.Add(patience); latest.Before(at) {
				at = latest
			}
			return k, true, at.Sub(now)
		}
	}
	p.missing = time.Time{}
	var next time.Time
	for _, s := range p.kinds {
		times := []time.Time{s.asked[len(s.asked)-1].Add(memory)}
		if now.Before(s.resume) {
			times = append(times, s.resume)
		}
		if len(s.ready) > 0 {
			times = append(times, s.ready[0].made.Add(age))
		}
		for _, at := range s.asked {
			if now.Sub(at) < window {
				times = append(times, at.Add(window))
			}
		}
		for _, at := range times {
			if next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	if !next.IsZero() && !p.closed {
		p.timer.Reset(max(next.Sub(now), look))
	}
	return kind, false, 0
}

// impatient says that a member has been held up for long enough.
func (p *Pool[K, M]) impatient() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.missing) >= patience
}

// again looks anew after a while. A closed pool looks no more.
func (p *Pool[K, M]) again(after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.timer.Reset(after)
	}
}
