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

	"golang.org/x/sys/unix"
)

// Conn is a connection of which one direction can end before the other.
//
// Optional methods say more; a *net.TCPConn needs none. Reset() error closes it so
// that the far side does not take what it has for the whole. Done() <-chan struct{}
// says that the far side gave up as a whole, which after a half close no read can
// tell. Broken() bool says that it broke, for when nothing reads or writes it.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

const (
	// linger bounds how long the last bytes of a source that gave up may wait for
	// the other side to take them.
	linger = 5 * time.Second
	// look is how often a connection is asked whether it broke.
	look = 15 * time.Second
)

// Join carries bytes between a and b until both directions have ended, and closes
// both. To end it earlier, close them.
func Join(a, b Conn) { join(a, b, look) }

func join(a, b Conn, look time.Duration) {
	endA, endB := make(chan struct{}), make(chan struct{})
	var other sync.WaitGroup
	other.Go(func() { (&direction{src: b, dst: a, end: endB, back: endA, look: look}).run() })
	(&direction{src: a, dst: b, end: endA, back: endB, look: look}).run()
	other.Wait()
	a.Close()
	b.Close()
}

// direction is one half of a Join.
type direction struct {
	src, dst  Conn
	end, back chan struct{} // closed at the end of this half and of the other
	look      time.Duration

	carried atomic.Int64
	refused bool // dst does not take more; for the goroutine of run
}

func (d *direction) run() {
	go d.watch()
	_, err := io.Copy(d, struct{ io.Reader }{d.src})
	switch {
	case d.refused:
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

// Write implements io.Writer for the copy of run.
func (d *direction) Write(p []byte) (int, error) {
	n, err := d.dst.Write(p)
	d.carried.Add(int64(n))
	d.refused = err != nil
	return n, err
}

// watch sees what a copy that waits does not see, until the copy has ended: an end
// that broke, and a source that gave up before an end that takes nothing.
func (d *direction) watch() {
	tick := time.NewTicker(d.look)
	defer tick.Stop()
	left, was := gone(d.src), int64(-1)
	for {
		select {
		case <-d.end:
			return
		case <-left:
			left, was = nil, d.carried.Load()
			tick.Reset(linger)
		case <-tick.C:
			now := d.carried.Load()
			if broken(d.src) || broken(d.dst) || now == was {
				reset(d.dst)
				reset(d.src)
				return
			}
			if was >= 0 {
				was = now
			}
		}
	}
}

func reset(c Conn) {
	switch c := c.(type) {
	case interface{ Reset() error }:
		_ = c.Reset() // there is nothing left to do about it
	case *net.TCPConn:
		_ = ResetTCP(c)
	default:
		c.Close()
	}
}

// ResetTCP closes a TCP connection by a reset.
func ResetTCP(c *net.TCPConn) error {
	_ = c.SetLinger(0) // fails only when it is closed already
	return c.Close()
}

func gone(c Conn) <-chan struct{} {
	if d, ok := c.(interface{ Done() <-chan struct{} }); ok {
		return d.Done()
	}
	return nil
}

func broken(c Conn) bool {
	switch c := c.(type) {
	case interface{ Broken() bool }:
		return c.Broken()
	case *net.TCPConn:
		return BrokenTCP(c)
	}
	return false
}

// BrokenTCP says whether a connection has an error that no read or write has met
// yet: the peer reset it, or answers no more.
func BrokenTCP(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	failed := false
	err = raw.Control(func(fd uintptr) {
		set := []unix.PollFd{{Fd: int32(fd)}} // an error is told without being asked for
		n, perr := unix.Poll(set, 0)
		failed = perr == nil && n > 0 && set[0].Revents&unix.POLLERR != 0
	})
	return err == nil && failed
}
