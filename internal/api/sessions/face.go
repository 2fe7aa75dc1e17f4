// Package sessions is the face that speaks the sessions wire: the routes of a remote
// sandbox service that agents written in Python open sandboxes at, in both of its
// generations, as its published clients send and expect them.
//
// A session is a sandbox opened by its key, and a token for it. The face keeps of a
// session what the wire shows and a sandbox does not have (sandboxd.SessionRecord);
// everything else it asks. It is not a place for rules: who has a place, what ends a
// sandbox that nobody uses and what a command may take is the host's.
//
// What the wire does in peculiar ways stays in this package: its texts, its order of
// checks, how it shows bytes as text. See docs/sessions.md.
package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/api"
	"sandboxd/internal/api/bounded"
)

// Config is what the face is made of. All but Routes, Roles, Clock and Log is required.
type Config struct {
	Host      sandboxd.Host
	Lifetimes sandboxd.Lifetimes
	Sessions  sandboxd.SessionStore
	// Token opens everything here. An empty one opens nothing.
	Token string
	// Key is the secret from which the tokens of sessions are derived. Another one
	// makes every token that was handed out worthless.
	Key     []byte
	Version string
	// Roles are what this process does, and Routes what else its listener serves, both
	// for the index.
	Roles  []string
	Routes []string
	// Prewarm says that the images of runtimes are made when the host starts.
	Prewarm bool
	// Keeps says that the driver that sessions use keeps what was installed in a writable root.
	Keeps bool
	// PDF answers the text of a PDF file; ClassInvalid when it has none. It must not parse
	// it in this process: whoever wrote the file is in a sandbox.
	PDF func(ctx context.Context, file []byte) (string, error)
	// Clock is nil for time.Now.
	Clock func() time.Time
	// Log takes one line a request, and the causes of errors. Nil discards.
	Log *slog.Logger
}

// Face is the handler of the wire. It is safe for concurrent use.
type Face struct {
	cfg       Config
	auth      keeper
	handler   http.Handler
	wait      waits
	endpoints []string // as the index lists them

	mu         sync.Mutex
	opening    map[string]*opening  // by id
	activities map[string]*activity // by life
	samples    map[string]sample    // of usage, by life
}

// waits hold every clock of the face, so that tests can shorten them.
type waits struct {
	opening time.Duration // for somebody else's opening of the same session
	stop    time.Duration // for the end of a run that is stopped
	start   time.Duration // longest for an opening, whoever still waits
}

// New makes the face.
func New(cfg Config) *Face {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	f := &Face{cfg: cfg, auth: newKeeper(cfg.Token, cfg.Key), endpoints: Endpoints(cfg.Routes...),
		wait:    waits{opening: 20 * time.Second, stop: 5 * time.Second, start: 15 * time.Minute},
		opening: map[string]*opening{}, activities: map[string]*activity{}, samples: map[string]sample{}}
	f.handler = api.Guard(cfg.Log, http.HandlerFunc(f.serve), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("Internal Server Error"))
	})
	return f
}

// ServeHTTP implements http.Handler.
func (f *Face) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.handler.ServeHTTP(w, r) }

// access says who may call a route, and in which order it is found out: of a session's
// routes a name that can be none comes first, of the others the secret.
type access int

const (
	forAll     access = iota
	forService        // the service token
	forSession        // the service token or that of the session
)

// route is one row of the table of the wire.
type route struct {
	method, path string
	access       access
	body         int64 // most bytes of a JSON body; 0 for a route without one
	handle       func(*Face, *call) error
}

const (
	smallBody = 1 << 20
	// of a command: what the kernel takes at most as arguments, escaped
	runBody = 16 << 20
	// of a whole file in base64
	fileBody = 64 << 20
)

