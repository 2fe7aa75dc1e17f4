package builtin

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"sandboxd/internal/guest/wire"
)

// Loopback is the network of one environment: ports of its own, behind which are
// real sockets of this machine on ports that the kernel chose. Only `listen` puts
// something there:
//
//	listen PORT MODE [ADDRESS]
//
// It prints "listening" and serves each connection until it is killed, by MODE:
// echo sends back what comes, greet sends "hello", ends its side and prints how
// many bytes came and how they ended, flood sends without end, deaf reads nothing,
// cut sends "part", waits for a byte and resets.
//
// What the init listens on is there too: Connect reaches it as programs do, Dial
// does not.
type Loopback struct {
	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	own       map[uint16]net.Listener // of the init
}

type listener struct {
	net.Listener
	command string
}

// NewLoopback makes one on which nothing listens.
func NewLoopback() *Loopback {
	return &Loopback{listeners: map[netip.AddrPort]*listener{}, own: map[uint16]net.Listener{}}
}

// Listen is inside.Options.Listen.
func (n *Loopback) Listen(port uint16) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.own[port] != nil {
		return nil, fmt.Errorf("port %d is in use", port)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		n.own[port] = l
	}
	return l, err
}

// Connect opens a connection to what the init listens on.
func (n *Loopback) Connect(port uint16) (net.Conn, error) {
	n.mu.Lock()
	l := n.own[port]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("nothing listens on port %d", port)
	}
	return net.Dial("tcp", l.Addr().String())
}

// Dial is inside.Options.Dial: 127.0.0.1, then ::1.
func (n *Loopback) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	for _, address := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
		n.mu.Lock()
		l := n.listeners[netip.AddrPortFrom(netip.MustParseAddr(address), port)]
		n.mu.Unlock()
		if l != nil {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", l.Addr().String())
		}
	}
	return nil, fmt.Errorf("nothing listens on port %d", port)
}

// Ports is inside.Options.Ports.
func (n *Loopback) Ports() wire.PortList {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := wire.PortList{Ports: []wire.Port{}}
	for addr, l := range n.listeners {
		list.Ports = append(list.Ports, wire.Port{Port: int(addr.Port()), Address: addr.Addr().String(), Name: "listen", Command: l.command})
	}
	slices.SortFunc(list.Ports, func(a, b wire.Port) int { return a.Port - b.Port })
	return list
}

func (n *Loopback) listen(addr netip.AddrPort, command string) (*listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, fmt.Errorf("%s is in use", addr)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &listener{ln, command}
	n.listeners[addr] = l
	return l, nil
}

func (n *Loopback) remove(addr netip.AddrPort) {
	n.mu.Lock()
	delete(n.listeners, addr)
	n.mu.Unlock()
}

func listen(p *process, args []string) int {
	if len(args) < 2 || p.loopback == nil {
		return p.usage("listen: on which port, how, and is there a network?")
	}
	port, err := strconv.ParseUint(args[0], 10, 16)
	serve := modes[args[1]]
	address := netip.MustParseAddr("127.0.0.1")
	if err == nil && len(args) > 2 {
		address, err = netip.ParseAddr(args[2])
	}
	if err != nil || serve == nil {
		return p.usage("listen: not a port, mode or address")
	}
	addr := netip.AddrPortFrom(address, uint16(port))
	l, err := p.loopback.listen(addr, p.spec.ID)
	if err != nil {
		return p.usage("listen: " + err.Error())
	}
	p.print(p.outW, "listening\n")
	var conns conns
	go func() {
		<-p.killed
		p.loopback.remove(addr)
		l.Close()
		conns.close()
	}()
	var serving sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil {
			break
		}
		serving.Go(func() {
			if conns.add(conn) {
				serve(p, conn.(*net.TCPConn))
			}
			conn.Close()
		})
	}
	serving.Wait()
	return 0
}

// conns are the open connections of a listen; a process that is killed has none.
type conns struct {
	mu     sync.Mutex
	list   []net.Conn
	closed bool
}

func (c *conns) add(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, conn)
	return !c.closed
}

func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.list {
		conn.Close()
	}
}

var modes = map[string]func(p *process, conn *net.TCPConn){
	"echo": func(_ *process, conn *net.TCPConn) { _, _ = io.Copy(conn, struct{ io.Reader }{conn}) },
	"greet": func(p *process, conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "hello")
		_ = conn.CloseWrite()
		n, err := io.Copy(io.Discard, conn)
		text := "got %d\n"
		if err != nil {
			text = "reset after %d\n"
		}
		p.print(p.outW, fmt.Sprintf(text, n))
	},
	"flood": func(_ *process, conn *net.TCPConn) {
		zeros := make([]byte, 32<<10)
		for {
			if _, err := conn.Write(zeros); err != nil {
				return
			}
		}
	},
	"deaf": func(p *process, _ *net.TCPConn) { <-p.killed },
	"cut": func(_ *process, conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "part")
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.SetLinger(0)
	},
}
