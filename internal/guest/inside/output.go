package inside

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/wire"
)

// output is what a command wrote and the host has not acknowledged, in the one
// offset space of its streams. It is under Server.mu.
type output struct {
	base  int64  // offset of data[0]
	data  []byte // a suffix of store
	store []byte
	segs  []segment
}

// segment is a run of bytes of one stream, up to end.
type segment struct {
	end int64
	tag byte
}

func (o *output) next() int64 { return o.base + int64(len(o.data)) }

func (o *output) append(tag byte, b []byte) {
	if len(o.data) == 0 {
		o.data = o.store[:0]
	}
	o.data = append(o.data, b...)
	o.store = o.data[:0]
	if n := len(o.segs); n > 0 && o.segs[n-1].tag == tag {
		o.segs[n-1].end = o.next()
		return
	}
	o.segs = append(o.segs, segment{end: o.next(), tag: tag})
}

// ack drops what is before offset and says how many bytes that were.
func (o *output) ack(offset int64) int {
	n := int(min(offset, o.next()) - o.base)
	if n <= 0 {
		return 0
	}
	o.base += int64(n)
	o.data = o.data[n:]
	at := 0
	for at < len(o.segs) && o.segs[at].end <= o.base {
		at++
	}
	o.segs = append(o.segs[:0], o.segs[at:]...)
	return n
}

// drop frees everything, keeping the offset.
func (o *output) drop() int {
	n := o.ack(o.next())
	o.data, o.store, o.segs = nil, nil, nil
	return n
}

// from answers the bytes of one stream at offset, at most so many.
func (o *output) from(offset int64, most int) (byte, []byte) {
	for _, s := range o.segs {
		if s.end > offset {
			end := min(s.end, offset+int64(most))
			return s.tag, o.data[offset-o.base : end-o.base]
		}
	}
	return 0, nil
}

// pump reads one stream of a command into its output.
type pump struct {
	c *command
	o Output
	// under s.mu
	reading bool // in Read, with nothing in hand
	reads   int  // that brought something
	told    int  // reads at the last tick of the drain
	spent   int  // ticks of the drain
	waiting bool // for room
	done    bool
}

// The read buffer grows with a stream that fills it.
const (
	smallRead = 4 << 10
	largeRead = wire.MaxPayload
	pipeSize  = 256 << 10
)

func (p *pump) run() {
	s := p.c.s
	buf := make([]byte, smallRead)
	for {
		s.mu.Lock()
		p.reading = true
		s.mu.Unlock()
		n, err := p.o.R.Read(buf)
		s.mu.Lock()
		p.reading = false
		if n > 0 {
			p.reads++
		}
		p.keep(buf[:n])
		if err != nil {
			// The end, a terminal whose last holder is gone, or given up on: all
			// mean that no more comes.
			p.done = true
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		if n == len(buf) && n < largeRead {
			buf = make([]byte, largeRead)
			widen(p.o.R)
		}
	}
}

// settled is a tick of the drain: it says whether nothing is left to wait for. Under
// s.mu.
func (p *pump) settled() bool {
	if p.done || p.spent >= drainTicks || p.reading && !readable(p.o.R) {
		return true
	}
	if p.reads != p.told || !p.waiting && !askable(p.o.R) {
		p.told = p.reads
		p.spent++
	}
	return false
}

// widen lets a program that writes much run on while what it wrote is carried
// away. Where it is not allowed, or not a pipe, all goes on as it was.
func widen(r io.Reader) {
	if sc, ok := r.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
		}
	}
}

// keep appends b, waiting for room. It is called and returns with s.mu held.
func (p *pump) keep(b []byte) {
	c, s := p.c, p.c.s
	for len(b) > 0 && !c.forgotten {
		room := min(wire.CommandWindow-len(c.out.data), wire.SandboxWindow-s.held, len(b))
		if room <= 0 || len(c.out.segs) >= wire.MaxSegments {
			wait := s.room
			p.waiting = true
			s.mu.Unlock()
			<-wait
			s.mu.Lock()
			p.waiting = false
			continue
		}
		c.out.append(p.o.Tag, b[:room])
		s.held += room
		b = b[room:]
		c.changed()
	}
}

// askable says whether r can tell if a read would wait. A terminal cannot: what was
// written to it may be on its way.
func askable(r io.Reader) bool {
	_, ok := r.(syscall.Conn)
	return ok
}

// readable says whether a read of r would not wait. What cannot be asked counts
// as readable.
func readable(r io.Reader) bool {
	if !askable(r) {
		return true
	}
	raw, err := r.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	ready := false
	err = raw.Control(func(fd uintptr) {
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, perr := unix.Poll(set, 0)
		ready = perr != nil || n > 0
	})
	return err == nil && ready
}
