package host

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd/internal/pace"
)

// What a sandbox writes is taken at full speed while nobody else is served, and else
// no faster than the rests between its pieces let it.
func TestAFloodGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Hour) // whoever was served before
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