// routes is the one table of the wire. The names of parameters are part of it: clients
// compare the templates with what the index lists.
func routes() []route {
	const session, files, stored = "/sessions/{session_id}", "/sessions/{session_id}/files", "/workspaces/{session_id}"
	return []route{
		{"GET", "/", forAll, 0, (*Face).index},
		{"GET", "/healthz", forAll, 0, (*Face).healthz},
		{"GET", "/policy", forService, 0, (*Face).getPolicy},
		{"PUT", "/policy", forService, smallBody, (*Face).putPolicy},
		{"POST", "/sessions", forService, smallBody, (*Face).open},
		{"GET", "/sessions", forService, 0, (*Face).list},
		{"GET", session, forSession, 0, (*Face).get},
		{"DELETE", session, forSession, 0, (*Face).remove},
		{"GET", session + "/events", forSession, 0, (*Face).events},
		{"POST", session + "/run", forSession, runBody, (*Face).run},
		{"POST", session + "/runs/{run_id}/stop", forSession, 0, (*Face).stopRun},

		{"POST", files + "/read", forSession, smallBody, (*Face).fileRead},
		{"POST", files + "/write", forSession, 0, (*Face).fileWrite},
		{"POST", files + "/stat", forSession, smallBody, (*Face).fileStat},
		{"POST", files + "/realpath", forSession, smallBody, (*Face).fileRealpath},
		{"POST", files + "/list", forSession, smallBody, (*Face).fileList},
		{"POST", files + "/mkdir", forSession, smallBody, (*Face).fileMkdir},
		{"POST", files + "/remove", forSession, smallBody, (*Face).fileRemove},

		{"POST", "/workspaces/trees", forService, smallBody, (*Face).storedTrees},
		{"POST", stored + "/ls", forService, smallBody, (*Face).storedList},
		{"POST", stored + "/tree", forService, smallBody, (*Face).storedTree},
		{"POST", stored + "/read", forService, smallBody, (*Face).storedRead},
		{"POST", stored + "/read_bytes", forService, smallBody, (*Face).storedReadBytes},

		// The first generation.
		{"POST", session + "/exec", forSession, runBody, (*Face).exec},
		{"POST", session + "/read", forSession, smallBody, (*Face).read},
		{"POST", session + "/read_bytes", forSession, smallBody, (*Face).readBytes},
		{"POST", session + "/write", forSession, fileBody, (*Face).write},
		{"POST", session + "/edit", forSession, fileBody, (*Face).edit},
		{"POST", session + "/exists", forSession, smallBody, (*Face).exists},
		{"POST", session + "/ls", forSession, smallBody, (*Face).ls},
		{"POST", session + "/glob", forSession, smallBody, (*Face).glob},
		{"POST", session + "/grep", forSession, smallBody, (*Face).grep},
	}
}

var table = routes()

// match answers the parameters of path if it is one of the template's.
func (t route) match(path string) (map[string]string, bool) {
	want, have := strings.Split(t.path, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return nil, false
	}
	var params map[string]string
	for i, w := range want {
		switch {
		case strings.HasPrefix(w, "{") && have[i] != "":
			if params == nil {
				params = map[string]string{}
			}
			params[strings.Trim(w, "{}")] = have[i]
		case w != have[i]:
			return nil, false
		}
	}
	return params, true
}

// find answers the route of a request, and the methods that its path takes.
func find(method, path string) (found *route, params map[string]string, methods []string) {
	for i := range table {
		p, ok := table[i].match(path)
		if !ok {
			continue
		}
		if table[i].method == method && found == nil {
			found, params = &table[i], p
		}
		if !slices.Contains(methods, table[i].method) {
			methods = append(methods, table[i].method)
		}
	}
	return found, params, methods
}

// call is one request on its way.
type call struct {
	w       http.ResponseWriter
	r       *http.Request
	id      string // session_id, if the route has one
	run     string // run_id, likewise
	service bool   // it came with the service token
	session sandboxd.SessionRecord
	body    object
	query   url.Values
	faults  []fault // of path and query
}

func (c *call) ctx() context.Context { return c.r.Context() }

