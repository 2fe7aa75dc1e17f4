package builtin

import (
	"fmt"
	"net"
	"sync"
)

// Loopback is a network of one sandbox's own, in memory: what its init listens on
// and its programs connect to. Its methods are safe for concurrent use.
type Loopback struct {
	mu    sync.Mutex
	ports map[uint16]*port
}

// NewLoopback makes one without listeners.
func NewLoopback() *Loopback { return &Loopback{ports: map[uint16]*port{}} }

// Listen takes a port; it is inside.Options.Listen.
func (l *Loopback) Listen(number uint16) (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ports[number] != nil {
		return nil, fmt.Errorf("port %d is taken", number)
	}
	p := &port{number: number, conns: make(chan net.Conn), closed: make(chan struct{})}
	l.ports[number] = p
	return p, nil
}

// Dial connects to a port that is listened on.
func (l *Loopback) Dial(number uint16) (net.Conn, error) {
	l.mu.Lock()
	p := l.ports[number]
	l.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("nothing listens on port %d", number)
	}
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, fmt.Errorf("port %d was closed", number)
	}
}

// port is a net.Listener.
type port struct {
	number uint16
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *port) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *port) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *port) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(p.number)} }
