package client

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"

	"sandboxd"
)

// DialPort implements sandboxd.Host. Closing the connection without CloseWrite looks
// to the program in the sandbox as it would on one machine: what it still sends is
// not taken.
func (c *Client) DialPort(ctx context.Context, id string, port uint16) (sandboxd.PortConn, error) {
	if port == 0 {
		return nil, sandboxd.Invalid("port", "1 to 65535 are ports")
	}
	var raw net.Conn
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { raw = got.Conn }})
	res, err := c.send(ctx, call{method: http.MethodGet, path: []string{"sandboxes", id, "ports", strconv.Itoa(int(port)), "connect"},
		header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"tcp"}}})
	if err != nil {
		return nil, err
	}
	half, ok := res.Body.(halfCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || !ok {
		defer res.Body.Close()
		return nil, decodeError(res)
	}
	return &portConn{halfCloser: half, raw: raw}, nil
}

type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// portConn is an upgraded connection; its bytes go through the answer's body, which
// has what was read too early.
type portConn struct {
	halfCloser
	raw net.Conn
}

// Reset implements sandboxd.PortConn.
func (p *portConn) Reset() error {
	conn := p.raw
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails only when it is closed already
	}
	return p.Close()
}

// ListPorts implements sandboxd.Host.
func (c *Client) ListPorts(ctx context.Context, id string) (list sandboxd.PortList, err error) {
	return list, c.get(ctx, &list, nil, "sandboxes", id, "ports")
}
