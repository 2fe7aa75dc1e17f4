package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of one connection out of a sandbox.
const (
	headerTime   = 30 * time.Second // for a request's head to come
	headerBytes  = 64 << 10         // of a request or a response
	waitTime     = time.Minute      // for the next request
	dialTime     = 10 * time.Second // to resolve and connect
	drainTime    = time.Second / 2  // for the body of a request that is not passed on
	responseTime = 5 * time.Minute  // for a response to begin
	silence      = 10 * time.Minute // with no byte either way, or none that a sandbox takes
)

// Config of a Proxy; the zero value is one without exceptions.
type Config struct {
	// AllowAddresses are let through although they are not public.
	AllowAddresses []Rule
	// Upstream is a proxy of the operator that makes every connection, http or
	// https, with the user and password it wants; nil for none.
	Upstream *url.URL
	// Roots are what an https Upstream is verified with; nil for the machine's.
	Roots *x509.CertPool
	// Resolve, Dial, Interfaces and Now are the machine's when nil.
	Resolve    func(ctx context.Context, name string) ([]netip.Addr, error)
	Dial       func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	Interfaces func() ([]net.Addr, error)
	Now        func() time.Time
}

// Proxy serves the gates of one host. Its methods are safe for concurrent use.
type Proxy struct {
	cfg      Config
	tls      *tls.Config
	server   *http.Server
	incoming listener

	mu        sync.Mutex
	protected []netip.AddrPort
}

// silent drops what the standard library would log: a sandbox must not write to
// the server's log.
var silent = log.New(io.Discard, "", 0)

// New makes a proxy. Close it.
func New(cfg Config) *Proxy {
	if cfg.Resolve == nil {
		cfg.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			// The dot keeps the machine's search list from making another name of it. A
			// name without any dot is one of that list, or of the machine's own hosts.
			if strings.Contains(name, ".") {
				name += "."
			}
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr.String())
		}
	}
	if cfg.Interfaces == nil {
		cfg.Interfaces = net.InterfaceAddrs
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	p := &Proxy{cfg: cfg, tls: &tls.Config{RootCAs: cfg.Roots}, incoming: listener{conns: make(chan net.Conn), closed: make(chan struct{})}}
	p.server = &http.Server{
		Handler: http.HandlerFunc(serveHTTP), ErrorLog: silent,
		ReadHeaderTimeout: headerTime, IdleTimeout: waitTime, MaxHeaderBytes: headerBytes,
		// Whose connection it is travels with it: a sandbox is known by its stream.
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, gateKey{}, conn.(*streamConn).gate)
		},
	}
	go p.server.Serve(&p.incoming) // ends with Close
	return p
}

// HasUpstream says whether it is a proxy of the operator that makes the connections.
func (p *Proxy) HasUpstream() bool { return p.cfg.Upstream != nil }

type gateKey struct{}

// Close ends every connection.
func (p *Proxy) Close() error { return p.server.Close() }

// Protect puts an address of the server itself out of every sandbox's reach,
// whatever the operator lets through. An unspecified one is every address of the
// machine.
func (p *Proxy) Protect(addr netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.protected = append(p.protected, netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()))
}

// own says whether something of the server listens at an address.
func (p *Proxy) own(at netip.AddrPort) bool {
	p.mu.Lock()
	protected := slices.Clone(p.protected)
	p.mu.Unlock()
	for _, own := range protected {
		if own.Port() != at.Port() {
			continue
		}
		if own.Addr() == at.Addr() || at.Addr().IsUnspecified() ||
			own.Addr().IsUnspecified() && (at.Addr().IsLoopback() || p.hostHas(at.Addr())) {
			return true
		}
	}
	return false
}

// hostHas says whether an interface of this machine has an address. When that
// cannot be found out, it has.
func (p *Proxy) hostHas(addr netip.Addr) bool {
	all, err := p.cfg.Interfaces()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == addr
	})
}

// Stream is a connection out of a sandbox.
type Stream interface {
	io.ReadWriteCloser
	CloseWrite() error
	// Reset is Close that tells the sandbox that there was more to come.
	Reset() error
	// Done is closed when the sandbox or its link gave the stream up.
	Done() <-chan struct{}
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// Serve answers the requests that come on a stream and returns when it is closed.
// With too many at once it waits.
func (g *Gate) Serve(s Stream) {
	conn := &streamConn{Stream: s, gate: g, done: make(chan struct{})}
	select {
	case g.working <- struct{}{}:
		defer func() { <-g.working }()
	case <-s.Done():
		conn.Close()
		return
	case <-g.proxy.incoming.closed:
		conn.Close()
		return
	}
	select {
	case g.proxy.incoming.conns <- conn:
		<-conn.done
	case <-g.proxy.incoming.closed:
		conn.Close()
	}
}

// streamConn makes a net.Conn of a stream.
type streamConn struct {
	Stream
	gate *Gate
	once sync.Once
	done chan struct{}
}

// Close ends the stream.
func (c *streamConn) Close() error {
	err := c.Stream.Close()
	c.once.Do(func() { close(c.done) })
	return err
}

// Reset ends it as what broke off.
func (c *streamConn) Reset() error {
	err := c.Stream.Reset()
	c.once.Do(func() { close(c.done) })
	return err
}

// Write is net.Conn's. A sandbox that does not read holds nothing forever.
func (c *streamConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(silence)); err != nil {
		return 0, err
	}
	return c.Stream.Write(b)
}

// SetDeadline is net.Conn's.
func (c *streamConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// LocalAddr is net.Conn's.
func (c *streamConn) LocalAddr() net.Addr { return streamAddr{} }

// RemoteAddr is net.Conn's.
func (c *streamConn) RemoteAddr() net.Addr { return streamAddr{} }

type streamAddr struct{}

func (streamAddr) Network() string { return "sandbox" }
func (streamAddr) String() string  { return "sandbox" }

// listener hands streams to the HTTP server.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept is net.Listener's.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close is net.Listener's.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is net.Listener's.
func (l *listener) Addr() net.Addr { return streamAddr{} }