var (
	idPattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	runPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

func (f *Face) serve(w http.ResponseWriter, r *http.Request) {
	rt, params, methods := find(r.Method, r.URL.Path)
	if rt == nil {
		f.noRoute(w, r, methods)
		return
	}
	c := &call{w: w, r: r, id: params["session_id"], run: params["run_id"], query: r.URL.Query()}
	err := f.admit(c, rt)
	if err == nil {
		err = rt.handle(f, c)
	}
	if err != nil {
		f.fail(w, r, err)
	}
}

func (f *Face) noRoute(w http.ResponseWriter, r *http.Request, methods []string) {
	if len(methods) > 0 {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		f.fail(w, r, refuse(http.StatusMethodNotAllowed, "Method Not Allowed"))
		return
	}
	if bare := strings.TrimRight(r.URL.Path, "/"); bare != r.URL.Path && bare != "" {
		if _, _, methods := find("", bare); len(methods) > 0 {
			to := url.URL{Path: bare, RawQuery: r.URL.RawQuery}
			w.Header().Set("Location", to.String())
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
	}
	f.fail(w, r, refuse(http.StatusNotFound, "Not Found"))
}

// admit reads the body and decides who is served, in the order of the wire: JSON that is
// broken, names that cannot be, the secret, whether the session is open, all other
// findings.
func (f *Face) admit(c *call, rt *route) error {
	if err := f.readBody(c, rt); err != nil {
		return err
	}
	badID := c.id != "" && !idPattern.MatchString(c.id)
	if badID {
		c.mismatch("session_id", c.id, idPattern)
	}
	if rt.access == forService || rt.access == forSession && !badID {
		if err := f.authorize(c, rt.access); err != nil {
			return err
		}
	}
	if c.run != "" && !runPattern.MatchString(c.run) {
		c.mismatch("run_id", c.run, runPattern)
	}
	return nil
}

func (c *call) mismatch(name, value string, pattern *regexp.Regexp) {
	c.faults = append(c.faults, fault{Type: "string_pattern_mismatch", Loc: []any{"path", name},
		Msg: "String should match pattern '" + pattern.String() + "'", Input: value, Ctx: map[string]any{"pattern": pattern.String()}})
}

const (
	strangerBody = 64 << 10
	strangerTime = time.Second
)

// readBody reads a JSON body before anything is decided. A stranger's is not waited for
// and not kept, beyond what is polite.
func (f *Face) readBody(c *call, rt *route) error {
	if rt.body == 0 {
		return nil
	}
	limit := rt.body
	if f.stranger(c) {
		limit = strangerBody
		api.Hurry(c.r, strangerTime)
	}
	data, err := bounded.Read(c.r.Body, c.r.ContentLength, limit)
	switch {
	case err != nil && limit == strangerBody:
		c.w.Header().Set("Connection", "close")
		return unauthorized()
	case errors.Is(err, bounded.ErrTooLarge):
		c.w.Header().Set("Connection", "close")
		return refuse(http.StatusRequestEntityTooLarge, "Request body is too large")
	case err != nil:
		return err
	}
	var broken *fault
	if c.body, broken = parseObject(data); broken != nil {
		return &problem{status: http.StatusUnprocessableEntity, detail: []fault{*broken}}
	}
	return nil
}

// valid answers what was wrong with the request, after all of it was read.
func (c *call) valid() error {
	all := c.faults
	if c.body.faults != nil {
		all = append(all, *c.body.faults...)
	}
	if len(all) == 0 {
		return nil
	}
	return &problem{status: http.StatusUnprocessableEntity, detail: all}
}

// problem is an answer that is an error of the wire.
type problem struct {
	status int
	detail any
	retry  string // Retry-After
	cause  error  // for the log
}

func (p *problem) Error() string {
	if s, ok := p.detail.(string); ok {
		return s
	}
	return http.StatusText(p.status)
}

func (p *problem) Unwrap() error { return p.cause }

func refuse(status int, detail string) *problem { return &problem{status: status, detail: detail} }

func unauthorized() *problem {
	return refuse(http.StatusUnauthorized, "Invalid or missing sandbox token")
}

func noSession(id string) *problem { return refuse(http.StatusNotFound, "No such session: "+id) }

// fail answers an error. Those of the host that no handler has given a text keep their
// class's status.
func (f *Face) fail(w http.ResponseWriter, r *http.Request, err error) {
	api.Note(r.Context(), err)
	var p *problem
	var e *sandboxd.Error
	switch {
	case errors.As(err, &p):
	case errors.As(err, &e):
		p = refuse(e.Class.HTTPStatus(), e.Public())
		if e.Class.Retryable() {
			p.retry = "1"
		}
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody is there to be answered
	default:
		panic(err)
	}
	if p.retry != "" {
		w.Header().Set("Retry-After", p.retry)
	}
	answer(w, p.status, map[string]any{"detail": p.detail})
}

// answer sends v as the one JSON object of an answer.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// ok answers a value.
func (c *call) ok(v any) error {
	answer(c.w, http.StatusOK, v)
	return nil
}

// done answers that there is nothing to say.
func (c *call) done() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// seconds is a moment as the wire has it.
func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
