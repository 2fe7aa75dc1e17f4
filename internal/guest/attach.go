package guest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"io"
	"time"

	"sandboxd"
	"sandboxd/internal/guest/wire"
)

// Attach makes a link to the init on conn, which it owns from then on: also when
// it fails, conn is closed. It returns when the init has answered and was told
// what the host has. ClassUnsupported: no common version; ClassForbidden: one side
// does not know the other's secret; ClassUnavailable: no answer until ctx ends, or
// not the protocol.
func Attach(ctx context.Context, conn io.ReadWriteCloser, opts Options) (*Link, error) {
	if opts.MaxVersion == 0 {
		opts.MinVersion, opts.MaxVersion = wire.MinVersion, wire.MaxVersion
	}
	if c, ok := conn.(sandboxd.Continued); ok && c.Continued() {
		opts.Flush = true
	}
	var raw [8]byte
	if _, err := rand.Read(raw[:]); err != nil {
		conn.Close()
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "no randomness")
	}
	l := &Link{
		conn: conn, opts: opts, nonce: binary.LittleEndian.Uint64(raw[:]),
		writing: make(chan struct{}, 1), replies: make(chan wire.Frame, replies),
		broken: make(chan struct{}), done: make(chan struct{}),
		byNumber: map[uint32]*command{}, byID: map[string]*command{}, pings: map[uint64]chan struct{}{}, asked: map[uint64]chan sandboxd.PortList{},
	}
	l.w = wire.NewWriter(conn, l.nonce)
	l.streams = wire.NewStreams(true, wire.StreamLimits{Local: wire.MaxDials, Remote: wire.MaxServices},
		func(f wire.Frame) error { return l.send(context.Background(), nil, f) })
	l.stall = time.AfterFunc(writeStall, func() {
		l.fail(sandboxd.Errorf(sandboxd.ClassUnavailable, "the init does not read"))
	})
	l.stall.Stop()
	l.later = time.AfterFunc(ackDelay, l.ackLate)
	l.later.Stop()

	stop := context.AfterFunc(ctx, func() {
		l.fail(sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the init did not answer"))
	})
	r := wire.NewReader(conn)
	if err := l.shake(r); err != nil {
		stop()
		l.fail(err)
		return nil, l.Err()
	}
	l.work.Go(func() { l.read(r) })
	l.work.Go(l.replier)
	go func() {
		<-l.broken
		l.work.Wait()
		close(l.done)
	}()
	if err := l.want(); err != nil {
		stop()
		l.fail(err)
		return nil, l.Err()
	}
	if !stop() {
		<-l.broken
		return nil, l.Err()
	}
	return l, nil
}

// shake sends Sync and reads up to KnownEnd, dropping what is of other links.
func (l *Link) shake(r *wire.Reader) error {
	// The write has its own goroutine: an init, or a connection without a buffer,
	// may have to write before it reads.
	sent := make(chan error, 1)
	go func() { sent <- l.sync() }()
	err := l.answer(r)
	if err != nil {
		// The write may be what failed, and closes the connection under the read.
		l.fail(err)
	}
	if werr := <-sent; werr != nil && err == nil {
		err = werr
	}
	return err
}

func (l *Link) sync() error {
	body, err := json.Marshal(wire.Sync{
		Min: l.opts.MinVersion, Max: l.opts.MaxVersion, Flush: l.opts.Flush,
		Proof: wire.Proof(l.opts.Nonce, wire.SideHost, l.nonce), Listen: l.opts.Listen,
	})
	if err != nil {
		return err
	}
	if l.opts.Flush {
		if err := l.w.Preamble(); err != nil {
			l.fail(err)
			return err
		}
	}
	if err := l.w.Send(wire.Frame{Type: wire.TypeSync, Payload: body}); err != nil {
		l.fail(err)
		return err
	}
	return nil
}

