package inside

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"sandboxd/internal/guest/wire"
)

// drainTick and drainTicks bound how long output is read after the leader of a
// command ended while a background child writes on. Only a tick in which something
// was read counts, or one of a stream that cannot tell: on a busy machine the pumps
// may not have run yet, and output may wait for the host. What the leader wrote is in
// the pipe as one piece, and so many reads bring more than a pipe can hold: none of it
// is lost.
const (
	drainTick  = 5 * time.Millisecond
	drainTicks = 20
)

// command is one process tree from start to Forget. Its fields are under s.mu.
type command struct {
	s      *Server
	number uint32
	id     string
	wait   string

	proc    Process // nil until spawned and after a failed start
	early   []int   // signals that came before proc
	out     output
	in      input
	outputs []*pump

	asker     *link // link that waits for Started or StartFailed
	failed    *wire.Exit
	exit      *wire.Exit // the leader's
	ended     bool       // exit is known and every output was read
	forgotten bool
	whole     bool // it is to end with all that it started

	// what the current link was told
	to         *link // the link that this is about
	queued     bool  // in to.dirty
	sending    bool  // the host sent Have, or started it
	sent       int64 // next offset to send
	toldStart  bool
	toldEnded  bool
	toldClosed bool
	credit     int // stdin bytes to grant
}

// begin starts a command. It never blocks: the process is made by a goroutine.
func (s *Server) begin(l *link, number uint32, spec wire.Start, groups []int) error {
	s.mu.Lock()
	refusal := ""
	conflict := uint8(0)
	switch {
	case s.link != l:
		s.mu.Unlock()
		closeAll(groups)
		return errReplaced
	case s.byNumber[number] != nil:
		s.mu.Unlock()
		closeAll(groups)
		return violation("command number %d is in use", number)
	case s.closed:
		refusal = "the sandbox is ending"
	case s.byID[spec.ID] != nil:
		refusal, conflict = "a command with this id exists", wire.FlagConflict
	case len(s.byNumber) >= wire.MaxCommands:
		refusal = "too many commands"
	case spec.Restart != "" && spec.Restart != "never":
		refusal = "restart policies are not supported"
	}
	if refusal != "" {
		s.mu.Unlock()
		closeAll(groups)
		exit := wire.Exit{Code: 126, Error: refusal}
		return l.w.Send(wire.Frame{Type: wire.TypeStartFailed, Flags: conflict, Number: number, Payload: encode(exit)})
	}
	c := &command{s: s, number: number, id: spec.ID, wait: spec.Wait, asker: l, to: l, sending: true}
	c.in.open = spec.Stdin || spec.TTY
	c.in.changed = make(chan struct{}, 1)
	s.byNumber[number] = c
	s.byID[spec.ID] = c
	s.running.Add(1)
	s.mu.Unlock()
	go c.run(spec, groups)
	return nil
}

func (c *command) run(spec wire.Start, groups []int) {
	defer c.s.running.Done()
	proc, err := c.s.spawner.Spawn(spec, groups)
	s := c.s
	if err != nil {
		exit := wire.Exit{Code: 126, Error: err.Error()}
		var bad *SpawnError
		if errors.As(err, &bad) {
			exit.Code, exit.Error = bad.Code, bad.Text
		}
		exit.Error = exit.Error[:min(len(exit.Error), 1024)]
		s.mu.Lock()
		defer s.mu.Unlock()
		c.in.open = false
		switch {
		case c.forgotten:
			c.remove()
		case c.asker != nil && c.asker == s.link:
			c.failed = &exit
			c.changed()
		default:
			// The host that asked is gone. A newer one was told that the command
			// exists, or will be: to it this is an ending.
			c.exit, c.ended = &exit, true
			c.changed()
		}
		return
	}
	var pumps sync.WaitGroup
	s.mu.Lock()
	c.proc = proc
	if l, ok := proc.(leader); ok {
		s.leaders.add(l.Leader(), c.id)
	}
	early := c.early
	c.early = nil
	for _, o := range proc.Outputs() {
		c.outputs = append(c.outputs, &pump{c: c, o: o})
	}
	c.changed()
	if s.closed {
		early = append(early, int(syscall.SIGKILL))
	}
	s.mu.Unlock()
	for _, p := range c.outputs {
		pumps.Go(p.run)
	}
	for _, sig := range early {
		_ = proc.Signal(sig) // a process that ended meanwhile is no fault
	}
	if w := proc.Stdin(); w != nil {
		go c.feed(w)
	} else {
		c.closeInput()
	}
	exit := proc.Wait()
	exit.Error = exit.Error[:min(len(exit.Error), 1024)]
	c.closeInput()
	read := make(chan struct{})
	go func() {
		pumps.Wait()
		close(read)
	}()
	if c.wait != "pipes" {
		c.drain(read)
		for _, p := range c.outputs {
			p.o.R.Close() // wakes the pump that a background child keeps waiting
		}
	}
	<-read
	for _, p := range c.outputs {
		p.o.R.Close()
	}
	s.mu.Lock()
	if tree, ok := proc.(Tree); ok && c.whole {
		s.mu.Unlock()
		tree.KillAll() // so that the ending says what is true when it is read
		s.mu.Lock()
	}
	c.exit, c.ended = &exit, true
	c.outputs = nil
	if c.forgotten {
		c.remove()
	} else {
		c.changed()
	}
	s.mu.Unlock()
}

