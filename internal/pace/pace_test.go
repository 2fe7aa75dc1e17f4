package pace

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// rested is how long work for a sandbox rests for a millisecond, in a bubble of time.
func rested(who string) time.Duration {
	began := time.Now()
	Rest(context.Background(), who, time.Millisecond)
	return time.Since(began)
}

func pass(d time.Duration) { <-time.After(d) }

func TestWorkGivesWayToRequestsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass(time.Hour) // whatever was served before
		if got := rested("a"); got != Brief {
			t.Errorf("while nobody is served work rests %v", got)
		}
		Serve("a")
		Serve("a")
		if got := rested("a"); got != Brief {
			t.Errorf("work gives way to requests for its own sandbox: %v", got)
		}
		if got := rested("b"); got < 2*time.Millisecond {
			t.Errorf("of a millisecond's work for b, with a served, it rests %v", got)
		}
		Serve("b")
		for _, who := range []string{"a", "b", "c"} {
			if !Served(who) {
				t.Errorf("with a and b served, %s gives way to nobody", who)
			}
		}
		// Its own requests do not hide those of others.
		for range 10 {
			Serve("b")
		}
		if !Served("b") {
			t.Error("many requests for b hide the one for a")
		}
		Serve("")
		if !Served("a") || !Served("b") {
			t.Error("a request for no sandbox in particular is none")
		}
		pass(moment)
		if Served("a") || Served("c") || rested("a") != Brief {
			t.Error("work still gives way long after the last request")
		}
	})
}

func TestARestIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		Serve("a")
		began := time.Now()
		Rest(context.Background(), "b", time.Minute)
		if got := time.Since(began); got != longest {
			t.Errorf("after a minute's work it rests %v, want %v", got, longest)
		}
		Serve("a")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		began = time.Now()
		Rest(ctx, "b", time.Minute)
		if got := time.Since(began); got != 0 {
			t.Errorf("who is not waited for any more rests %v", got)
		}
	})
}
