package process

import (
	"sync"

	"sandboxd"
)

// queue hands events over without a bound, so that a slow reader loses none and
// holds nobody up.
type queue struct {
	out  chan sandboxd.DriverEvent
	wake chan struct{}
	done chan struct{}
	gone chan struct{}

	mu      sync.Mutex
	pending []sandboxd.DriverEvent
}

func newQueue() *queue {
	q := &queue{out: make(chan sandboxd.DriverEvent), wake: make(chan struct{}, 1), done: make(chan struct{}), gone: make(chan struct{})}
	go q.run()
	return q
}

func (q *queue) push(e sandboxd.DriverEvent) {
	q.mu.Lock()
	q.pending = append(q.pending, e)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) run() {
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

func (q *queue) close() {
	close(q.done)
	<-q.gone
}
