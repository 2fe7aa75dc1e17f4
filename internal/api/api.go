// Package api is the native HTTP face: /v1 over a sandboxd.Host that it obtains
// for every request.
//
// It is not a place for rules. It decodes, asks the Host, encodes, and keeps
// strangers and slow clients away from it; who may do what is decided by the Host
// it is handed. Routes that answer one JSON object are declared with huma, which
// validates them and writes the OpenAPI document; streams are plain handlers on
// the same mux, documented in the same document.
package api

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"sandboxd"
)

// HostFor answers the Host that serves one request. Its error is answered to the
// caller by its class.
type HostFor func(*http.Request) (sandboxd.Host, error)

// Config is what a listener is made of.
type Config struct {
	// Token opens this listener. An empty one opens nothing.
	Token string
	// OtherToken is the secret of the other listener; it is refused by name.
	OtherToken string
	HostFor    HostFor
	Version    string
	// Roles are what this process does, for the host listener's /healthz.
	Roles []string
	// AllowedHosts are names that a Host header may carry, without port. Loopback
	// names and IP addresses are always allowed.
	AllowedHosts []string
	// AnyHost takes every Host header.
	AnyHost bool
	// Log takes one line a request, and the causes of errors. Nil discards.
	Log *slog.Logger
}

// pace holds every clock of the face, so that tests can shorten them.
type pace struct {
	bodyIdle     time.Duration // longest wait for the next byte of a body
	strangerBody time.Duration // the same, of a caller without the secret
	writeStall   time.Duration // longest blocked write
	heartbeat    time.Duration // blank line on an idle stream
	partial      time.Duration // how long half a character waits for its rest
	ping         time.Duration // of an idle socket
	stopGrace    time.Duration // for a command whose exec was abandoned
}

func defaultPace() pace {
	return pace{bodyIdle: 30 * time.Second, strangerBody: time.Second, writeStall: 60 * time.Second, heartbeat: 15 * time.Second,
		partial: 50 * time.Millisecond, ping: 20 * time.Second, stopGrace: 2 * time.Second}
}

// kind tells the two listeners apart.
type kind int

const (
	controlListener kind = iota
	hostListener
)

// face is one listener's handler and what it shares between requests.
type face struct {
	cfg  Config
	kind kind
	pace pace
	auth authorizer
	mux  *http.ServeMux
	spec []byte // the OpenAPI document
}

// Control is the handler of the control listener: /healthz answers "ok", /v1
// takes the API key.
func Control(cfg Config) http.Handler { return newFace(cfg, controlListener, defaultPace()) }

// HostListener is the handler of the host listener: /healthz answers JSON, /v1
// takes the host token, also as X-Sandbox-Token.
func HostListener(cfg Config) http.Handler { return newFace(cfg, hostListener, defaultPace()) }

func newFace(cfg Config, k kind, p pace) *face {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	f := &face{cfg: cfg, kind: k, pace: p, auth: newAuthorizer(cfg, k), mux: http.NewServeMux()}
	f.spec = f.register()
	f.mux.HandleFunc("GET /healthz", f.healthz)
	f.mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(f.spec)
	})
	return f
}

// Server makes a server with the limits that every listener has: 64 KiB of
// headers, which must arrive within 5 seconds. Bodies and answers are bounded by
// progress, not by a total, in the handlers of this package.
func Server(addr string, handler http.Handler) *http.Server {
	return &http.Server{
		Addr:              addr,
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		// net/http allows itself 4 KiB beyond what it is told.
		MaxHeaderBytes: 64<<10 - 4096,
	}
}

// Health is the JSON form of /healthz.
type Health struct {
	Status  string   `json:"status"`
	Version string   `json:"version"`
	Roles   []string `json:"roles"`
}

func (f *face) healthz(w http.ResponseWriter, r *http.Request) {
	if f.kind == controlListener && !strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok"))
		return
	}
	roles := f.cfg.Roles
	if roles == nil {
		roles = []string{}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Health{Status: "ok", Version: f.cfg.Version, Roles: roles})
}

// allowedHost says whether a Host header may be served. A name that resolves to
// this machine but is not ours is how a web page reaches a loopback port.
func (f *face) allowedHost(hostport string) bool {
	name := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if f.cfg.AnyHost || strings.EqualFold(name, "localhost") || net.ParseIP(name) != nil {
		return true
	}
	for _, allowed := range f.cfg.AllowedHosts {
		if strings.EqualFold(name, allowed) {
			return true
		}
	}
	return false
}
