package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandboxd"
	"sandboxd/internal/relay"
)

// DenialsPath is where a sandbox reads what it was refused, of the proxy itself.
const DenialsPath = "/denials"

// serveHTTP answers one request of a sandbox.
func serveHTTP(w http.ResponseWriter, r *http.Request) {
	g := r.Context().Value(gateKey{}).(*Gate)
	switch {
	case r.Method == http.MethodConnect:
		g.connect(w, r)
	case r.URL.Host == "" && r.URL.Scheme == "":
		g.itself(w, r)
	default:
		g.plain(w, r)
	}
}

// itself answers who takes the proxy for a web server.
func (g *Gate) itself(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if r.URL.Path != DenialsPath || r.Method != http.MethodGet {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, "This is the proxy of a sandbox, for requests to other hosts. GET %s says what it refused.\n", DenialsPath)
		return
	}
	for _, d := range g.Activity().Denials {
		fmt.Fprintf(w, "%s %s %dx: %s\n", d.LastAt.Format(time.RFC3339), d.Reason, d.Count, d.Message)
	}
}

// plain passes a request on whose URL is absolute.
func (g *Gate) plain(w http.ResponseWriter, r *http.Request) {
	t, err := targetOf(r)
	if err == nil && (r.URL.Scheme != "http" || r.URL.User != nil || r.Method == http.MethodTrace) {
		what := "the proxy takes http URLs; everything else goes through CONNECT"
		switch {
		case r.URL.User != nil:
			what = "a URL in a request to a proxy has no user and password"
		case r.Method == http.MethodTrace:
			// It is answered with what was received: of an upstream with our password.
			what = "TRACE shows what proxies say to each other"
		}
		err = &Refusal{Host: t.String(), Reason: sandboxd.DenyMalformed, Message: fmt.Sprintf("%s cannot be asked: %s", t, what)}
	}
	if err == nil {
		// Asked here too, because a connection that is already open is not dialled.
		err = g.ask(t)
	}
	if err == nil && g.proxy.cfg.Upstream != nil {
		err = g.guess(r.Context(), t)
	}
	if err != nil {
		g.failed(w, r, err)
		return
	}
	host := t.Host()
	if t.Port != 80 {
		host = t.String()
	}
	// What was decided about is what is sent, in this spelling.
	out := r.Clone(r.Context())
	out.URL.Host, out.Host = host, host
	g.forward.ServeHTTP(w, out)
}

// connect makes a tunnel.
func (g *Gate) connect(w http.ResponseWriter, r *http.Request) {
	t, err := targetOf(r)
	var there *counter
	if err == nil {
		there, err = g.dial(r.Context(), t)
	}
	if err != nil {
		g.failed(w, r, err)
		return
	}
	defer there.Close()
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the stream is gone
	}
	defer here.Close()
	if _, err := io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	relay.Join(tunnelEnd{here, buffered.Reader}, there)
}

// failed answers a request that is not passed on. The reason stands in the status
// line too: it is all that some programs show of an answer to CONNECT.
func (g *Gate) failed(w http.ResponseWriter, r *http.Request, err error) {
	status, reason := http.StatusBadGateway, "unreachable"
	text := fmt.Sprintf("%s cannot be reached: %s", asciiOnly(r.URL.Host), cause(err))
	var refusal *Refusal
	if errors.As(err, &refusal) {
		g.note(refusal)
		status, reason, text = http.StatusForbidden, string(refusal.Reason), refusal.Message
	}
	text = asciiOnly(text)
	if r.Method != http.MethodConnect && r.Body != nil {
		// A body that nobody takes would keep the answer from being read; one that does
		// not come must not.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
		_, _ = io.CopyN(io.Discard, r.Body, headerBytes)
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the stream is gone
	}
	defer conn.Close()
	body := "sandboxd: " + text + "\n"
	if r.Method == http.MethodHead {
		body = ""
	}
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d sandboxd: %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n"+
		"X-Sandboxd-Denied: %s\r\nConnection: close\r\n\r\n%s", status, text, len(body), reason, body)
}

// cause says what a person can use of an error of the network, and nothing of the
// machine's own addresses.
func cause(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "there is no such name"
	case errors.As(err, &dns):
		return "the name cannot be resolved now"
	case errors.Is(err, context.DeadlineExceeded):
		return "it does not answer"
	case errors.As(err, &op) && op.Op == "dial":
		return op.Err.Error()
	}
	var upstream *upstreamError
	if errors.As(err, &upstream) {
		return upstream.Error()
	}
	return "the connection broke"
}

// asciiOnly is s without what could end a line or colour a terminal.
func asciiOnly(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s[:min(len(s), 512)])
}

// tunnelEnd is a hijacked stream, with what was read of it already.
type tunnelEnd struct {
	net.Conn
	r *bufio.Reader
}

func (e tunnelEnd) Read(b []byte) (int, error) { return e.r.Read(b) }

func (e tunnelEnd) CloseWrite() error { return e.Conn.(*streamConn).CloseWrite() }

func (e tunnelEnd) Reset() error { return e.Conn.(*streamConn).Reset() }

func (e tunnelEnd) Done() <-chan struct{} { return e.Conn.(*streamConn).Done() }

// forwardProxy is what a transport asks for its proxy.
func (p *Proxy) forwardProxy() func(*http.Request) (*url.URL, error) {
	if p.cfg.Upstream == nil {
		return nil
	}
	return http.ProxyURL(p.cfg.Upstream)
}
