package host

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"sandboxd"
)

// A change of the policy reaches what runs, but for what its request named; the rest
// waits for the next environment, and GET says so.
func TestLimitsChangeWithThePolicy(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		runs := w.opened(sandboxd.OpenRequest{Key: "runs", Limits: sandboxd.Limits{PIDs: 77}})
		no := false
		cold := w.opened(sandboxd.OpenRequest{Key: "cold", Start: &no})
		was := w.get(runs.ID).Limits
		w.policy(func(p *sandboxd.Policy) {
			p.Limits = sandboxd.Limits{MemoryBytes: 256 << 20, SwapBytes: 512 << 20, CPUs: 0.5, CPUShares: 100, PIDs: 33, TmpBytes: 1 << 20, HomeBytes: 2 << 20, OpenFiles: 100}
		})
		synctest.Wait()
		got := w.get(runs.ID)
		want := sandboxd.Limits{MemoryBytes: 256 << 20, SwapBytes: 512 << 20, CPUs: 0.5, CPUShares: 100, PIDs: 77, TmpBytes: was.TmpBytes, HomeBytes: 2 << 20, OpenFiles: was.OpenFiles}
		if got.Limits != want {
			t.Errorf("what runs has %+v, want %+v", got.Limits, want)
		}
		next := want
		next.TmpBytes, next.OpenFiles = 1<<20, 100
		if got.Next == nil || *got.Next != next {
			t.Errorf("its next environment has %+v, want %+v", got.Next, next)
		}
		if got := w.get(cold.ID); got.Limits != w.policyNow().Limits || got.Next != nil {
			t.Errorf("what does not run has %+v, %+v", got.Limits, got.Next)
		}
		// The next environment has them all.
		if _, err := w.host.Stop(t.Context(), runs.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.host.Start(t.Context(), runs.ID); err != nil {
			t.Fatal(err)
		}
		if got := w.get(runs.ID); got.Limits != next || got.Next != nil {
			t.Errorf("started again it has %+v, %+v", got.Limits, got.Next)
		}
	})
}

// What uses more memory than it is to have keeps its limits, all of them, and is told what
// waits; a restart of the server tries again.
func TestALimitThatCannotChangeWaits(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		sb := w.opened(sandboxd.OpenRequest{Key: "large"})
		was := w.get(sb.ID).Limits
		used := int64(300 << 20)
		w.world.Use(sb.ID, sandboxd.Sample{MemoryBytes: &used})
		w.policy(func(p *sandboxd.Policy) { p.Limits.MemoryBytes, p.Limits.PIDs = 256<<20, 99 })
		synctest.Wait()
		got := w.get(sb.ID)
		if got.Limits != was || got.Next == nil || got.Next.MemoryBytes != 256<<20 || got.Next.PIDs != 99 {
			t.Errorf("%+v, next %+v", got.Limits, got.Next)
		}
		used = 100 << 20
		w.world.Use(sb.ID, sandboxd.Sample{MemoryBytes: &used})
		w.down()
		w.up()
		synctest.Wait()
		if got := w.get(sb.ID); got.Limits.MemoryBytes != 256<<20 || got.Limits.PIDs != 99 || got.Next != nil {
			t.Errorf("after a restart: %+v, next %+v", got.Limits, got.Next)
		}
	})
}

// A change that is not of limits keeps no running sandbox busy, so that at once one that
// is idle can make room.
func TestLimitsAreLookedAtOnlyWhenTheyChange(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		w.opened(sandboxd.OpenRequest{Key: "runs"})
		w.down()
		looks := &countedGets{HostStore: w.store}
		w.store = looks
		w.up()
		synctest.Wait()
		before := looks.n.Load()
		w.policy(func(p *sandboxd.Policy) { p.EvictIdleAfterS = new(sandboxd.Seconds) })
		synctest.Wait()
		if got := looks.n.Load() - before; got != 0 {
			t.Errorf("%d looks at a record", got)
		}
		w.policy(func(p *sandboxd.Policy) { p.Limits.PIDs = 33 })
		synctest.Wait()
		if got := looks.n.Load() - before; got != 1 {
			t.Errorf("%d looks at a record after its limits changed, want 1", got)
		}
	})
}

type countedGets struct {
	sandboxd.HostStore
	n atomic.Int64
}

func (s *countedGets) Get(ctx context.Context, id string) (sandboxd.SandboxRecord, error) {
	s.n.Add(1)
	return s.HostStore.Get(ctx, id)
}

func (w *timed) policyNow() sandboxd.Policy {
	w.t.Helper()
	p, err := w.host.Policy(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// The directories in memory leave room for the commands that empty them.
func TestDirectoriesInMemoryLeaveRoom(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		req := sandboxd.OpenRequest{Key: "small", Limits: sandboxd.Limits{MemoryBytes: 64 << 20, TmpBytes: 256 << 20}}
		sb := w.opened(req)
		if sb.Limits.TmpBytes != 24<<20 {
			t.Errorf("/tmp has %d bytes of %d", sb.Limits.TmpBytes, sb.Limits.MemoryBytes)
		}
		if again, created, err := w.host.Open(t.Context(), req); err != nil || created || again.ID != sb.ID {
			t.Errorf("the same request: created %v, %v", created, err)
		}
		least := w.opened(sandboxd.OpenRequest{Limits: sandboxd.Limits{MemoryBytes: 16 << 20}})
		if least.Limits.TmpBytes != 1<<20 {
			t.Errorf("/tmp has %d bytes of %d", least.Limits.TmpBytes, least.Limits.MemoryBytes)
		}
		memory := int64(32 << 20)
		w.policy(func(p *sandboxd.Policy) { p.Limits.MemoryBytes = memory })
		synctest.Wait()
		if p := w.opened(sandboxd.OpenRequest{}); p.Limits.TmpBytes != 8<<20 {
			t.Errorf("/tmp has %d bytes of %d", p.Limits.TmpBytes, p.Limits.MemoryBytes)
		}
	})
}
