package guest

import (
	"encoding/json"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/guest/wire"
)

// maxNumber keeps a lying init from using up the numbers of commands.
const maxNumber = 1 << 30

// Pools of buffers for output in bulk. Small output gets memory of its own size,
// so that many commands with a byte each do not hold a large buffer each.
var pools = [...]struct {
	size int
	sync.Pool
}{{size: wire.MaxFrame}, {size: wire.CommandWindow}}

const smallOutput = 4 << 10

func appendOutput(b, data []byte) []byte {
	need := len(b) + len(data)
	if need <= cap(b) || need <= smallOutput {
		return append(b, data...)
	}
	for i := range pools {
		if p := &pools[i]; need <= p.size {
			grown, ok := p.Get().(*[]byte)
			if !ok {
				fresh := make([]byte, p.size)
				grown = &fresh
			}
			out := append(append((*grown)[:0], b...), data...)
			recycle(b)
			return out
		}
	}
	return append(b, data...)
}

func recycle(b []byte) {
	for i := range pools {
		if p := &pools[i]; cap(b) == p.size {
			b = b[:p.size]
			p.Put(&b)
		}
	}
}

// command is one of the init's as this link knows it. Fields are under Link.mu.
type command struct {
	l      *Link
	number uint32
	id     string
	base   int64 // what the init said it holds, at attach
	limit  int64

	started chan startResult // waited on by Start; nil otherwise

	flowing bool  // output is expected
	next    int64 // offset of the next byte from the init
	kept    int64 // bytes before it are durable
	acked   int64 // bytes before it count no more: the init was told
	late    bool  // in Link.late

	// pending output, delivered by at most one goroutine
	pending    []byte
	segs       []segment
	delivering bool
	deaf       bool // the Handler failed
	ended      *wire.Exit
	forgotten  bool

	input     chan struct{} // holds one token: the right to send input
	credit    int
	inputOpen bool
	changed   chan struct{} // closed and replaced when credit or inputOpen changes
}

type segment struct {
	stream sandboxd.Stream
	size   int
}

type startResult struct {
	exit     *wire.Exit
	conflict bool
}

func newCommand(l *Link, number uint32, id string) *command {
	return &command{l: l, number: number, id: id, input: make(chan struct{}, 1), changed: make(chan struct{})}
}

func (c *command) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// hear takes a frame about a command.
func (l *Link) hear(f wire.Frame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	c := l.byNumber[f.Number]
	if c == nil {
		if f.Number > l.last {
			return violation("command number %d was never used", f.Number)
		}
		return nil // forgotten a moment ago
	}
	if c.started != nil {
		return c.hearStart(f)
	}
	switch f.Type {
	case wire.TypeStdinCredit:
		if f.Arg > wire.StdinWindow || c.credit+int(f.Arg) > wire.StdinWindow {
			return violation("command %q granted more input than its window", c.id)
		}
		c.credit += int(f.Arg)
		c.notify()
		return nil
	case wire.TypeStdinClosed:
		c.inputOpen = false
		c.notify()
		return nil
	case wire.TypeOutput:
		return c.hearOutput(f)
	case wire.TypeEnded:
		return c.hearEnded(f)
	}
	return violation("command %q was started twice", c.id)
}

// hearStart takes the answer to a start.
func (c *command) hearStart(f wire.Frame) error {
	var result startResult
	switch f.Type {
	case wire.TypeStarted:
		c.flowing = true
	case wire.TypeStartFailed:
		result.exit = &wire.Exit{}
		if err := json.Unmarshal(f.Payload, result.exit); err != nil {
			return violation("malformed start failure")
		}
		result.conflict = f.Flags&wire.FlagConflict != 0
		c.remove()
	default:
		return violation("command %q says something before it was started", c.id)
	}
	c.started <- result
	c.started = nil
	return nil
}

// hearOutput queues output. The init may have as much unacknowledged as the
// protocol grants; more is a flood.
func (c *command) hearOutput(f wire.Frame) error {
	l, n := c.l, len(f.Payload)
	stream := sandboxd.StreamStdout
	switch f.Flags {
	case wire.TagStdout:
	case wire.TagStderr:
		stream = sandboxd.StreamStderr
	default:
		return violation("output of command %q on stream %d", c.id, f.Flags)
	}
	switch {
	case !c.flowing:
		return violation("output of command %q that was not asked for", c.id)
	case c.ended != nil || n == 0 || f.Arg != uint64(c.next) || c.next > wire.MaxOffset:
		return violation("output of command %q at offset %d instead of %d", c.id, f.Arg, c.next)
	case c.next+int64(n)-c.acked > wire.CommandWindow || l.unacked+n > wire.SandboxWindow:
		return violation("more unacknowledged output than the protocol allows, of command %q", c.id)
	}
	c.next += int64(n)
	l.unacked += n
	if c.deaf {
		return nil
	}
	c.pending = appendOutput(c.pending, f.Payload)
	if last := len(c.segs) - 1; last >= 0 && c.segs[last].stream == stream {
		c.segs[last].size += n
	} else if len(c.segs) < wire.MaxSegments {
		c.segs = append(c.segs, segment{stream, n})
	} else {
		return violation("output of command %q alternates too often", c.id)
	}
	c.wake()
	return nil
}

