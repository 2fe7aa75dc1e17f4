// Package queue hands a driver's events to its host. It knows nothing of what
// they mean.
package queue

import (
	"sync"

	"sandboxd"
)

// Queue hands events over without a bound, so that a slow reader loses none and
// holds nobody up. Make it with New; it is safe for concurrent use.
type Queue struct {
	out  chan sandboxd.DriverEvent
	wake chan struct{}
	done chan struct{}
	gone chan struct{}

	mu      sync.Mutex
	pending []sandboxd.DriverEvent
}

// New makes a queue; Close ends it.
func New() *Queue {
	q := &Queue{out: make(chan sandboxd.DriverEvent), wake: make(chan struct{}, 1), done: make(chan struct{}), gone: make(chan struct{})}
	go q.run()
	return q
}

// Push never blocks.
func (q *Queue) Push(e sandboxd.DriverEvent) {
	q.mu.Lock()
	q.pending = append(q.pending, e)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Out delivers the events in order, until Close.
func (q *Queue) Out() <-chan sandboxd.DriverEvent { return q.out }

func (q *Queue) run() {
	defer close(q.gone)
	defer close(q.out)
	for {
		q.mu.Lock()
		pending := q.pending
		q.pending = nil
		q.mu.Unlock()
		for _, e := range pending {
			select {
			case q.out <- e:
			case <-q.done:
				return
			}
		}
		if len(pending) > 0 {
			continue
		}
		select {
		case <-q.wake:
		case <-q.done:
			return
		}
	}
}

// Close closes Out; what was not read is dropped.
func (q *Queue) Close() {
	close(q.done)
	<-q.gone
}
