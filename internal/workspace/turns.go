package workspace

import (
	"context"
	"runtime"
	"time"
)

// slice is how long one search works before it lets others do so.
const slice = 2 * time.Millisecond

// turns is how many searches of this process work at the same moment: half of the
// processors, so that everything else always finds one.
var turns = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// turn is one search's right to work. It is for one goroutine.
type turn struct {
	ctx   context.Context
	since time.Time
	until time.Time // when the search is to be over
}

// take waits for a turn.
func (t *turn) take() error {
	select {
	case turns <- struct{}{}:
		t.since = time.Now()
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
	if now.Sub(t.since) < slice {
		return false, nil
	}
	t.give()
	runtime.Gosched()
	if err := t.take(); err != nil {
		return false, err
	}
	return !t.until.IsZero() && now.After(t.until), nil
}
