package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/guest/wire"
)

// Handler hears what commands say. Its methods are called by one goroutine per
// command at a time, for different commands at once, and already while Attach
// runs. A call may block: only its command waits.
type Handler interface {
	// Output is called in order. It returns nil when data is durable; only then it
	// is acknowledged. After an error nothing more of the command is delivered or
	// acknowledged until the link ends. data is valid until it returns.
	Output(command string, stream sandboxd.Stream, offset int64, data []byte) error
	// Ended comes after all its output, once per attach until Forget.
	Ended(command string, offset int64, exit wire.Exit)
}

// Options of Attach.
type Options struct {
	// Nonce is the secret that the init was given at its set-up and must prove it
	// knows; "" means none.
	Nonce   string
	Handler Handler
	// Have says how many bytes of a command are durable. false means that the host
	// does not want the command: the init holds its output, and Commands lists it.
	// nil wants every command from its first held byte.
	Have func(command string) (int64, bool)
	// Services are what the init may open streams to, by name. Each stream is
	// served by a goroutine and closed when the function returns.
	Services map[string]func(Stream)
	// Listen has the init listen on ports of the sandbox's loopback: each connection
	// becomes a stream to the service. A port that is taken inside fails the attach.
	Listen map[string]uint16
	// Flush begins with zeros that complete what a dead host left unfinished; for
	// connections that outlive a host. A sandboxd.Continued sets it by itself.
	Flush bool
	// MinVersion and MaxVersion override what is spoken.
	MinVersion, MaxVersion int
}

// CommandState is a command as the init reported it at attach.
type CommandState struct {
	ID    string
	Next  int64 // offset after its last byte of output
	Ended bool
}

// StartError is a command that could not be run: Exit.Code is 126 or 127.
type StartError struct{ Exit wire.Exit }

func (e *StartError) Error() string { return "the command could not be run: " + e.Exit.Error }

// Stream is a forwarded connection. A read that meets a reset is wire.ErrReset.
type Stream interface {
	sandboxd.PortConn
	// Done is closed when the stream is given up as a whole, by either side or with
	// the link.
	Done() <-chan struct{}
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// Bounds of a link on the host's side.
const (
	// writeStall is how long one write may wait for an init that does not read,
	// before the link is given up: its reader waits for no command.
	writeStall = 10 * time.Second
	// replies bounds the answers that wait to be written; an init that asks faster
	// than it reads is flooding.
	replies = 256
)

// Link is a working connection to an init. Its methods are safe for concurrent
// use. A method that meets a broken link returns ClassUnavailable.
type Link struct {
	conn     io.ReadWriteCloser
	opts     Options
	nonce    uint64
	version  int // of the protocol, as both speak it
	w        *wire.Writer
	writing  chan struct{} // holds one token: the right to write
	stall    *time.Timer
	streams  *wire.Streams
	replies  chan wire.Frame
	reported []CommandState
	work     sync.WaitGroup // reader, replier, deliveries
	stale    int            // bytes of frames that were of no use; the reader's alone

	broken chan struct{} // closed when the link is given up
	done   chan struct{} // closed when in addition no Handler call runs

	mu       sync.Mutex
	err      error
	byNumber map[uint32]*command
	byID     map[string]*command
	last     uint32     // highest command number used
	unacked  int        // bytes of output received and not acknowledged
	late     []*command // have something durable that the init was not told
	later    *time.Timer
	pings    map[uint64]chan struct{}
	ping     uint64
	asked    map[uint64]chan sandboxd.PortList
}

// Commands are the init's commands as reported at attach, in no order.
func (l *Link) Commands() []CommandState { return l.reported }

// Done is closed when the link has ended and no Handler call is running, so that
// what Have answers afterwards stays true until the next link delivers.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err is why the link ended, nil while it works.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the link; commands go on. It does not wait.
func (l *Link) Close() error {
	l.fail(sandboxd.Errorf(sandboxd.ClassUnavailable, "the link was closed"))
	return nil
}

// fail ends the link; the first reason stands.
func (l *Link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	var classed *sandboxd.Error
	if !errors.As(err, &classed) {
		err = sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the link to the sandbox broke")
	}
	l.err = err
	close(l.broken)
	l.later.Stop()
	l.mu.Unlock()
	l.conn.Close()
	l.streams.Fail(err)
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{wire.ErrProtocol}, args...)...)
}

