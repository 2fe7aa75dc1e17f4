package inside

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"sandboxd/internal/guest/wire"
)

// Options of a Server; the zero value works.
type Options struct {
	// Nonce is the secret that a host must know and that this end proves to know;
	// empty means none.
	Nonce string
	// MinVersion and MaxVersion override what is spoken.
	MinVersion, MaxVersion int
	// Dial opens a port of the sandbox; nil dials 127.0.0.1, then ::1, and never a
	// port on which this process listens itself. The connection has CloseWrite.
	Dial func(ctx context.Context, port uint16) (net.Conn, error)
	// Listen takes a port of the sandbox's loopback; nil is 127.0.0.1.
	Listen func(port uint16) (net.Listener, error)
	// Ports lists what listens in the sandbox; nil asks the kernel.
	Ports func() wire.PortList
}

// Server is the sandbox's end. It outlives its links: commands run and output is
// held while there is none. Methods are safe for concurrent use.
type Server struct {
	spawner Spawner
	opts    Options

	mu       sync.Mutex
	byNumber map[uint32]*command
	byID     map[string]*command
	held     int           // bytes of output kept, of all commands
	room     chan struct{} // closed and replaced when held sinks
	link     *link         // nil while no host is attached
	linked   chan struct{} // closed and replaced when link is set
	serving  io.Closer     // the newest connection
	closed   bool
	running  sync.WaitGroup // commands
	leaders  leaders
	ports    map[uint16]net.Listener // this end's own, by number

	looking sync.Mutex // held while ports are listed: one look at a time is enough
}

// New makes a server that starts commands with spawner.
func New(spawner Spawner, opts Options) *Server {
	if opts.MaxVersion == 0 {
		opts.MinVersion, opts.MaxVersion = wire.MinVersion, wire.MaxVersion
	}
	if opts.Dial == nil {
		opts.Dial = dialLoopback
	}
	if opts.Listen == nil {
		opts.Listen = listenLoopback
	}
	s := &Server{
		spawner: spawner, opts: opts, byNumber: map[uint32]*command{}, byID: map[string]*command{},
		room: make(chan struct{}), linked: make(chan struct{}), ports: map[uint16]net.Listener{},
	}
	if s.opts.Ports == nil {
		s.opts.Ports = s.listening
	}
	return s
}

// ErrClosed is what Serve returns after Close.
var ErrClosed = errors.New("inside: server closed")

// Serve speaks with the host on conn until the connection ends, and closes it. A
// host may make several links on it one after the other, as it must where the
// connection outlives the host. A newer Serve ends the older.
func (s *Server) Serve(conn io.ReadWriteCloser) error {
	defer conn.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	older := s.serving
	s.serving = conn
	s.mu.Unlock()
	if older != nil {
		older.Close()
	}
	files := newDescriptors(conn)
	defer files.close()
	r := wire.NewReader(files)
	var l *link
	defer func() { l.end(errors.New("connection ended")) }()
	skipped := int64(0)
	for {
		f, err := r.Next()
		if err != nil {
			return err
		}
		if f.Type == wire.TypeSync {
			l.end(errors.New("a newer link"))
			files.drop()
			skipped = r.Skipped()
			if l, err = s.accept(conn, files, f); err != nil {
				return err
			}
			continue
		}
		if l == nil || f.Nonce != l.nonce {
			continue // of a host that is dead
		}
		if r.Skipped() != skipped {
			err = wire.ErrProtocol
		} else {
			err = l.handle(f)
		}
		if err != nil {
			l.reset(err)
			l = nil
		}
	}
}

// Close ends every command and the link, and waits for the commands.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.serving != nil {
		s.serving.Close()
	}
	all := make([]*command, 0, len(s.byNumber))
	for _, c := range s.byNumber {
		all = append(all, c)
	}
	for _, l := range s.ports {
		l.Close()
	}
	s.mu.Unlock()
	for _, c := range all {
		c.abandon()
	}
	s.running.Wait()
	return nil
}

// OpenService opens a stream to a named service of the host, waiting for a link,
// and for another one when that ends before the answer. It ends with the link. A host that does not offer it is *wire.Refused.
func (s *Server) OpenService(ctx context.Context, name string) (*wire.Stream, error) {
	for {
		s.mu.Lock()
		l, linked, closed := s.link, s.linked, s.closed
		s.mu.Unlock()
		if closed {
			return nil, ErrClosed
		}
		if l != nil && l.ctx.Err() == nil {
			st, err := l.streams.Open(ctx, wire.Frame{Type: wire.TypeService, Payload: []byte(name)})
			var refused *wire.Refused
			if err == nil || errors.As(err, &refused) || errors.Is(err, wire.ErrTooMany) {
				return st, err
			}
			// The connection broke, and perhaps the reader has not seen it yet.
			select {
			case <-l.ctx.Done():
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		select {
		case <-linked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// freed tells the outputs that wait for room to look again. Under mu.
func (s *Server) freed(n int) {
	s.held -= n
	close(s.room)
	s.room = make(chan struct{})
}
