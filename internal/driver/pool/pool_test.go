package pool

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// world makes numbers and knows which of them live.
type world struct {
	mu    sync.Mutex
	last  int
	alive map[int]string
	busy  bool
	fails bool
}

func (w *world) pool() *Pool[string, int] {
	w.alive = map[int]string{}
	return New(Options[string, int]{
		Make: func(_ context.Context, kind string) (int, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.fails || kind == bad {
				return 0, errors.New("no")
			}
			w.last++
			w.alive[w.last] = kind
			return w.last, nil
		},
		End: func(m int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.alive, m)
		},
		Busy: func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.busy
		},
	})
}

// bad is a kind of which none can be made.
const bad = "bad"

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) living() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.alive)
}

// in runs a test with a pool in a bubble of time, and looks that nothing is left.
func in(t *testing.T, test func(t *testing.T, w *world, p *Pool[string, int])) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		p := w.pool()
		test(t, w, p)
		p.Close()
		if n := w.living(); n != 0 {
			t.Errorf("%d members outlive the pool", n)
		}
		if _, ok := p.Take("a"); ok {
			t.Error("a closed pool gives")
		}
	})
}

// after lets time pass and everything settle.
func after(d time.Duration) {
	<-time.After(d) // of the bubble
	synctest.Wait()
}

// ask takes n and ends what it gets.
func ask(w *world, p *Pool[string, int], kind string, n int) (hits int) {
	for range n {
		if m, ok := p.Take(kind); ok {
			hits++
			p.opts.End(m)
		}
	}
	return hits
}

func TestFollowsWhatIsAskedFor(t *testing.T) {
	in(t, func(t *testing.T, w *world, p *Pool[string, int]) {
		p.Limit(8)
		after(time.Second)
		if w.living() != 0 {
			t.Error("something was made that nobody asked for")
		}
		if hits := ask(w, p, "a", 3); hits != 0 {
			t.Errorf("%d hits in an empty pool", hits)
		}
		if w.living() != 0 {
			t.Error("made while somebody was served")
		}
		after(time.Second)
		if n := p.Ready("a"); n != 3 {
			t.Errorf("%d ready after three were asked for", n)
		}
		if hits := ask(w, p, "a", 5); hits != 3 {
			t.Errorf("%d hits, want 3", hits)
		}
		after(time.Second)
		if n := p.Ready("a"); n != 8 {
			t.Errorf("%d ready after eight were asked for in a minute", n)
		}
		after(window)
		if n := p.Ready("a"); n != 1 {
			t.Errorf("%d ready after a quiet minute, want 1", n)
		}
		after(memory)
		if n := w.living(); n != 0 {
			t.Errorf("%d live when nobody asked for long", n)
		}
	})
}

func TestLimitIsOfAllKinds(t *testing.T) {
	in(t, func(t *testing.T, w *world, p *Pool[string, int]) {
		p.Limit(4)
		ask(w, p, "a", 10)
		after(time.Second)
		if n := p.Ready("a"); n != 4 {
			t.Errorf("%d of a, want 4", n)
		}
		ask(w, p, "b", 3)
		after(time.Second)
		if a, b := p.Ready("a"), p.Ready("b"); a != 1 || b != 3 || w.living() != 4 {
			t.Errorf("%d of a and %d of b, %d live; the latest come first", a, b, w.living())
		}
		p.Limit(2)
		after(time.Second)
		if w.living() != 2 {
			t.Errorf("%d live above a limit of 2", w.living())
		}
		p.Limit(0)
		after(time.Second)
		if w.living() != 0 || ask(w, p, "b", 1) != 0 {
			t.Error("a pool of none has some")
		}
	})
}

func TestMembersGrowOld(t *testing.T) {
	in(t, func(t *testing.T, w *world, p *Pool[string, int]) {
		p.Limit(1)
		ask(w, p, "a", 1)
		after(time.Second)
		first := w.last
		after(age)
		w.set(func() {
			if _, old := w.alive[first]; old || len(w.alive) != 1 {
				t.Errorf("after its time: %v", w.alive)
			}
		})
	})
}

func TestABusyMachineIsSpared(t *testing.T) {
	in(t, func(t *testing.T, w *world, p *Pool[string, int]) {
		w.set(func() { w.busy = true })
		p.Limit(2)
		ask(w, p, "a", 2)
		after(patience / 2)
		if w.living() != 0 {
			t.Error("made while no core was idle")
		}
		after(patience)
		if w.living() != 1 {
			t.Errorf("%d made after the patience with a busy machine, want one", w.living())
		}
	})
}

func TestAFailureIsNotRepeatedAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world, p *Pool[string, int]) {
		failures := 0
		p.opts.Failed = func(error) { w.set(func() { failures++ }) }
		w.set(func() { w.fails = true })
		p.Limit(2)
		for range 20 {
			ask(w, p, "a", 1)
			after(rest / 30)
		}
		w.set(func() {
			w.fails = false
			if failures != 1 {
				t.Errorf("%d tries in less than the rest", failures)
			}
		})
		after(2 * rest)
		if p.Ready("a") == 0 {
			t.Error("not tried again")
		}
	})
}

// A kind of which none can be made takes neither room nor time from others, however
// often it is asked for.
func TestABadKindHoldsUpNoOther(t *testing.T) {
	in(t, func(t *testing.T, w *world, p *Pool[string, int]) {
		failures := 0
		p.opts.Failed = func(error) { w.set(func() { failures++ }) }
		p.Limit(1)
		p.Take("good")
		for range 5 {
			after(time.Second)
			p.Take(bad)
		}
		after(time.Second)
		if p.Ready("good") != 1 {
			t.Error("what can be made is not ready")
		}
		w.set(func() {
			if failures != 1 {
				t.Errorf("%d tries in less than the rest", failures)
			}
		})
	})
}

func TestManyAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world, p *Pool[string, int]) {
		p.Limit(8)
		ask(w, p, "a", 20)
		after(time.Second)
		var all sync.WaitGroup
		var mu sync.Mutex
		seen := map[int]bool{}
		for range 20 {
			all.Go(func() {
				m, ok := p.Take("a")
				if !ok {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if seen[m] {
					t.Errorf("member %d was given twice", m)
				}
				seen[m] = true
			})
		}
		all.Wait()
		if len(seen) != 8 {
			t.Errorf("%d were given, want 8", len(seen))
		}
		for m := range seen {
			p.opts.End(m)
		}
	})
}

// What is given up is ended, also when nothing else of its kind is ever asked for.
func TestForgets(t *testing.T) {
	in(t, func(t *testing.T, w *world, p *Pool[string, int]) {
		p.Limit(8)
		p.Take("old")
		p.Take("other")
		after(time.Second)
		if p.Ready("old") != 1 || p.Ready("other") != 1 {
			t.Fatalf("%d and %d are ready", p.Ready("old"), p.Ready("other"))
		}
		p.Forget(func(kind string) bool { return kind == "old" })
		if _, ok := p.Take("old"); ok {
			t.Error("what was given up was given")
		}
		p.Forget(func(kind string) bool { return kind == "old" })
		after(time.Second)
		if p.Ready("old") != 0 || p.Ready("other") != 1 || w.living() != 1 {
			t.Errorf("%d and %d are ready, %d live", p.Ready("old"), p.Ready("other"), w.living())
		}
		p.Forget(func(string) bool { return true }) // and closed before it is done
	})
}
