package api

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"sandboxd"
)

// call is what the parts of one request share.
type call struct {
	req *http.Request
	err error // the first error, for the log line
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// note keeps err for the request's log line.
func note(ctx context.Context, err error) {
	if c := callOf(ctx); c != nil && c.err == nil {
		c.err = err
	}
}

// ServeHTTP guards what serve does.
func (f *face) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g := guard{log: f.cfg.Log, pace: f.pace, broken: func(w http.ResponseWriter, r *http.Request) { writeError(w, r, errors.New("panic")) }}
	g.serve(w, r, f.serve)
}

// Guard is the way of every request to the face next: a name, deadlines that follow
// the progress of bodies and answers, one line in the log. What next panics with is
// logged and, unless an answer has begun, answered by broken.
func Guard(log *slog.Logger, next http.Handler, broken func(http.ResponseWriter, *http.Request)) http.Handler {
	g := guard{log: log, pace: defaultPace(), broken: broken}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.serve(w, r, func(w *response, r *http.Request) { next.ServeHTTP(w, r) })
	})
}

// Note keeps the cause of a failed request for its line in the log.
func Note(ctx context.Context, err error) { note(ctx, err) }

// Hurry gives the rest of a guarded request's body so long, whatever arrives: it
// comes from somebody who has shown no secret.
func Hurry(r *http.Request, rest time.Duration) {
	if b, ok := r.Body.(*body); ok {
		b.until = time.Now().Add(rest)
	}
}

type guard struct {
	log    *slog.Logger
	pace   pace
	broken func(http.ResponseWriter, *http.Request)
}

func (g guard) serve(w http.ResponseWriter, r *http.Request, next func(*response, *http.Request)) {
	began := time.Now()
	rc := http.NewResponseController(w)
	rw := &response{ResponseWriter: w, rc: rc, stall: g.pace.writeStall, req: r}
	c := &call{}
	r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	c.req = r
	_ = rc.SetWriteDeadline(time.Time{}) // left by the previous request of the connection
	if r.Body != nil && r.Body != http.NoBody {
		_ = rc.SetReadDeadline(began.Add(g.pace.bodyIdle))
		rw.body = &body{ReadCloser: r.Body, rc: rc, idle: g.pace.bodyIdle}
		r.Body = rw.body
	}
	id := r.Header.Get("X-Request-Id")
	if !sandboxd.ValidCommandID(id) {
		id = sandboxd.NewID()
	}
	rw.Header().Set("X-Request-Id", id)
	rw.Header().Set("X-Content-Type-Options", "nosniff")

	abort := false
	func() {
		defer func() {
			switch p := recover(); {
			case p == nil:
			case p == http.ErrAbortHandler:
				abort = true
			default:
				g.log.Error("a handler panicked", "request", id, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				note(r.Context(), errors.New("panic"))
				if rw.status != 0 {
					abort = true
					return
				}
				g.broken(rw, r)
			}
		}()
		next(rw, r)
	}()
	if rw.early && !abort {
		rw.listenOn()
	}
	if !rw.hijacked {
		// What net/http still has in its buffer is written after we return.
		_ = rc.SetWriteDeadline(time.Now().Add(g.pace.writeStall))
	}
	attrs := []any{"method", r.Method, "path", r.URL.Path, "status", rw.status, "bytes", rw.bytes,
		"ms", time.Since(began).Milliseconds(), "request", id}
	level := slog.LevelInfo
	if c.err != nil {
		attrs = append(attrs, "error", c.err.Error())
		if rw.status >= 500 {
			level = slog.LevelError
		}
	}
	g.log.Log(r.Context(), level, "request", attrs...)
	if abort {
		panic(http.ErrAbortHandler)
	}
}

func (f *face) serve(w *response, r *http.Request) {
	if !f.allowedHost(r.Host) {
		writeError(w, r, sandboxd.Errorf(sandboxd.ClassForbidden, "this name is not served here").
			WithHint("use the address of the server, or start the server with --allowed-host and this name"))
		return
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			writeError(w, r, sandboxd.Errorf(sandboxd.ClassForbidden, "a page of another origin may not call this server"))
			return
		}
	}
	if r.URL.Path != "/healthz" && r.URL.Path != "/openapi.json" {
		if err := f.auth.check(r); err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			// The rest of a stranger's body is not waited for.
			w.Header().Set("Connection", "close")
			if r.Body != http.NoBody {
				_ = w.rc.SetReadDeadline(time.Now().Add(f.pace.strangerBody))
			}
			writeError(w, r, err)
			return
		}
	}
	// Ids and parameters are never cleaned into another path: no redirects.
	if path.Clean(r.URL.Path) != r.URL.Path {
		writeError(w, r, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no such route"))
		return
	}
	if _, pattern := f.mux.Handler(r); pattern == "" {
		f.noRoute(w, r)
		return
	}
	f.mux.ServeHTTP(w, r)
}

