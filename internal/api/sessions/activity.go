package sessions

import (
	"context"
	"sync"
	"time"

	"sandboxd"
)

// event is one operation on a session: what was asked for and how it went, never what
// was in it.
type event struct {
	Seq        int64   `json:"seq"`
	At         float64 `json:"at"`
	Op         string  `json:"op"`
	Target     string  `json:"target"`
	OK         bool    `json:"ok"`
	Detail     string  `json:"detail"`
	DurationMS float64 `json:"duration_ms"`
}

const (
	ringSize  = 200
	targetMax = 200
)

// activity is what the face knows of one life of a session while the process lasts: its
// newest events and its runs. Only the number of the newest event outlasts it.
type activity struct {
	mu     sync.Mutex
	seq    int64
	ring   []event
	last   time.Time
	runs   map[string]*running
	spared map[string]time.Time // runs that were stopped before they were heard of
	over   chan struct{}        // closed when the session is
}

// knownActivity answers the activity of a life if there has been any; else nil.
func (f *Face) knownActivity(life string) *activity {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.activities[life]
}

// activityOf answers the activity of a session.
func (f *Face) activityOf(rec sandboxd.SessionRecord) *activity {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.activities[rec.Life]
	if a == nil {
		a = &activity{seq: rec.LastSeq, runs: map[string]*running{}, spared: map[string]time.Time{}, over: make(chan struct{})}
		f.activities[rec.Life] = a
	}
	return a
}

// close says that the session is over; again is no error.
func (a *activity) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed() {
		close(a.over)
	}
}

func (a *activity) closed() bool {
	select {
	case <-a.over:
		return true
	default:
		return false
	}
}

func (a *activity) latest() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// since answers the events after a number, and the newest number.
func (a *activity) since(after int64) ([]event, int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := []event{}
	for _, e := range a.ring {
		if e.Seq > after {
			list = append(list, e)
		}
	}
	return list, a.seq
}

// outcome is how an operation went; its zero value is a failure without words.
type outcome struct {
	ok     bool
	detail string
}

// observe does one operation on a session and keeps an event of it, also when it fails.
func (f *Face) observe(c *call, op, target string, do func(*outcome) error) error {
	a, began := f.activityOf(c.session), f.cfg.Clock()
	a.mu.Lock()
	a.last = began
	a.mu.Unlock()
	started := time.Now()
	var o outcome
	defer func() {
		spent := time.Since(started)
		now := f.cfg.Clock()
		a.mu.Lock()
		a.seq++
		seq := a.seq
		if now.After(a.last) {
			a.last = now
		}
		if len(a.ring) == ringSize {
			a.ring = append(a.ring[:0], a.ring[1:]...)
		}
		a.ring = append(a.ring, event{Seq: seq, At: seconds(now), Op: op, Target: cut(target, targetMax), OK: o.ok, Detail: o.detail,
			DurationMS: float64(spent.Microseconds()/100) / 10})
		a.mu.Unlock()
		// Its caller may be gone; what happened has happened.
		if err := f.cfg.Sessions.TouchSession(context.WithoutCancel(c.ctx()), c.session.Life, now, seq); err != nil {
			f.cfg.Log.Warn("the activity of a session was not kept", "session", c.session.ID, "error", err.Error())
		}
	}()
	return do(&o)
}
