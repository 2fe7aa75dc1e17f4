// Package hostlistener is the handler of the host listener: it gives each request to the
// face that serves its path, and answers itself what the operators of a machine ask every
// service for: whether it is ready, that it take nothing new, and its figures.
//
// It is no face of sandboxes; those are internal/api and internal/api/sessions.
package hostlistener

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd"
	"sandboxd/internal/api"
	"sandboxd/internal/api/sessions"
)

// Machine is the host that is served, and how long its sandboxes last.
type Machine interface {
	sandboxd.Host
	sandboxd.Lifetimes
}

// Config is what the listener is made of. All but Roles, Log and Clock is required.
type Config struct {
	Machine  Machine
	Sessions sandboxd.SessionStore
	// Token is the service token; OtherToken is the secret of the control listener,
	// which is refused. An empty token opens nothing.
	Token, OtherToken string
	SessionKey        []byte // see sessions.Config.Key
	// Ready says why isolation cannot be enforced now; nil when it can.
	Ready   func(context.Context) error
	Version string
	Roles   []string
	Prewarm bool // see sessions.Config
	Keeps   bool // see sessions.Config
	PDF     func(ctx context.Context, file []byte) (string, error)
	Log     *slog.Logger
}

// readyAge is how long a look at the machine is believed, so that nobody can have it
// looked at all the time.
const readyAge = 5 * time.Second

// Listener is an http.Handler. It is safe for concurrent use.
type Listener struct {
	cfg      Config
	machine  *gated
	native   http.Handler
	sessions http.Handler
	own      http.Handler

	looking sync.Mutex
	looked  time.Time
	found   error
}

// Routes are the paths that are served beside those of the sessions wire.
var Routes = []string{"/drain", "/metrics", "/openapi.json", "/readyz"}

// New makes the listener's handler.
func New(cfg Config) *Listener {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := &Listener{cfg: cfg, machine: &gated{Machine: cfg.Machine}}
	l.native = api.HostListener(api.Config{Token: cfg.Token, OtherToken: cfg.OtherToken, Version: cfg.Version, Roles: cfg.Roles, Log: cfg.Log,
		HostFor: func(*http.Request) (sandboxd.Host, error) { return l.machine, nil },
		// Every request needs a secret that no page of another origin has.
		AnyHost: true})
	l.sessions = sessions.New(sessions.Config{Host: l.machine, Lifetimes: l.machine, Sessions: cfg.Sessions, Token: cfg.Token, Key: cfg.SessionKey,
		Version: cfg.Version, Roles: cfg.Roles, Prewarm: cfg.Prewarm, Keeps: cfg.Keeps, PDF: cfg.PDF, Routes: Routes, Log: cfg.Log})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", l.ready)
	mux.HandleFunc("POST /drain", l.drain)
	mux.HandleFunc("GET /metrics", l.metrics)
	l.own = api.Guard(cfg.Log, mux, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "internal error", http.StatusInternalServerError)
	})
	return l
}

// ServeHTTP implements http.Handler.
func (l *Listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch p := r.URL.Path; {
	case p == "/v1" || strings.HasPrefix(p, "/v1/") || p == "/openapi.json":
		l.native.ServeHTTP(w, r)
	case p == "/readyz" || p == "/drain" || p == "/metrics":
		l.own.ServeHTTP(w, r)
	default:
		l.sessions.ServeHTTP(w, r)
	}
}

// authorized says whether a request shows the service token; if not, it is answered.
func (l *Listener) authorized(w http.ResponseWriter, r *http.Request) bool {
	secret := r.Header.Get("X-Sandbox-Token")
	if scheme, rest, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		secret = strings.TrimSpace(rest)
	}
	got, want := sha256.Sum256([]byte(secret)), sha256.Sum256([]byte(l.cfg.Token))
	if subtle.ConstantTimeCompare(got[:], want[:]) == 1 && l.cfg.Token != "" {
		return true
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	answer(w, http.StatusUnauthorized, map[string]any{"detail": "Invalid or missing sandbox token"})
	return false
}

// readiness is what probes are told.
type readiness struct {
	Ready  bool   `json:"ready"`
	Detail string `json:"detail,omitempty"`
}

func (l *Listener) ready(w http.ResponseWriter, r *http.Request) {
	if l.machine.shut.Load() {
		answer(w, http.StatusServiceUnavailable, readiness{Detail: "draining"})
		return
	}
	if err := l.look(r.Context()); err != nil {
		api.Note(r.Context(), err)
		answer(w, http.StatusServiceUnavailable, readiness{Detail: publicText(err)})
		return
	}
	answer(w, http.StatusOK, readiness{Ready: true})
}

// look asks whether sandboxes can be isolated here, or answers what was found a moment ago.
func (l *Listener) look(ctx context.Context) error {
	l.looking.Lock()
	defer l.looking.Unlock()
	if time.Since(l.looked) < readyAge {
		return l.found
	}
	l.found = l.cfg.Ready(context.WithoutCancel(ctx))
	l.looked = time.Now()
	return l.found
}

func publicText(err error) string {
	var e *sandboxd.Error
	if errors.As(err, &e) {
		return e.Public()
	}
	return "the machine cannot be looked at"
}

// drain has the host take nothing new, for as long as this process lasts. What is open
// goes on.
func (l *Listener) drain(w http.ResponseWriter, r *http.Request) {
	if !l.authorized(w, r) {
		return
	}
	if !l.machine.shut.Swap(true) {
		l.cfg.Log.Info("draining: no new sandboxes are opened here")
	}
	answer(w, http.StatusAccepted, map[string]bool{"draining": true})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// gated is a machine that can be told to open nothing new.
type gated struct {
	Machine
	shut atomic.Bool
}

// Open implements sandboxd.Host. Attaching to what is there is no opening.
func (g *gated) Open(ctx context.Context, req sandboxd.OpenRequest) (sandboxd.Sandbox, bool, error) {
	if g.shut.Load() {
		list, err := g.List(ctx, req.Key)
		if err != nil {
			return sandboxd.Sandbox{}, false, err
		}
		if req.Key == "" || len(list) == 0 {
			return sandboxd.Sandbox{}, false, &sandboxd.Error{Class: sandboxd.ClassUnavailable, Field: sessions.Draining, RetryS: 5,
				Message: "this host is being drained and opens no new sandboxes", Hint: "ask another host"}
		}
	}
	return g.Machine.Open(ctx, req)
}
