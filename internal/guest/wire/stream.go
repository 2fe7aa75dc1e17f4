package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ErrProtocol is wrapped by every fault of the other side that ends a link.
var ErrProtocol = errors.New("protocol violation")

// Refused is an open that the other side declined; the text is why.
type Refused struct{ Text string }

func (e *Refused) Error() string { return e.Text }

// Streams are the byte streams of one link. Each direction of each stream sends
// only what the reader granted, so one that is not read stalls no other.
type Streams struct {
	send   func(Frame) error
	local  uint32 // parity of the numbers made here: 0 host, 1 init
	most   int    // streams opened here at once
	remote int    // streams opened by the other side at once

	mu     sync.Mutex
	byID   map[uint32]*Stream
	opened [2]int // by parity
	next   uint32
	err    error
}

// StreamLimits bound a link's streams by who opened them.
type StreamLimits struct{ Local, Remote int }

// NewStreams makes the streams of a link. host says which side this is; send
// writes a frame and may block.
func NewStreams(host bool, limits StreamLimits, send func(Frame) error) *Streams {
	s := &Streams{send: send, most: limits.Local, remote: limits.Remote, byID: map[uint32]*Stream{}}
	if !host {
		s.local = 1
	}
	s.next = 2 + s.local
	return s
}

// ErrTooMany is an open beyond the bound of this side.
var ErrTooMany = errors.New("too many open streams")

// Open opens a stream with f, a TypeDial or TypeService without its number, and
// waits for the answer. A refusal is *Refused.
func (s *Streams) Open(ctx context.Context, f Frame) (*Stream, error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, s.err
	}
	if s.opened[s.local] >= s.most {
		s.mu.Unlock()
		return nil, ErrTooMany
	}
	f.Number = s.next
	s.next += 2
	st := s.add(f.Number)
	s.mu.Unlock()
	if err := s.send(f); err != nil {
		s.drop(st, err)
		return nil, err
	}
	select {
	case <-st.answered:
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil { // also where an answer came with it
		st.Close()
		return nil, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.failed != nil {
		return nil, st.failed
	}
	return st, nil
}

// Accept registers a stream that the other side opened. ErrTooMany asks for a
// refusal; an error that is ErrProtocol ends the link.
func (s *Streams) Accept(number uint32) (*Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number&1 == s.local || s.byID[number] != nil {
		return nil, fmt.Errorf("%w: stream number %d cannot be opened", ErrProtocol, number)
	}
	if s.err != nil {
		return nil, s.err
	}
	if s.opened[1-s.local] >= s.remote {
		return nil, ErrTooMany
	}
	st := s.add(number)
	close(st.answered)
	return st, nil
}

func (s *Streams) add(number uint32) *Stream {
	st := &Stream{owner: s, number: number, answered: make(chan struct{}), done: make(chan struct{}), credit: StreamWindow, granted: StreamWindow}
	st.cond.L = &st.mu
	s.byID[number] = st
	s.opened[number&1]++
	return st
}

func (s *Streams) remove(st *Stream) {
	s.mu.Lock()
	if s.byID[st.number] == st {
		delete(s.byID, st.number)
		s.opened[st.number&1]--
	}
	s.mu.Unlock()
}

func (s *Streams) drop(st *Stream, err error) {
	s.remove(st)
	st.fail(err)
}

// Fail ends every stream with err, as the link's end does.
func (s *Streams) Fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	all := s.byID
	s.byID = map[uint32]*Stream{}
	s.opened = [2]int{}
	s.mu.Unlock()
	for _, st := range all {
		st.fail(err)
	}
}

// Handle takes a stream frame that is not an open. It never blocks. An error ends
// the link. A number that is not open is one that closed here: its late frames
// are dropped.
func (s *Streams) Handle(f Frame) error {
	s.mu.Lock()
	st := s.byID[f.Number]
	s.mu.Unlock()
	if st == nil {
		return nil
	}
	switch f.Type {
	case TypeOpened:
		return st.answer(nil)
	case TypeRefused:
		s.remove(st)
		return st.answer(&Refused{Text: clip(string(f.Payload), 256)})
	case TypeStreamData:
		return st.data(f.Payload)
	case TypeStreamCredit:
		return st.addCredit(f.Arg)
	case TypeStreamEnd:
		if st.ended() {
			s.remove(st)
		}
	case TypeStreamClose:
		st.givenUp(f.Flags&FlagReset != 0)
		s.remove(st)
	default:
		return fmt.Errorf("%w: frame type %d", ErrProtocol, f.Type)
	}
	return nil
}

func clip(s string, most int) string { return s[:min(len(s), most)] }

// Stream is one byte stream. Reads, writes and closes may run at the same time.
type Stream struct {
	owner    *Streams
	number   uint32
	answered chan struct{}

	writing sync.Mutex // one writer at a time keeps writes whole

	mu      sync.Mutex
	cond    sync.Cond
	buf     []byte
	granted int   // what the other side may still send
	due     int   // read here and not granted again yet
	credit  int   // what may still be sent
	eof     bool  // the other side sends no more
	deaf    bool  // the other side reads no more
	sentEnd bool  // this side sends no more
	cut     bool  // the other side had more to send
	closed  bool  // by Close
	failed  error // link end or refusal
	over    bool  // done is closed
	done    chan struct{}

	readBy, writeBy deadline
}

// ErrReset is the end of a stream whose other side gave it up before it had sent
// all: what was read is not the whole.
var ErrReset = errors.New("the other side reset the stream")

