// Package pace has long work for one sandbox give way to what is asked for others:
// whoever serves a request says for which sandbox, and who works long for one asks
// how long to rest. While nobody else is served, work goes at full speed. It is not
// a scheduler: it runs nothing and knows no priorities, and what a sandbox itself
// does with its processors the kernel shares out.
//
// It is the process's and no object's, as the processors are that it shares out.
package pace

import (
	"context"
	"sync"
	"time"
)

const (
	// moment is how long after a request others still give way: the request itself,
	// and the next one of somebody who makes one after the other.
	moment = 50 * time.Millisecond
	// Brief is the rest of who gives way to nobody, so that the runtime looks for
	// what became ready; without it, that waits as long as a busy thread may run.
	Brief = 50 * time.Microsecond
	// longest is the most that one piece of work rests.
	longest = 10 * time.Millisecond
	// share is what is rested for what was worked while others are served.
	share = 3
)

// mark is when a request was last made for a sandbox.
type mark struct {
	who string
	at  time.Time
}

var (
	mu sync.Mutex
	// The latest of one sandbox and the latest of any other: one of them is not of
	// whoever asks.
	last, other mark
)

// Serve notes a request for a sandbox; "" is one for none in particular. It is
// cheap, and safe for concurrent use.
func Serve(who string) {
	now := time.Now()
	mu.Lock()
	defer mu.Unlock()
	if last.who != who {
		other = last
	}
	last = mark{who, now}
}

// Served says whether a sandbox other than this was just asked for something.
func Served(who string) bool {
	mu.Lock()
	defer mu.Unlock()
	m := last
	if m.who == who {
		m = other
	}
	ago := time.Since(m.at) // before now only if it is of this clock, and not a test's
	return ago >= 0 && ago < moment && !m.at.IsZero()
}

// Rest is called by who has worked so long for a sandbox. It returns after Brief or,
// when others are served, after what leaves them most of the time; or when ctx ends.
func Rest(ctx context.Context, who string, worked time.Duration) {
	d := Brief
	if Served(who) {
		d = min(max(d, share*worked), longest)
	}
	if d == Brief {
		time.Sleep(d)
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