func (l *Link) answer(r *wire.Reader) error {
	acked := false
	skipped := int64(0)
	for {
		f, err := r.Next()
		if err != nil {
			return err
		}
		if f.Nonce != l.nonce {
			if err := l.useless(f); err != nil {
				return err
			}
			continue
		}
		if acked && r.Skipped() != skipped {
			return violation("bytes that are no frame")
		}
		switch {
		case f.Type == wire.TypeSyncAck && !acked:
			acked, skipped = true, r.Skipped()
			if err := l.checkAck(f.Payload); err != nil {
				return err
			}
		case f.Type == wire.TypeSyncNack && !acked:
			return l.refused(f.Payload)
		case f.Type == wire.TypeKnown && acked:
			if err := l.known(f); err != nil {
				return err
			}
		case f.Type == wire.TypeKnownEnd && acked:
			return nil
		default:
			return violation("frame type %d while the link is made", f.Type)
		}
	}
}

func (l *Link) checkAck(body []byte) error {
	var ack wire.SyncAck
	if err := json.Unmarshal(body, &ack); err != nil {
		return violation("malformed answer to sync")
	}
	if !wire.Proves(ack.Proof, l.opts.Nonce, wire.SideInit, l.nonce) {
		return sandboxd.Errorf(sandboxd.ClassForbidden, "what answers is not this sandbox's init: it does not know the secret")
	}
	if ack.Version < l.opts.MinVersion || ack.Version > l.opts.MaxVersion {
		return violation("the init chose version %d", ack.Version)
	}
	l.version = ack.Version
	return nil
}

func (l *Link) refused(body []byte) error {
	var nack wire.SyncNack
	if err := json.Unmarshal(body, &nack); err != nil {
		return violation("malformed answer to sync")
	}
	if nack.Max != 0 {
		return sandboxd.Errorf(sandboxd.ClassUnsupported, "the init speaks guest protocol versions %d to %d, this host %d to %d",
			nack.Min, nack.Max, l.opts.MinVersion, l.opts.MaxVersion).
			WithHint("stop the sandbox and start it again, so that it gets this version's init")
	}
	return sandboxd.Errorf(sandboxd.ClassForbidden, "the init refused the link: %.100q", nack.Reason)
}

// known notes a command that the init reports.
func (l *Link) known(f wire.Frame) error {
	k, err := wire.ParseKnown(f.Payload)
	if err != nil {
		return violation("%v", err)
	}
	switch {
	case !sandboxd.ValidCommandID(k.ID):
		return violation("malformed command id")
	case f.Arg > wire.MaxOffset || int64(f.Arg) < k.Base || k.Credit > wire.StdinWindow || f.Number > maxNumber:
		return violation("impossible state of command %q", k.ID)
	case l.byNumber[f.Number] != nil || l.byID[k.ID] != nil:
		return violation("command %q reported twice", k.ID)
	case len(l.byNumber) >= wire.MaxCommands:
		return violation("more than %d commands", wire.MaxCommands)
	}
	c := newCommand(l, f.Number, k.ID)
	c.base, c.limit = k.Base, int64(f.Arg)
	c.credit = int(k.Credit)
	c.inputOpen = f.Flags&wire.FlagStdin != 0
	l.byNumber[c.number], l.byID[c.id] = c, c
	l.last = max(l.last, c.number)
	l.reported = append(l.reported, CommandState{ID: k.ID, Next: int64(f.Arg), Ended: f.Flags&wire.FlagEnded != 0})
	return nil
}

// want tells the init from where to send.
func (l *Link) want() error {
	for _, state := range l.reported {
		l.mu.Lock()
		c := l.byID[state.ID]
		l.mu.Unlock()
		if c == nil {
			continue
		}
		have := c.base
		if l.opts.Have != nil {
			var ok bool
			if have, ok = l.opts.Have(c.id); !ok {
				continue
			}
		}
		if have < c.base || have > c.limit {
			return violation("the init holds output %d to %d of command %q, the host has %d", c.base, c.limit, c.id, have)
		}
		l.mu.Lock()
		c.next, c.kept, c.acked, c.flowing = have, have, have, true
		l.mu.Unlock()
		if err := l.send(context.Background(), nil, wire.Frame{Type: wire.TypeHave, Number: c.number, Arg: uint64(have)}); err != nil {
			return err
		}
	}
	return nil
}
