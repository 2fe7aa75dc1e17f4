package workspace

import (
	"context"
	"runtime"
	"time"

	"sandboxd/internal/pace"
)

const (
	// slice is how long one search works before it lets another one do so.
	slice = 2 * time.Millisecond
	// breath is how long it works before it lets go of its processor for a moment.
	// Without that, what becomes ready beside it waits as long as the kernel and the
	// runtime let a busy thread run: milliseconds, which is a whole command.
	breath = 500 * time.Microsecond
)

// turns is how many searches of this process work at the same moment: half of the
// processors, so that everything else always finds one.
var turns = make(chan struct{}, max(1, runtime.NumCPU()/2))

// turn is one search's right to work. It is for one goroutine.
type turn struct {
	ctx      context.Context
	who      string    // whose files are searched, for others to be served before
	since    time.Time // when it was taken
	breathed time.Time
	until    time.Time // when the search is to be over
}

// take waits for a turn.
func (t *turn) take() error {
	select {
	case turns <- struct{}{}:
		t.since = time.Now()
		t.breathed = t.since
		return nil
	case <-t.ctx.Done():
		return t.ctx.Err()
	}
}

func (t *turn) give() { <-turns }

// step is called every now and then by who has the turn. It passes the turn on
// when it was held for long enough; over says that the search's time is up. After
// an error the turn is not held any more.
func (t *turn) step() (over bool, err error) {
	now := time.Now()
	if now.Sub(t.breathed) < breath {
		return false, nil
	}
	// Kept while resting for others: what all searches together take is what counts.
	pace.Rest(t.ctx, t.who, now.Sub(t.breathed))
	t.breathed = time.Now()
	if now.Sub(t.since) < slice {
		return false, nil
	}
	t.give()
	time.Sleep(pace.Brief) // who waits for the turn has it now
	if err := t.take(); err != nil {
		return false, err
	}
	return !t.until.IsZero() && now.After(t.until), nil
}
