// Package relay joins two connections: bytes both ways, half closes passed on, and
// no clean end made of a broken one.
//
// It is not a proxy: it knows no protocol and opens nothing. The init, the server
// and the command line carry ports with it.
package relay

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a connection of which one direction can end before the other.
//
// Two optional methods say more. Reset() error closes it so that the far side does
// not take what it has for the whole; a TCP connection does it by its linger
// option. Done() <-chan struct{} says that the far side gave up as a whole, which
// after a half close no read can tell.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Options of Join.
type Options struct {
	// HalfIdle bounds how long a connection of which one direction has ended may
	// carry nothing in the other; 0 means no bound. A peer that ended one and is
	// gone looks like one that waits.
	HalfIdle time.Duration
}

// Join carries bytes between a and b until both directions have ended, and closes
// both. To end it earlier, close them.
func Join(a, b Conn, opts Options) {
	endA, endB := make(chan struct{}), make(chan struct{})
	var other sync.WaitGroup
	other.Go(func() { direction{src: b, dst: a, end: endB, back: endA, bound: opts.HalfIdle}.run() })
	direction{src: a, dst: b, end: endA, back: endB, bound: opts.HalfIdle}.run()
	other.Wait()
	a.Close()
	b.Close()
}

// direction is one half of a Join.
type direction struct {
	src, dst  Conn
	end, back chan struct{} // closed at the end of this half and of the other
	bound     time.Duration
}

func (d direction) run() {
	w := &watched{Writer: d.dst}
	go d.watch(w)
	_, err := io.Copy(w, struct{ io.Reader }{d.src})
	switch {
	case w.err != nil:
		// Who does not take this may still have something to say; that it is gone
		// ends the other half.
	case err != nil:
		reset(d.dst)
	default:
		_ = d.dst.CloseWrite() // fails only when dst is gone, which the other half sees
	}
	close(d.end)
	select {
	case <-gone(d.src):
		d.dst.Close() // nobody is left for its answers
	case <-d.back:
	}
}

// linger bounds how long the last bytes of a source that is gone may wait for dst to
// take them.
const linger = 5 * time.Second

// watch gives up when nothing moves in this half and either its source is gone or,
// where that is bounded, the other half has ended.
func (d direction) watch(w *watched) {
	back, left := d.back, gone(d.src)
	if d.bound <= 0 {
		back = nil
	}
	var tick *time.Ticker
	var over <-chan time.Time
	patience := func(bound time.Duration) {
		if tick == nil {
			tick = time.NewTicker(bound)
			over = tick.C
			return
		}
		tick.Reset(bound)
	}
	defer func() {
		if tick != nil {
			tick.Stop()
		}
	}()
	seen := int64(-1)
	for {
		select {
		case <-d.end:
			return
		case <-left:
			left, back = nil, nil
			patience(linger)
		case <-back:
			back = nil
			patience(d.bound)
		case <-over:
			now := w.bytes.Load()
			if now == seen {
				reset(d.dst)
				reset(d.src)
				return
			}
			seen = now
		}
	}
}

// watched counts what was written and keeps why it stopped.
type watched struct {
	io.Writer
	bytes atomic.Int64
	err   error // for the goroutine that writes
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.bytes.Add(int64(n))
	if err != nil {
		w.err = err
	}
	return n, err
}

func reset(c Conn) {
	if r, ok := c.(interface{ Reset() error }); ok {
		_ = r.Reset() // there is nothing left to do about it
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only when it is closed already
	}
	c.Close()
}

func gone(c Conn) <-chan struct{} {
	if d, ok := c.(interface{ Done() <-chan struct{} }); ok {
		return d.Done()
	}
	return nil
}