// noRoute answers what the mux would have answered, in our envelope.
func (f *face) noRoute(w *response, r *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete} {
		probe := r.Clone(r.Context())
		probe.Method = method
		if _, pattern := f.mux.Handler(probe); pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		writeError(w, r, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no such route"))
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	writeError(w, r, &Envelope{status: http.StatusMethodNotAllowed, Err: EnvelopeError{
		Code: "method_not_allowed", Message: "this route takes " + strings.Join(allowed, ", ")}})
}

// authorizer compares secrets by their hashes, in constant time.
type authorizer struct {
	mine, other       [sha256.Size]byte
	hasMine, hasOther bool
	kind              kind
}

func newAuthorizer(cfg Config, k kind) authorizer {
	return authorizer{mine: sha256.Sum256([]byte(cfg.Token)), other: sha256.Sum256([]byte(cfg.OtherToken)),
		hasMine: cfg.Token != "", hasOther: cfg.OtherToken != "", kind: k}
}

func (a authorizer) check(r *http.Request) error {
	secret := ""
	if scheme, rest, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		secret = strings.TrimSpace(rest)
	} else if a.kind == hostListener {
		secret = r.Header.Get("X-Sandbox-Token")
	}
	sum := sha256.Sum256([]byte(secret))
	mine := subtle.ConstantTimeCompare(sum[:], a.mine[:]) == 1 && a.hasMine
	other := subtle.ConstantTimeCompare(sum[:], a.other[:]) == 1 && a.hasOther
	name, wrong := "API key", "host token"
	file := "token"
	if a.kind == hostListener {
		name, wrong, file = wrong, name, "host-token"
	}
	switch {
	case mine && !other:
		return nil
	case other:
		return sandboxd.Errorf(sandboxd.ClassUnauthorized, "this listener takes the %s, not the %s", name, wrong).
			WithHint("the %s is in the file %q of the data directory", name, file)
	case secret == "":
		return sandboxd.Errorf(sandboxd.ClassUnauthorized, "a secret is needed").
			WithHint("send Authorization: Bearer with the %s, which is in the file %q of the data directory", name, file)
	}
	return sandboxd.Errorf(sandboxd.ClassUnauthorized, "the secret is wrong").
		WithHint("the %s is in the file %q of the data directory", name, file)
}

// response counts what is sent and gives every write its own deadline: a client
// may be slow for ever, but not stand still.
type response struct {
	http.ResponseWriter
	rc       *http.ResponseController
	stall    time.Duration
	status   int
	bytes    int64
	hijacked bool
	req      *http.Request
	body     *body // nil for none
	early    bool  // it is an answer to a body that still arrives
}

// ignored is as much of a body as net/http reads by itself before it answers.
const ignored = 256 << 10

// refusesEarly says whether an answer says no while much of the body is still to come. A
// stranger's is not waited for, and neither is one that nobody was told to send.
func (w *response) refusesEarly(code int) bool {
	if code < 400 || code == http.StatusUnauthorized || w.body == nil || w.body.err != nil {
		return false
	}
	if w.req.Header.Get("Expect") != "" && !w.body.begun {
		return false
	}
	return w.req.ContentLength < 0 || w.req.ContentLength > ignored
}

// listenOn sends an early answer and reads what the client goes on sending until it has
// seen it, for a while: a connection that is closed under an upload is reset, and the
// answer lost.
func (w *response) listenOn() {
	_ = w.FlushError()
	w.body.until = time.Now().Add(listenTime)
	buf := make([]byte, 64<<10)
	for time.Now().Before(w.body.until) {
		if _, err := w.body.Read(buf); err != nil {
			return
		}
	}
}

// listenTime bounds that.
const listenTime = 5 * time.Second

func (w *response) WriteHeader(code int) {
	if w.status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		w.status = code
		if w.early = w.refusesEarly(code); w.early {
			w.Header().Set("Connection", "close")
			_ = w.rc.EnableFullDuplex()
		}
	}
	_ = w.rc.SetWriteDeadline(time.Now().Add(w.stall))
	w.ResponseWriter.WriteHeader(code)
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	_ = w.rc.SetWriteDeadline(time.Now().Add(w.stall))
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

var copyBuffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// ReadFrom copies in pieces, because each piece needs its own deadline.
func (w *response) ReadFrom(src io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[256 << 10]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{src}, buf[:])
}

// FlushError sends what is buffered.
func (w *response) FlushError() error {
	_ = w.rc.SetWriteDeadline(time.Now().Add(w.stall))
	return w.rc.Flush()
}

// Hijack hands over the connection, without deadlines.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, brw, err := w.rc.Hijack()
	w.hijacked = err == nil
	return conn, brw, err
}

// Unwrap lets http.ResponseController find the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// body gives every read its own deadline and every failure a class.
type body struct {
	io.ReadCloser
	rc    *http.ResponseController
	idle  time.Duration
	until time.Time // when all of it must be there, unless zero
	begun bool      // somebody asked for it
	err   error
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	b.begun = true
	deadline := time.Now().Add(b.idle)
	if !b.until.IsZero() && b.until.Before(deadline) {
		deadline = b.until
	}
	_ = b.rc.SetReadDeadline(deadline)
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF:
		// Otherwise the deadline would strike the wait for the client's farewell.
		_ = b.rc.SetReadDeadline(time.Time{})
		b.err = io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.err = &sandboxd.Error{Class: sandboxd.ClassInvalid, Field: "body", Err: err,
			Message: fmt.Sprintf("no byte of it arrived for %v", b.idle)}
	default:
		b.err = &sandboxd.Error{Class: sandboxd.ClassInvalid, Field: "body", Message: "it was cut short", Err: err}
	}
	return n, b.err
}