func (c *command) hearEnded(f wire.Frame) error {
	if !c.flowing || c.ended != nil || f.Arg != uint64(c.next) {
		return violation("command %q ended at offset %d instead of %d", c.id, f.Arg, c.next)
	}
	exit := &wire.Exit{}
	if err := json.Unmarshal(f.Payload, exit); err != nil {
		return violation("malformed ending")
	}
	c.ended = exit
	c.inputOpen = false
	c.notify()
	if !c.deaf {
		c.wake()
	}
	return nil
}

// wake sees to it that a goroutine delivers. Under Link.mu.
func (c *command) wake() {
	if !c.delivering {
		c.delivering = true
		c.l.work.Go(c.deliver)
	}
}

// After so much output without a pause a command's delivery gives way. The Go
// scheduler looks for what others wait for when a goroutine waits, not while two
// that never do keep its threads busy.
const (
	giveWay = 256 << 10
	breath  = 20 * time.Microsecond
)

// deliver hands over what is pending, all of it at a time, until there is no more.
func (c *command) deliver() {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { c.delivering = false }()
	at := c.next - int64(len(c.pending))
	given := 0
	for l.err == nil && !c.forgotten && !c.deaf {
		if len(c.pending) == 0 {
			if exit := c.ended; exit != nil {
				offset := c.next
				l.mu.Unlock()
				l.opts.Handler.Ended(c.id, offset, *exit)
				l.mu.Lock()
			}
			return
		}
		data, segs := c.pending, c.segs
		whole := data
		c.pending, c.segs = nil, nil
		for _, s := range segs {
			if l.err != nil || c.forgotten {
				return
			}
			l.mu.Unlock()
			err := l.opts.Handler.Output(c.id, s.stream, at, data[:s.size])
			l.mu.Lock()
			if err != nil {
				c.deaf = true
				c.pending, c.segs = nil, nil
				return
			}
			data = data[s.size:]
			at += int64(s.size)
			l.acknowledge(c, at)
		}
		if given += len(whole); given >= giveWay {
			given = 0
			l.mu.Unlock()
			time.Sleep(breath)
			l.mu.Lock()
		}
		recycle(whole)
	}
}

// ackBytes of one command are acknowledged at once. Less waits for ackDelay, in
// which most commands end: then forgetting them says it all.
const (
	ackBytes = wire.CommandWindow / 4
	ackDelay = 2 * time.Millisecond
)

// acknowledge sees to it that the init hears that everything before offset is
// durable. Under Link.mu, which it lets go meanwhile.
func (l *Link) acknowledge(c *command, offset int64) {
	if c.forgotten {
		return
	}
	c.kept = offset
	if offset-c.acked >= ackBytes {
		l.ack(c)
		return
	}
	if !c.late {
		c.late = true
		l.late = append(l.late, c)
		if len(l.late) == 1 {
			l.later.Reset(ackDelay)
		}
	}
}

func (l *Link) ack(c *command) {
	l.unacked -= int(c.kept - c.acked)
	c.acked = c.kept
	f := wire.Frame{Type: wire.TypeAck, Number: c.number, Arg: uint64(c.kept)}
	l.mu.Unlock()
	l.background(f)
	l.mu.Lock()
}

// ackLate acknowledges what waited.
func (l *Link) ackLate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.late
	l.late = nil
	for _, c := range late {
		c.late = false
		if l.err == nil && !c.forgotten && c.kept > c.acked {
			l.ack(c)
		}
	}
}

// remove drops the command from the link's tables. Under Link.mu.
func (c *command) remove() {
	if c.forgotten {
		return
	}
	c.forgotten = true
	c.inputOpen = false
	c.notify()
	c.l.unacked -= int(c.next - c.acked)
	c.pending, c.segs = nil, nil
	delete(c.l.byNumber, c.number)
	delete(c.l.byID, c.id)
}
