package inside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"sandboxd/internal/guest/wire"
)

// link is one host's hold of the sandbox. Its reader, the goroutine of Serve,
// answers directly; all that commands have to say is said by one sender, which
// looks at their state, so that nothing is queued and a new link starts from truth.
type link struct {
	s       *Server
	conn    io.ReadWriteCloser
	files   *descriptors
	nonce   uint64
	w       *wire.Writer
	streams *wire.Streams
	ctx     context.Context
	cancel  context.CancelFunc
	sender  sync.WaitGroup

	part   []byte // of a start that spans frames
	partOf uint32

	// under s.mu
	dirty []*command // commands that may have something to say
	wake  chan struct{}
}

// accept answers a Sync. A refused host gets no link and no error: the connection
// may bring the right one.
func (s *Server) accept(conn io.ReadWriteCloser, files *descriptors, f wire.Frame) (*link, error) {
	w := wire.NewWriter(conn, f.Nonce)
	var sync wire.Sync
	if json.Unmarshal(f.Payload, &sync) != nil {
		return nil, nil
	}
	nack := wire.SyncNack{}
	version := wire.Version(sync.Min, sync.Max, s.opts.MinVersion, s.opts.MaxVersion)
	switch {
	case !wire.Proves(sync.Proof, s.opts.Nonce, wire.SideHost, f.Nonce):
		nack.Reason = "the host does not know this sandbox's secret"
	case version == 0:
		nack = wire.SyncNack{Reason: "no common version", Min: s.opts.MinVersion, Max: s.opts.MaxVersion}
	default:
		if err := s.listen(sync.Listen); err != nil {
			nack.Reason = err.Error()
		}
	}
	if sync.Flush {
		if err := w.Preamble(); err != nil {
			return nil, err
		}
	}
	if nack.Reason != "" {
		return nil, w.Send(wire.Frame{Type: wire.TypeSyncNack, Payload: encode(nack)})
	}
	ack := wire.SyncAck{Version: version, Proof: wire.Proof(s.opts.Nonce, wire.SideInit, f.Nonce)}
	if err := w.Send(wire.Frame{Type: wire.TypeSyncAck, Payload: encode(ack)}); err != nil {
		return nil, err
	}
	l := &link{s: s, conn: conn, files: files, nonce: f.Nonce, w: w, wake: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.streams = wire.NewStreams(false, wire.StreamLimits{Local: wire.MaxServices, Remote: wire.MaxDials}, w.Send)
	frames, err := s.take(l)
	if err != nil {
		return nil, err
	}
	for _, known := range frames {
		if err := w.Send(known); err != nil {
			l.end(err)
			return nil, err
		}
	}
	if err := w.Send(wire.Frame{Type: wire.TypeKnownEnd}); err != nil {
		l.end(err)
		return nil, err
	}
	l.sender.Go(l.sendAll)
	return l, nil
}

// take makes l the current link and answers what the host has to know. A link on
// a connection that a newer one has replaced must not take the sandbox back.
func (s *Server) take(l *link) ([]wire.Frame, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving != io.Closer(l.conn) {
		return nil, errReplaced
	}
	s.link = l
	close(s.linked)
	s.linked = make(chan struct{})
	var frames []wire.Frame
	for _, c := range s.byNumber {
		frames = append(frames, c.known())
	}
	return frames, nil
}

// end gives the link up; nil is no link.
func (l *link) end(err error) {
	if l == nil {
		return
	}
	l.cancel()
	l.streams.Fail(err)
	l.s.mu.Lock()
	if l.s.link == l {
		l.s.link = nil
	}
	l.s.mu.Unlock()
}

// reset gives up a link whose host broke the protocol, and says why.
func (l *link) reset(err error) {
	l.end(err)
	text := err.Error()
	// A connection that takes no more is seen by its reader.
	_ = l.w.Send(wire.Frame{Type: wire.TypeReset, Payload: []byte(text[:min(len(text), 256)])})
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("inside: a message of plain fields did not encode: " + err.Error())
	}
	return b
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{wire.ErrProtocol}, args...)...)
}

// handle takes one frame of the host. An error resets the link.
func (l *link) handle(f wire.Frame) error {
	if l.part != nil && (f.Type != wire.TypeStart || f.Number != l.partOf) {
		return violation("a start was interrupted")
	}
	switch f.Type {
	case wire.TypePing:
		return l.w.Send(wire.Frame{Type: wire.TypePong, Arg: f.Arg})
	case wire.TypeStart:
		return l.start(f)
	case wire.TypeDial:
		return l.dial(f)
	case wire.TypePorts:
		go l.ports(f.Arg)
		return nil
	case wire.TypeOpened, wire.TypeRefused, wire.TypeStreamData, wire.TypeStreamCredit, wire.TypeStreamEnd, wire.TypeStreamClose:
		return l.streams.Handle(f)
	case wire.TypeSignal, wire.TypeResize:
		return l.poke(f)
	case wire.TypeHave, wire.TypeStdin, wire.TypeAck, wire.TypeForget:
		return l.command(f)
	}
	return violation("frame type %d", f.Type)
}

// errReplaced ends a link whose frames are still read while a newer one has told
// its host how commands stand: taking them would make that untrue.
var errReplaced = errors.New("a newer link is in force")

// command takes a frame that changes what is held of a command. A number that is
// not known failed to start, or was forgotten, a moment ago.
func (l *link) command(f wire.Frame) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.link != l {
		return errReplaced
	}
	c := l.s.byNumber[f.Number]
	if c == nil {
		return nil
	}
	switch f.Type {
	case wire.TypeHave:
		return c.have(f.Arg)
	case wire.TypeAck:
		return c.ack(f.Arg)
	case wire.TypeStdin:
		return c.input(f.Payload, f.Flags&wire.FlagEOF != 0)
	default:
		c.forget()
		return nil
	}
}

// poke takes a frame for a command's process.
func (l *link) poke(f wire.Frame) error {
	l.s.mu.Lock()
	c := l.s.byNumber[f.Number]
	l.s.mu.Unlock()
	switch {
	case f.Type == wire.TypeSignal && (f.Arg == 0 || f.Arg > 64):
		return violation("signal %d", f.Arg)
	case c == nil:
	case f.Type == wire.TypeSignal:
		c.signal(int(f.Arg), f.Flags&wire.FlagWhole != 0)
	default:
		c.resize(uint16(f.Arg>>16), uint16(f.Arg))
	}
	return nil
}

// start collects the parts of a start and begins it.
func (l *link) start(f wire.Frame) error {
	if len(l.part)+len(f.Payload) > wire.MaxStart {
		return violation("start message above %d bytes", wire.MaxStart)
	}
	l.partOf = f.Number
	l.part = append(l.part, f.Payload...)
	if f.Flags&wire.FlagMore != 0 {
		if l.part == nil {
			return violation("empty part of a start")
		}
		return nil
	}
	body := l.part
	l.part = nil
	var spec wire.Start
	if err := json.Unmarshal(body, &spec); err != nil {
		return violation("start message: %v", err)
	}
	if spec.ID == "" || len(spec.ID) > 64 || len(spec.Argv) == 0 || spec.Groups < 0 || spec.Groups > wire.MaxGroups {
		return violation("start of %q is malformed", spec.ID[:min(len(spec.ID), 64)])
	}
	groups, err := l.files.take(spec.Groups)
	if err != nil {
		return err
	}
	return l.s.begin(l, f.Number, spec, groups)
}
