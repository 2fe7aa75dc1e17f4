package host

import (
	"context"
	"time"

	"sandboxd"
)

// portTimeout bounds the wait for an init that does not say whether a port answers.
// It is above the time that an init gives a program to accept.
const portTimeout = 10 * time.Second

// DialPort implements sandboxd.Host.
func (h *Host) DialPort(ctx context.Context, id string, port uint16) (sandboxd.PortConn, error) {
	if port == 0 {
		return nil, sandboxd.Invalid("port", "1 to 65535 are ports")
	}
	b, env := h.up(id)
	if env == nil {
		var rec sandboxd.SandboxRecord
		var err error
		if rec, b, err = h.lookup(ctx, id); err != nil {
			return nil, err
		}
		if env, err = b.ready(ctx, rec); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	link, err := env.connected(ctx)
	if err != nil {
		return nil, h.overtaken(ctx, id, err)
	}
	conn, err := link.Dial(ctx, port)
	if err != nil {
		return nil, h.overtaken(ctx, id, err)
	}
	return movingConn{PortConn: conn, b: b}, nil
}

// movingConn notes when data goes over it: that is work, a connection that is only
// open is none.
type movingConn struct {
	sandboxd.PortConn
	b *box
}

// Read is PortConn's.
func (c movingConn) Read(p []byte) (int, error) {
	n, err := c.PortConn.Read(p)
	if n > 0 {
		c.b.pulse.moved.Store(c.b.h.uptime())
	}
	return n, err
}

// Write is PortConn's.
func (c movingConn) Write(p []byte) (int, error) {
	n, err := c.PortConn.Write(p)
	if n > 0 {
		c.b.pulse.moved.Store(c.b.h.uptime())
	}
	return n, err
}

// ListPorts implements sandboxd.Host.
func (h *Host) ListPorts(ctx context.Context, id string) (sandboxd.PortList, error) {
	none := sandboxd.PortList{Ports: []sandboxd.Port{}}
	_, env := h.up(id)
	if env == nil {
		_, err := h.record(ctx, id)
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	link, err := env.connected(ctx)
	if err != nil {
		return none, h.overtaken(ctx, id, err)
	}
	list, err := link.Ports(ctx)
	if err != nil {
		return none, h.overtaken(ctx, id, err)
	}
	return list, nil
}

// overtaken is what failed because the sandbox was deleted meanwhile, else err.
func (h *Host) overtaken(ctx context.Context, id string, err error) error {
	if _, gone := h.record(context.WithoutCancel(ctx), id); gone != nil && sandboxd.ClassOf(gone) == sandboxd.ClassGone {
		return gone
	}
	return err
}
