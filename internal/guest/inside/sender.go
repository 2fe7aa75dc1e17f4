package inside

import "sandboxd/internal/guest/wire"

// changed says that the command may have something to tell. Under s.mu.
func (c *command) changed() {
	l := c.s.link
	if l == nil || c.to != l || c.queued {
		return
	}
	c.queued = true
	l.dirty = append(l.dirty, c)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// sendAll says what commands have to say, a frame of each in turn, until the link
// ends.
func (l *link) sendAll() {
	var buf []byte
	for {
		l.s.mu.Lock()
		var f wire.Frame
		ok := false
		for !ok && len(l.dirty) > 0 && l.s.link == l {
			c := l.dirty[0]
			l.dirty = l.dirty[1:]
			c.queued = false
			if f, ok = c.say(&buf); ok {
				c.changed()
			}
		}
		if len(l.dirty) == 0 {
			l.dirty = nil
		}
		l.s.mu.Unlock()
		if ok {
			if l.w.Send(f) != nil {
				l.conn.Close() // the reader ends the link
				return
			}
			continue
		}
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			return
		}
	}
}

// say makes the next frame about the command, if there is one. Output is copied
// into buf, because its place may be reused once s.mu is let go. Under s.mu.
func (c *command) say(buf *[]byte) (wire.Frame, bool) {
	f := wire.Frame{Number: c.number}
	switch {
	case c.forgotten:
		return f, false
	case c.failed != nil:
		f.Type, f.Payload = wire.TypeStartFailed, encode(c.failed)
		c.remove()
		c.forgotten = true
	case !c.toldStart:
		if c.proc == nil {
			return f, false
		}
		f.Type = wire.TypeStarted
		c.toldStart, c.asker = true, nil
	case c.in.open && c.credit > 0:
		f.Type, f.Arg = wire.TypeStdinCredit, uint64(c.credit)
		c.credit = 0
	case !c.in.open && !c.toldClosed:
		f.Type = wire.TypeStdinClosed
		c.toldClosed = true
	case c.sending && c.sent < c.out.next():
		tag, data := c.out.from(c.sent, wire.MaxPayload)
		*buf = append((*buf)[:0], data...)
		f.Type, f.Flags, f.Arg, f.Payload = wire.TypeOutput, tag, uint64(c.sent), *buf
		c.sent += int64(len(data))
	case c.sending && c.ended && !c.toldEnded:
		f.Type, f.Arg, f.Payload = wire.TypeEnded, uint64(c.out.next()), encode(c.exit)
		c.toldEnded = true
	default:
		return f, false
	}
	return f, true
}
