package host

import (
	"sync"
	"time"

	"sandboxd/internal/pace"
)

// flow bounds what the host takes of the output of all commands together while
// others are served: a program that only writes keeps two threads of the host busy,
// beside its own. What is not taken, the init does not read.
type flow struct{ mu sync.Mutex }

const (
	// flowPiece of output of one sandbox passes freely.
	flowPiece = 256 << 10
	// flowTime is what the host works for it.
	flowTime = time.Millisecond
)

// rest is taken after a piece, one sandbox at a time. Commands of one sandbox wait for
// each other first, so that many of them have no more turns than the one of another.
func (f *flow) rest(b *box) {
	if !pace.Served(b.key) {
		return
	}
	b.resting.Lock()
	defer b.resting.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	pace.Rest(b.h.ctx, b.key, flowTime)
}

// wrote is called with what a command of the sandbox has written, once it is kept.
func (b *box) wrote(n int) {
	had := b.written.Add(int64(n))
	if had/flowPiece != (had-int64(n))/flowPiece {
		b.h.flow.rest(b)
	}
}
