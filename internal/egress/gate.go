package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd"
	"sandboxd/internal/relay"
)

const (
	// kept bounds the different refusals that a gate remembers.
	kept = 256
	// places bounds the streams that a gate works for. Those of a sandbox that gave
	// them up count until the work has ended: it may go on for a while unseen.
	places = 64
)

// Gate is one sandbox's way out. Its methods are safe for concurrent use.
type Gate struct {
	proxy       *Proxy
	allow, deny []Rule
	forward     http.Handler // requests that are no CONNECT
	idle        func()       // lets go of connections that wait for another request
	working     chan struct{}

	connections, sent, received atomic.Int64

	mu      sync.Mutex
	denials []*sandboxd.Denial // by time of the last
	dropped int64
}

// Gate makes the way out of a sandbox with these lists. ClassInvalid names the
// list that has a mistake.
func (p *Proxy) Gate(allow, deny []string) (*Gate, error) {
	g := &Gate{proxy: p, working: make(chan struct{}, places)}
	for _, l := range []struct {
		field string
		from  []string
		to    *[]Rule
	}{{"network.allow", allow, &g.allow}, {"network.deny", deny, &g.deny}} {
		rules, _, err := ParseRules(l.from)
		if err != nil {
			return nil, sandboxd.Invalid(l.field, "%v", err)
		}
		*l.to = rules
	}
	transport := &http.Transport{
		DialContext:           g.dialForward,
		Proxy:                 p.forwardProxy(),
		TLSClientConfig:       p.tls.Clone(),
		DisableCompression:    true,
		MaxIdleConns:          16,
		IdleConnTimeout:       30 * time.Second,
		ResponseHeaderTimeout: responseTime,
		ExpectContinueTimeout: time.Second,
		// What comes back is passed on; only its head is held.
		MaxResponseHeaderBytes: headerBytes,
	}
	g.idle = transport.CloseIdleConnections
	g.forward = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.Host = r.Out.URL.Host },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      silent,
		ErrorHandler:  func(w http.ResponseWriter, r *http.Request, err error) { g.failed(w, r, err) },
	}
	return g, nil
}

// Close lets go of what waits for another request. Connections in use end with
// the streams that use them.
func (g *Gate) Close() { g.idle() }

// Activity is what the gate did since it was made.
func (g *Gate) Activity() sandboxd.NetworkActivity {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := sandboxd.NetworkActivity{
		Connections: g.connections.Load(), SentBytes: g.sent.Load(), ReceivedBytes: g.received.Load(),
		Denials: make([]sandboxd.Denial, len(g.denials)), DenialsDropped: g.dropped,
	}
	for i, d := range g.denials {
		a.Denials[i] = *d
	}
	return a
}

