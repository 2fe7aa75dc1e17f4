package host

import (
	"context"
	"fmt"
	"time"

	"sandboxd"
	"sandboxd/internal/pressure"
)

const (
	pressureEvery = 5 * time.Second
	// pressureRest is how long the end of one sandbox may take to show before the
	// next one has to go: the kernel's numbers are of ten seconds.
	pressureRest = 15 * time.Second
)

// keepMemory ends sandboxes while the machine runs short of memory, so that it is
// not the kernel who chooses what dies.
func (h *Host) keepMemory() {
	timer := time.NewTimer(pressureEvery)
	defer timer.Stop()
	failed := false
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-timer.C:
		}
		next := pressureEvery
		r, err := h.cfg.Pressure()
		if err != nil && !failed {
			h.log.Error("the machine's memory cannot be read", "err", err)
		}
		failed = err != nil
		if err == nil && r.Short() && h.evictForMemory(r) {
			next = pressureRest
		}
		timer.Reset(next)
	}
}

// evictForMemory ends the sandbox that did not work for longest, of those that
// nothing keeps awake first.
func (h *Host) evictForMemory(r pressure.Reading) bool {
	list := h.longestIdle(func(p *pulse) bool { return p.place })
	for _, live := range []bool{false, true} {
		for _, b := range list {
			if reason, _ := b.live(); (reason != "") == live && h.evict(b, r) {
				return true
			}
		}
	}
	h.log.Warn("the machine runs short of memory, and no sandbox can go", "reading", r.String())
	return false
}

func (h *Host) evict(b *box, r pressure.Reading) bool {
	evicted := false
	err := b.attempt(func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		if !b.running() {
			return sandboxd.SandboxRecord{}, nil
		}
		idle, _ := b.rest(h.policy.Now())
		e := sandboxd.Ending{Cause: sandboxd.CauseEvicted, At: time.Now().UTC(), Remedy: remedyOf(sandboxd.CauseEvicted),
			Message: fmt.Sprintf("%s; it did not work for %v", r, idle.Round(time.Second))}
		if s, ok := b.driver.(sandboxd.Sampler); ok {
			ctx, cancel := context.WithTimeout(ctx, sampleTime)
			defer cancel()
			if use, err := s.Sample(ctx, b.id); err == nil && use.MemoryBytes != nil {
				e.PeakBytes, e.PeakSource = *use.MemoryBytes, "at its end"
				e.Message += fmt.Sprintf(" and used %d MiB", *use.MemoryBytes>>20)
			}
		}
		rec, err := b.endLocked(ctx, parting{ending: e})
		evicted = err == nil
		return rec, err
	})
	if err != nil && h.ctx.Err() == nil {
		h.log.Error("a sandbox is not evicted", "sandbox", b.id, "err", err)
	}
	if evicted {
		h.log.Warn("evicted for want of memory", "sandbox", b.id, "key", b.key, "reading", r.String())
	}
	return evicted
}