// Done is closed when the stream is given up as a whole, by either side or with
// its link. What came before can still be read.
func (st *Stream) Done() <-chan struct{} { return st.done }

// finish closes done. Under st.mu.
func (st *Stream) finish() {
	if !st.over {
		st.over = true
		close(st.done)
	}
	st.cond.Broadcast()
}

// Number names the stream in frames.
func (st *Stream) Number() uint32 { return st.number }

func (st *Stream) answer(err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	select {
	case <-st.answered:
		return fmt.Errorf("%w: stream %d answered twice", ErrProtocol, st.number)
	default:
	}
	st.failed = err
	close(st.answered)
	st.cond.Broadcast()
	return nil
}

func (st *Stream) fail(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.failed == nil {
		st.failed = err
	}
	select {
	case <-st.answered:
	default:
		close(st.answered)
	}
	st.finish()
}

func (st *Stream) data(b []byte) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(b) > st.granted || st.eof {
		return fmt.Errorf("%w: stream %d sent more than it was granted", ErrProtocol, st.number)
	}
	st.granted -= len(b)
	st.buf = append(st.buf, b...)
	st.cond.Broadcast()
	return nil
}

func (st *Stream) addCredit(n uint64) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if n > StreamWindow || st.credit+int(n) > StreamWindow {
		return fmt.Errorf("%w: stream %d granted more than its window", ErrProtocol, st.number)
	}
	st.credit += int(n)
	st.cond.Broadcast()
	return nil
}

// ended notes the other side's end and says whether both have ended.
func (st *Stream) ended() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.eof = true
	st.cond.Broadcast()
	return st.sentEnd
}

// givenUp notes that the other side neither sends nor reads any more. Instead of an
// answer it is a refusal.
func (st *Stream) givenUp(reset bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	select {
	case <-st.answered:
	default:
		st.failed = &Refused{Text: "given up before it was opened"}
		close(st.answered)
	}
	st.cut = reset && !st.eof
	st.eof, st.deaf = true, true
	st.finish()
}

// Read implements io.Reader. What came before the other side's end is read first.
func (st *Stream) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	st.mu.Lock()
	for len(st.buf) == 0 && !st.eof && !st.closed && st.failed == nil && !st.readBy.passed {
		st.cond.Wait()
	}
	if st.closed {
		st.mu.Unlock()
		return 0, io.ErrClosedPipe
	}
	if st.readBy.passed {
		st.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	}
	if len(st.buf) == 0 {
		err := st.failed
		switch {
		case st.cut:
			err = ErrReset
		case err == nil || st.eof:
			err = io.EOF
		}
		st.mu.Unlock()
		return 0, err
	}
	n := copy(b, st.buf)
	st.buf = st.buf[n:]
	if len(st.buf) == 0 {
		st.buf = nil
	}
	st.due += n
	grant := 0
	// Granting in halves of the window keeps credit from costing a frame a read.
	if st.due >= StreamWindow/2 && !st.eof {
		grant, st.due = st.due, 0
		st.granted += grant
	}
	st.mu.Unlock()
	if grant > 0 {
		// A link that broke shows at the next read.
		_ = st.owner.send(Frame{Type: TypeStreamCredit, Number: st.number, Arg: uint64(grant)})
	}
	return n, nil
}

// Write implements io.Writer. It returns when all is sent, which waits for credit.
func (st *Stream) Write(b []byte) (int, error) {
	st.writing.Lock()
	defer st.writing.Unlock()
	done := 0
	for done < len(b) {
		st.mu.Lock()
		for st.credit == 0 && st.writable() == nil {
			st.cond.Wait()
		}
		if err := st.writable(); err != nil {
			st.mu.Unlock()
			return done, err
		}
		n := min(len(b)-done, st.credit, MaxPayload)
		st.credit -= n
		st.mu.Unlock()
		if err := st.owner.send(Frame{Type: TypeStreamData, Number: st.number, Payload: b[done : done+n]}); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

func (st *Stream) writable() error {
	switch {
	case st.failed != nil:
		return st.failed
	case st.deaf, st.sentEnd, st.closed:
		return io.ErrClosedPipe
	case st.writeBy.passed:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// CloseWrite ends this side's data; the other side's still comes.
func (st *Stream) CloseWrite() error {
	st.writing.Lock()
	defer st.writing.Unlock()
	st.mu.Lock()
	if st.sentEnd || st.closed || st.deaf || st.failed != nil {
		st.mu.Unlock()
		return nil
	}
	st.sentEnd = true
	both := st.eof
	st.mu.Unlock()
	err := st.owner.send(Frame{Type: TypeStreamEnd, Number: st.number})
	if both {
		st.owner.remove(st)
	}
	return err
}

// Close gives the stream up both ways; what was written before still arrives.
func (st *Stream) Close() error { return st.giveUp(0) }

// Reset is Close that tells the other side that there was more to send.
func (st *Stream) Reset() error { return st.giveUp(FlagReset) }

func (st *Stream) giveUp(flags uint8) error {
	st.mu.Lock()
	if st.closed {
		st.mu.Unlock()
		return nil
	}
	st.closed = true
	st.buf = nil
	silent := st.deaf || st.failed != nil || (st.sentEnd && st.eof)
	st.finish()
	st.mu.Unlock()
	st.owner.remove(st)
	if silent {
		return nil
	}
	return st.owner.send(Frame{Type: TypeStreamClose, Flags: flags, Number: st.number})
}

// Forget drops a stream that was accepted and then refused; nothing is sent.
func (s *Streams) Forget(st *Stream) { s.drop(st, io.ErrClosedPipe) }
