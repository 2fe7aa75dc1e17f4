package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// upstreamError is the operator's proxy that did not do what it was asked.
type upstreamError struct{ text string }

func (e *upstreamError) Error() string { return e.text }

// ParseUpstream reads the setting of an upstream proxy.
func ParseUpstream(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		// What was given may hold a password: it is not repeated.
		return nil, fmt.Errorf("an upstream proxy is given as http://host:port or https://user:password@host:port")
	}
	return u, nil
}

// dialUpstream opens a connection to the operator's proxy. A transport adds TLS to
// one of https itself.
func (p *Proxy) dialUpstream(ctx context.Context) (net.Conn, error) {
	u := p.cfg.Upstream
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, &upstreamError{"the operator's proxy does not answer"}
	}
	return conn, nil
}

// tunnel has the operator's proxy connect to a target.
func (p *Proxy) tunnel(ctx context.Context, t Target) (net.Conn, error) {
	conn, err := p.dialUpstream(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if p.cfg.Upstream.Scheme == "https" {
		cfg := p.tls.Clone()
		cfg.ServerName = p.cfg.Upstream.Hostname()
		secure := tls.Client(conn, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, &upstreamError{"the operator's proxy could not be verified"}
		}
		conn = secure
	}
	ask := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: t.String()}, Host: t.String(), Header: http.Header{}}
	if user := p.cfg.Upstream.User; user != nil {
		password, _ := user.Password()
		ask.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := ask.Write(conn); err != nil {
		conn.Close()
		return nil, &upstreamError{"the operator's proxy broke off"}
	}
	r := bufio.NewReaderSize(conn, 4<<10)
	res, err := http.ReadResponse(r, ask)
	if err != nil {
		conn.Close()
		return nil, &upstreamError{"the operator's proxy broke off"}
	}
	if res.StatusCode != http.StatusOK {
		conn.Close()
		return nil, &upstreamError{"the operator's proxy answered " + asciiOnly(res.Status)}
	}
	return &answered{Conn: conn, r: r}, nil
}

// answered is a connection of which more than an answer may have been read.
type answered struct {
	net.Conn
	r *bufio.Reader
}

func (a *answered) Read(b []byte) (int, error) { return a.r.Read(b) }

// CloseWrite ends the data of this side, where the connection knows how.
func (a *answered) CloseWrite() error {
	if half, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return a.Conn.Close()
}

// internalName says whether a name is one of a local network and of no public one.
func internalName(name string) bool {
	if !strings.Contains(name, ".") {
		return true
	}
	for _, suffix := range []string{".localhost", ".local", ".internal", ".home.arpa", ".lan", ".intranet", ".corp", ".home"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}