// useless counts a frame that is passed over.
func (l *Link) useless(f wire.Frame) error {
	if l.stale += wire.HeaderSize + len(f.Payload); l.stale > wire.MaxStale {
		return violation("%d bytes of frames that are of no use", l.stale)
	}
	return nil
}

// send writes frames with nothing in between, files with the first byte. Waiting
// for the turn ends with ctx; a write under way does not, or the stream would
// break in the middle of a frame.
func (l *Link) send(ctx context.Context, files []*os.File, frames ...wire.Frame) error {
	select {
	case l.writing <- struct{}{}:
	case <-l.broken:
		return l.Err()
	case <-ctx.Done():
		return sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the sandbox does not answer")
	}
	defer func() { <-l.writing }()
	l.stall.Reset(writeStall)
	defer l.stall.Stop()
	var err error
	if len(files) > 0 {
		err = l.w.SendBy(withFiles(l.conn.(messages), files), frames...)
	} else {
		err = l.w.SendAll(frames...)
	}
	if err != nil {
		l.fail(err)
		return l.Err()
	}
	return nil
}

// background is send for frames that answer to no caller; a failure ends the link.
func (l *Link) background(f wire.Frame) { _ = l.send(context.Background(), nil, f) }

// reply has a frame written without waiting, for the reader.
func (l *Link) reply(f wire.Frame) error {
	select {
	case l.replies <- f:
		return nil
	default:
		return violation("the init asks faster than it reads")
	}
}

func (l *Link) replier() {
	for {
		select {
		case f := <-l.replies:
			l.background(f)
		case <-l.broken:
			return
		}
	}
}

// read takes frames until the link ends.
func (l *Link) read(r *wire.Reader) {
	skipped := r.Skipped()
	for {
		f, err := r.Next()
		if err == nil && r.Skipped() != skipped {
			err = violation("bytes that are no frame")
		}
		switch {
		case err != nil:
		case f.Nonce != l.nonce: // of a link that is dead
			err = l.useless(f)
		default:
			err = l.handle(f)
		}
		if err != nil {
			l.fail(err)
			return
		}
	}
}

// handle takes one frame. It never blocks.
func (l *Link) handle(f wire.Frame) error {
	switch f.Type {
	case wire.TypePong:
		l.mu.Lock()
		defer l.mu.Unlock()
		if c := l.pings[f.Arg]; c != nil {
			close(c)
			delete(l.pings, f.Arg)
			return nil
		}
		return l.useless(f) // nobody waits for it any more, or ever did
	case wire.TypePortList:
		return l.hearPorts(f)
	case wire.TypeReset:
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "the init gave the link up: %q", f.Payload)
	case wire.TypeService:
		return l.serve(f)
	case wire.TypeOpened, wire.TypeRefused, wire.TypeStreamData, wire.TypeStreamCredit, wire.TypeStreamEnd, wire.TypeStreamClose:
		return l.streams.Handle(f)
	case wire.TypeStarted, wire.TypeStartFailed, wire.TypeStdinCredit, wire.TypeStdinClosed, wire.TypeOutput, wire.TypeEnded:
		return l.hear(f)
	}
	return violation("frame type %d", f.Type)
}

// serve connects a stream of the init to a service.
func (l *Link) serve(f wire.Frame) error {
	service := l.opts.Services[string(f.Payload)]
	if service == nil {
		return l.reply(wire.Frame{Type: wire.TypeRefused, Number: f.Number, Payload: []byte("no such service")})
	}
	st, err := l.streams.Accept(f.Number)
	if errors.Is(err, wire.ErrTooMany) {
		return l.reply(wire.Frame{Type: wire.TypeRefused, Number: f.Number, Payload: []byte(err.Error())})
	}
	if err != nil {
		return err
	}
	if err := l.reply(wire.Frame{Type: wire.TypeOpened, Number: f.Number}); err != nil {
		return err
	}
	// Not part of l.work: what a service does with a broken stream is its own.
	go func() {
		defer st.Close()
		service(st)
	}()
	return nil
}
