package inside

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/wire"
	"sandboxd/internal/relay"
)

// dialTimeout bounds the wait for a program that listens and does not accept.
const dialTimeout = 5 * time.Second

// dial forwards a port. It never blocks the reader.
func (l *link) dial(f wire.Frame) error {
	if f.Arg == 0 || f.Arg > 65535 {
		return violation("port %d", f.Arg)
	}
	st, err := l.streams.Accept(f.Number)
	if errors.Is(err, wire.ErrTooMany) {
		return l.w.Send(wire.Frame{Type: wire.TypeRefused, Number: f.Number, Payload: []byte(err.Error())})
	}
	if err != nil {
		return err
	}
	go l.forward(st, uint16(f.Arg))
	return nil
}

func (l *link) forward(st *wire.Stream, port uint16) {
	ctx, cancel := context.WithTimeout(l.ctx, dialTimeout)
	defer cancel()
	conn, err := l.s.opts.Dial(ctx, port)
	if err != nil {
		text := err.Error()
		l.streams.Forget(st)
		_ = l.w.Send(wire.Frame{Type: wire.TypeRefused, Number: st.Number(), Payload: []byte(text[:min(len(text), 256)])})
		return
	}
	half, ok := conn.(relay.Conn)
	if !ok || l.w.Send(wire.Frame{Type: wire.TypeOpened, Number: st.Number()}) != nil {
		conn.Close()
		st.Close()
		return
	}
	relay.Join(st, half)
}

// errOwn is a dial of a port that is not the sandbox's.
var errOwn = errors.New("nothing of the sandbox listens there")

// dialLoopback opens a port of this machine's loopback, never one of this process.
func dialLoopback(ctx context.Context, port uint16) (net.Conn, error) {
	own, err := ownPorts()
	if err != nil {
		return nil, err
	}
	if own[int(port)] {
		return nil, errOwn
	}
	var d net.Dialer
	p := strconv.Itoa(int(port))
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", p))
	if err == nil {
		return conn, nil
	}
	if conn, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", p)); err6 == nil {
		return conn, nil
	}
	return nil, err
}

// ownPorts are the ports on which this process listens. They are found by looking
// at its descriptors and not kept in a list, so that no listener can be forgotten
// in it.
func ownPorts() (map[int]bool, error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	own := map[int]bool{}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// What is no socket, or was closed meanwhile, answers with an error.
		if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 {
			continue
		}
		addr, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		switch addr := addr.(type) {
		case *unix.SockaddrInet4:
			own[addr.Port] = true
		case *unix.SockaddrInet6:
			own[addr.Port] = true
		}
	}
	return own, nil
}

// ports answers what listens.
func (l *link) ports(number uint64) {
	l.s.looking.Lock()
	list := l.s.opts.Ports()
	l.s.looking.Unlock()
	if len(list.Ports) > wire.MaxPorts {
		list.Ports, list.Incomplete = list.Ports[:wire.MaxPorts], true
	}
	body, err := json.Marshal(list)
	if err != nil || len(body) > wire.MaxPayload {
		// Numbers of plain fields within their bounds always fit.
		body = encode(wire.PortList{Incomplete: true})
	}
	// A connection that takes no more is seen by its reader.
	_ = l.w.Send(wire.Frame{Type: wire.TypePortList, Arg: number, Payload: body})
}