// Refusal is a connection that the gate does not make.
type Refusal struct {
	Host    string // as asked for
	Address string
	Reason  sandboxd.DenyReason
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// note remembers a refusal. The same again moves to the end and counts up, so that
// a program that tries without end drives nothing else out.
func (g *Gate) note(r *Refusal) {
	now := g.proxy.cfg.Now().UTC()
	g.mu.Lock()
	defer g.mu.Unlock()
	d := &sandboxd.Denial{Host: r.Host, Address: r.Address, Reason: r.Reason, Message: r.Message, FirstAt: now}
	at := slices.IndexFunc(g.denials, func(o *sandboxd.Denial) bool {
		return o.Host == d.Host && o.Reason == d.Reason && o.Address == d.Address
	})
	switch {
	case at >= 0:
		d = g.denials[at]
		g.denials = slices.Delete(g.denials, at, at+1)
	case len(g.denials) == kept:
		g.dropped += g.denials[0].Count
		g.denials = slices.Delete(g.denials, 0, 1)
	}
	d.Count++
	d.LastAt = now
	g.denials = append(g.denials, d)
}

// ask puts a target to the sandbox's own lists.
func (g *Gate) ask(t Target) error {
	if i := slices.IndexFunc(g.deny, func(r Rule) bool { return r.covers(t) }); i >= 0 {
		return &Refusal{Host: t.String(), Reason: sandboxd.DenyRule,
			Message: fmt.Sprintf("%s is denied to this sandbox by its rule %s", t, g.deny[i])}
	}
	if !slices.ContainsFunc(g.allow, func(r Rule) bool { return r.covers(t) }) {
		return &Refusal{Host: t.String(), Reason: sandboxd.DenyNotAllowed,
			Message: fmt.Sprintf("%s is not in the allow list of this sandbox", t)}
	}
	return nil
}

// check says whether any sandbox, and this one, may connect to an address.
func (g *Gate) check(t Target, addr netip.Addr) error {
	at := netip.AddrPortFrom(meaning(addr), t.Port)
	refuse := func(reason sandboxd.DenyReason, format string, args ...any) error {
		return &Refusal{Host: t.String(), Address: addr.String(), Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	// Whatever an operator lets through, the server itself is not within reach.
	if g.proxy.own(at) {
		return refuse(sandboxd.DenyAddress, "%s is this server's own address", t)
	}
	// Denied is also what is dialled as it is spelled: an IPv4 address behind a
	// translator is one of IPv6 to who denies those.
	raw := netip.AddrPortFrom(addr.WithZone("").Unmap(), t.Port)
	if i := slices.IndexFunc(g.deny, func(r Rule) bool { return r.coversAddr(at) || r.coversAddr(raw) }); i >= 0 {
		return refuse(sandboxd.DenyRule, "%s is at %s, which is denied to this sandbox by its rule %s", t, addr, g.deny[i])
	}
	if slices.ContainsFunc(g.proxy.cfg.AllowAddresses, func(r Rule) bool { return r.coversAddr(at) }) {
		return nil
	}
	if what, bad := notPublic(addr); bad {
		return refuse(sandboxd.DenyAddress, "%s is at %s, which no sandbox may reach: %s", t, addr, what)
	}
	if g.proxy.hostHas(at.Addr()) {
		return refuse(sandboxd.DenyAddress, "%s is at %s, which no sandbox may reach: this machine", t, addr)
	}
	return nil
}

// addresses resolves a target and answers those of its addresses that may be
// dialled. When there is none, the first refusal is why.
func (g *Gate) addresses(ctx context.Context, t Target) ([]netip.Addr, error) {
	found := []netip.Addr{t.Addr}
	if t.Name != "" {
		var err error
		if found, err = g.proxy.cfg.Resolve(ctx, t.Name); err != nil {
			return nil, err
		}
	}
	var refused error
	may := found[:0:0]
	for _, addr := range found {
		err := g.check(t, addr)
		if err == nil {
			may = append(may, addr)
		} else if refused == nil {
			refused = err
		}
	}
	if len(may) == 0 {
		if refused == nil {
			refused = fmt.Errorf("%s has no address", t.Name)
		}
		return nil, refused
	}
	return may, nil
}

// dial connects to a target that the rules allow. Every connection of every
// sandbox is made here or by the upstream proxy, and to an address that was
// checked a moment before: nothing is resolved in between.
func (g *Gate) dial(ctx context.Context, t Target) (*counter, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if err := g.ask(t); err != nil {
		return nil, err
	}
	if g.proxy.cfg.Upstream != nil {
		if err := g.guess(ctx, t); err != nil {
			return nil, err
		}
		return g.counted(g.proxy.tunnel(ctx, t))
	}
	addrs, err := g.addresses(ctx, t)
	if err != nil {
		return nil, err
	}
	var failed []error
	for i, addr := range addrs {
		one, stop := context.WithTimeout(ctx, dialTime/time.Duration(min(len(addrs)-i, 3)))
		conn, err := g.counted(g.proxy.cfg.Dial(one, netip.AddrPortFrom(addr, t.Port)))
		stop()
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// guess refuses what can be seen to be wrong where an upstream proxy resolves
// names. What it cannot see is for the upstream to decide.
func (g *Gate) guess(ctx context.Context, t Target) error {
	if t.Name != "" && internalName(t.Name) {
		return &Refusal{Host: t.String(), Reason: sandboxd.DenyAddress, Message: fmt.Sprintf("%s is a name of a local network", t)}
	}
	_, err := g.addresses(ctx, t)
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal
	}
	return nil
}

// dialForward is dial for plain requests. With an upstream proxy it is that which
// is dialled, and the request's target was asked about before.
func (g *Gate) dialForward(ctx context.Context, _, authority string) (net.Conn, error) {
	var conn *counter
	var err error
	if g.proxy.cfg.Upstream != nil {
		conn, err = g.counted(g.proxy.dialUpstream(ctx))
	} else {
		var t Target
		if t, err = ParseTarget(authority, 0); err == nil {
			conn, err = g.dial(ctx, t)
		}
	}
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return conn, nil
}

// counted is a connection whose bytes the gate counts.
func (g *Gate) counted(conn net.Conn, err error) (*counter, error) {
	if err != nil {
		return nil, err
	}
	g.connections.Add(1)
	c := &counter{Conn: conn, g: g, over: make(chan struct{})}
	c.idle = time.AfterFunc(silence, func() {
		close(c.over)
		conn.Close()
	})
	return c, nil
}

// counter also ends a connection on which nothing has moved for long.
type counter struct {
	net.Conn
	g    *Gate
	idle *time.Timer
	over chan struct{} // closed when it ended for that
}

// Done is relay's.
func (c *counter) Done() <-chan struct{} { return c.over }

// Broken is relay's.
func (c *counter) Broken() bool {
	tcp, ok := c.Conn.(*net.TCPConn)
	return ok && relay.BrokenTCP(tcp)
}

// Reset is relay's.
func (c *counter) Reset() error {
	c.idle.Stop()
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return relay.ResetTCP(tcp)
	}
	return c.Conn.Close()
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.g.received.Add(c.moved(n))
	return n, err
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.g.sent.Add(c.moved(n))
	return n, err
}

func (c *counter) moved(n int) int64 {
	if n > 0 && c.idle.Stop() {
		c.idle.Reset(silence)
	}
	return int64(n)
}

// Close is net.Conn's.
func (c *counter) Close() error {
	c.idle.Stop()
	return c.Conn.Close()
}

// CloseWrite ends the data of this side, where the connection knows how.
func (c *counter) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

// targetOf reads where a request goes; the error is a Refusal.
func targetOf(r *http.Request) (Target, error) {
	fallback := uint16(80)
	if r.Method == http.MethodConnect {
		fallback = 0
	}
	t, err := ParseTarget(r.URL.Host, fallback)
	if err != nil {
		return Target{}, &Refusal{Host: strconv.QuoteToASCII(clip(r.URL.Host)), Reason: sandboxd.DenyMalformed,
			Message: fmt.Sprintf("%s cannot be connected to: %v", strconv.QuoteToASCII(clip(r.URL.Host)), err)}
	}
	return t, nil
}