// drain waits until what the command wrote is read: each stream ended, or has nothing
// to read, or a background child went on writing for long enough.
func (c *command) drain(read <-chan struct{}) {
	if c.settled() {
		return
	}
	tick := time.NewTicker(drainTick)
	defer tick.Stop()
	for {
		select {
		case <-read:
			return
		case <-tick.C:
		}
		if c.settled() {
			return
		}
	}
}

// settled says that every output is read as far as drain waits for it. Each call is a
// tick.
func (c *command) settled() bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	all := true
	for _, p := range c.outputs {
		all = p.settled() && all
	}
	return all
}

// signal reaches the leader's group or, to end the whole command with SIGKILL, all
// that it started.
func (c *command) signal(sig int, whole bool) {
	c.s.mu.Lock()
	proc := c.proc
	c.whole = c.whole || whole
	if proc == nil && len(c.early) < 8 {
		c.early = append(c.early, sig)
	}
	c.s.mu.Unlock()
	if proc == nil {
		return
	}
	if tree, ok := proc.(Tree); ok && whole && sig == int(syscall.SIGKILL) {
		go func() { // it may take a while, and this is the reader of the link
			tree.KillAll() // first: the leader may be what the others are known by
			_ = proc.Signal(sig)
		}()
		return
	}
	_ = proc.Signal(sig) // the host learns what became of it by the ending
}

func (c *command) resize(cols, rows uint16) {
	c.s.mu.Lock()
	proc := c.proc
	c.s.mu.Unlock()
	if proc != nil {
		_ = proc.Resize(cols, rows) // no terminal, or ended: nothing to do
	}
}

// forget drops the command now, or when it has ended. Output that nobody waits
// for is thrown away from here on. Under s.mu.
func (c *command) forget() {
	if c.forgotten {
		return
	}
	c.forgotten = true
	c.s.freed(c.out.drop())
	if c.ended || c.failed != nil {
		c.remove()
	}
}

// abandon kills the command and forgets it.
func (c *command) abandon() {
	c.signal(int(syscall.SIGKILL), false)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.forget()
}

// remove takes the command off the tables. Under s.mu.
func (c *command) remove() {
	c.s.freed(c.out.drop())
	delete(c.s.byNumber, c.number)
	delete(c.s.byID, c.id)
}

// known is what a new link is told, and makes the command the new link's.
// Under s.mu.
func (c *command) known() wire.Frame {
	c.to, c.asker = c.s.link, nil
	c.queued, c.sending, c.toldStart = false, false, true
	c.toldEnded, c.toldClosed = false, !c.in.open
	c.credit = 0
	if c.failed != nil {
		c.exit, c.failed, c.ended = c.failed, nil, true
	}
	flags := uint8(0)
	if c.ended {
		flags |= wire.FlagEnded
	}
	credit := 0
	if c.in.open && !c.in.eof {
		flags |= wire.FlagStdin
		credit = wire.StdinWindow - len(c.in.buf) - c.in.writing
	}
	return wire.Frame{
		Type: wire.TypeKnown, Flags: flags, Number: c.number, Arg: uint64(c.out.next()),
		Payload: wire.AppendKnown(nil, wire.Known{Base: c.out.base, Credit: uint32(credit), ID: c.id}),
	}
}

// have lets output flow from the offset that the host has. Under s.mu.
func (c *command) have(offset uint64) error {
	if offset > uint64(c.out.next()) {
		return violation("the host has %d bytes of %d", offset, c.out.next())
	}
	c.s.freed(c.out.ack(int64(offset)))
	c.sent = max(int64(offset), c.out.base)
	c.sending = true
	c.changed()
	return nil
}

// ack frees what the host has made durable. Under s.mu.
func (c *command) ack(offset uint64) error {
	if !c.sending || offset > uint64(c.sent) {
		return violation("output acknowledged that was not sent")
	}
	c.s.freed(c.out.ack(int64(offset)))
	return nil
}
