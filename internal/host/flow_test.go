package host

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd/internal/pace"
)

// What a sandbox writes is taken at full speed while nobody else is served, and else
// no faster than the rests between its pieces let it.
func TestAFloodGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace.Serve("before") // what is noted of a real clock is forgotten
		pace.Serve("long before")
		<-time.After(time.Hour)
		h := &Host{ctx: context.Background()}
		loud, quiet := &box{h: h, key: "loud"}, &box{h: h, key: "quiet"}
		write := func(b *box, n int) time.Duration {
			began := time.Now()
			for range n {
				b.wrote(flowPiece / 4)
			}
			return time.Since(began)
		}
		pace.Serve("loud")
		if took := write(loud, 40); took != 0 {
			t.Errorf("a sandbox waits for itself: %v", took)
		}
		pace.Serve("quiet")
		if took := write(loud, 40); took < 10*flowTime {
			t.Errorf("ten pieces beside somebody who is served took %v", took)
		}
		pace.Serve("loud")
		pace.Serve("quiet")
		if took := write(quiet, 3); took != 0 {
			t.Errorf("less than a piece waits: %v", took)
		}
	})
}

// The commands of one sandbox, however many write, have one turn to rest in beside
// those of another one.
func TestFloodsTakeTurnsBySandbox(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h := &Host{ctx: ctx}
	loud, quiet := &box{h: h, key: "loud"}, &box{h: h, key: "quiet"}
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	serve := func() {
		pace.Serve("third")
		pace.Serve("fourth")
	}
	serve()
	work.Go(func() {
		for ctx.Err() == nil {
			serve()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	var rested atomic.Int64
	for range 200 {
		work.Go(func() {
			for ctx.Err() == nil {
				loud.wrote(flowPiece)
				rested.Add(1)
			}
		})
	}
	for rested.Load() < 20 && ctx.Err() == nil {
		<-tick.C
	}
	before := rested.Load()
	quiet.wrote(flowPiece)
	if n := rested.Load() - before; n > 50 {
		t.Errorf("a sandbox waits for %d rests of another one's commands", n)
	}
}
