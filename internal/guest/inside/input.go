package inside

import (
	"io"
	"sync"

	"sandboxd/internal/guest/wire"
)

// input is what the host sent to a command and the command did not take yet. Its
// size is what was granted and not more, so a command that does not read keeps
// only this. Under Server.mu.
type input struct {
	buf     []byte
	writing int // bytes in the feeder's hands
	open    bool
	eof     bool
	close   func() // of the process's stdin; once
	changed chan struct{}
}

func (in *input) notify() {
	select {
	case in.changed <- struct{}{}:
	default:
	}
}

// feedSize is how much is written at once, and so how finely credit comes back.
const feedSize = 16 << 10

// input takes data of the host. More than was granted is a violation; data for
// an input that closed meanwhile is dropped. Under s.mu.
func (c *command) input(b []byte, eof bool) error {
	in := &c.in
	if !in.open {
		return nil
	}
	if in.eof || len(in.buf)+in.writing+c.credit+len(b) > wire.StdinWindow {
		return violation("more input than was granted")
	}
	in.buf = append(in.buf, b...)
	in.eof = eof
	in.notify()
	return nil
}

// closeInput ends the input from this side.
func (c *command) closeInput() {
	c.s.mu.Lock()
	in := &c.in
	in.open = false
	in.buf = nil
	in.notify()
	closer := in.close
	c.changed()
	c.s.mu.Unlock()
	if closer != nil {
		closer()
	}
}

// feed writes the input to the process.
func (c *command) feed(w io.WriteCloser) {
	s, in := c.s, &c.in
	var once sync.Once
	closer := func() { once.Do(func() { w.Close() }) }
	defer closer()
	s.mu.Lock()
	in.close = closer
	for {
		if !in.open || (len(in.buf) == 0 && in.eof) {
			break
		}
		if len(in.buf) == 0 {
			in.buf = nil
			s.mu.Unlock()
			<-in.changed
			s.mu.Lock()
			continue
		}
		b := in.buf[:min(len(in.buf), feedSize)]
		in.buf = in.buf[len(b):]
		in.writing = len(b)
		s.mu.Unlock()
		_, err := w.Write(b)
		s.mu.Lock()
		in.writing = 0
		if err != nil {
			// It closed its input, or ended.
			in.open = false
			in.buf = nil
			c.changed()
			break
		}
		c.credit += len(b)
		c.changed()
	}
	s.mu.Unlock()
}
