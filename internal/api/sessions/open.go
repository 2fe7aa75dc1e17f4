package sessions

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"sandboxd"
)

// opening is one opening of an id, until it has succeeded or failed.
type opening struct {
	tenant string
	done   chan struct{}
}

// claim makes id the caller's to open. Otherwise it answers who opens it now.
func (f *Face) claim(id, tenant string) (mine, others *opening) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.opening[id]; o != nil {
		return nil, o
	}
	o := &opening{tenant: tenant, done: make(chan struct{})}
	f.opening[id] = o
	return o, nil
}

func (f *Face) unclaim(id string, o *opening) {
	f.mu.Lock()
	delete(f.opening, id)
	f.mu.Unlock()
	close(o.done)
}

// wanted is the request for a session.
type wanted struct {
	id      string
	runtime *string // as asked for
	alias   string  // what that means
	tenant  string
	attach  bool // never create
	share   bool // an open one will do: reuse or attach
}

// created answers an opening.
type created struct {
	Session info   `json:"session"`
	Token   string `json:"token"`
}

// open is POST /sessions. The order of its refusals is the wire's.
func (f *Face) open(c *call) error {
	id, runtime, tenant := c.body.optional("session_id", idPattern), c.body.optional("runtime", nil), c.body.optional("tenant", idPattern)
	reuse, attach := c.body.flag("reuse", false), c.body.flag("attach", false)
	if err := c.valid(); err != nil {
		return err
	}
	w := wanted{runtime: runtime, attach: attach, share: reuse || attach}
	if tenant != nil {
		w.tenant = *tenant
	}
	var err error
	if w.alias, err = f.resolve(c.ctx(), runtime); err != nil {
		return err
	}
	switch {
	case id != nil:
		w.id = *id
	case attach:
		return refuse(http.StatusBadRequest, "attach needs the session_id to attach to")
	default:
		w.id = newSessionID()
	}
	answer, err := f.obtain(c.ctx(), w)
	if err != nil {
		return err
	}
	return c.ok(answer)
}

func newSessionID() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // the kernel's generator does not fail
	return "s-" + hex.EncodeToString(raw[:])
}

// resolve answers the runtime that a name means; none and the empty one mean the default.
func (f *Face) resolve(ctx context.Context, name *string) (string, error) {
	list, err := f.cfg.Host.Runtimes(ctx)
	if err != nil {
		return "", err
	}
	policy, err := f.cfg.Lifetimes.Policy(ctx)
	if err != nil {
		return "", err
	}
	asked := policy.DefaultRuntime
	if name != nil && *name != "" {
		asked = *name
	}
	aliases := make([]string, len(list))
	for i, rt := range list {
		aliases[i] = rt.Name
	}
	if slices.Contains(aliases, asked) {
		return asked, nil
	}
	slices.Sort(aliases)
	return "", refuse(http.StatusBadRequest, fmt.Sprintf("Unknown runtime %s. Allowed: %s", quoted(asked), strings.Join(aliases, ", ")))
}

// obtain opens the session or attaches to it.
func (f *Face) obtain(ctx context.Context, w wanted) (created, error) {
	var none created
	patience := time.NewTimer(f.wait.opening)
	defer patience.Stop()
	for {
		rec, sb, err := f.current(ctx, w.id)
		switch {
		case err == nil && !w.share:
			return none, refuse(http.StatusConflict, "Session exists: "+w.id)
		case err == nil:
			return f.attachTo(ctx, rec, sb, w)
		case sandboxd.ClassOf(err) != sandboxd.ClassNotFound:
			return none, err
		}
		mine, others := f.claim(w.id, w.tenant)
		if mine != nil {
			return f.begin(ctx, w, mine)
		}
		if !w.share {
			return none, refuse(http.StatusConflict, "Session is opening: "+w.id)
		}
		select {
		case <-others.done:
		case <-patience.C:
			p := refuse(http.StatusConflict, "Session is opening: "+w.id)
			p.retry = "1"
			return none, p
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}

// openTries bounds how often an opening that a purge overtook is begun.
const openTries = 3

// begin opens under a claim. The work goes on when its caller leaves: whoever asks next
// for the id finds it open.
func (f *Face) begin(ctx context.Context, w wanted, mine *opening) (created, error) {
	type outcome struct {
		created
		err error
	}
	ended := make(chan outcome, 1)
	go func() {
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.wait.start)
		defer cancel()
		var o outcome
		for tries := 1; ; tries++ {
			o.created, o.err = f.create(work, w)
			// Purged by somebody meanwhile: the id is free again.
			if tries == openTries || sandboxd.ClassOf(o.err) != sandboxd.ClassGone || o.err == nil {
				break
			}
		}
		f.unclaim(w.id, mine)
		ended <- o
	}()
	select {
	case o := <-ended:
		return o.created, o.err
	case <-ctx.Done():
		return created{}, ctx.Err()
	}
}

// create makes the sandbox, or takes up the kept one of the key, and records the session.
func (f *Face) create(ctx context.Context, w wanted) (created, error) {
	var none created
	if rec, sb, err := f.current(ctx, w.id); err == nil { // opened between the look and the claim
		if !w.share {
			return none, refuse(http.StatusConflict, "Session exists: "+w.id)
		}
		return f.attachTo(ctx, rec, sb, w)
	} else if sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		return none, err
	}
	kept, err := f.kept(ctx, w.id)
	if err != nil {
		return none, err
	}
	if kept == nil && w.attach {
		return none, refuse(http.StatusNotFound, "Nothing to attach to: "+w.id)
	}
	if kept != nil {
		if kept.Face != sandboxd.FaceSessions {
			return none, refuse(http.StatusBadRequest, "Session "+w.id+" would be a sandbox that was not opened here. Choose another id.")
		}
		// What is installed belongs to the files: it is remembered, and not replaced.
		if w.runtime != nil && w.alias != kept.Runtime {
			return none, runtimeConflict(w.id, kept.Runtime, *w.runtime)
		}
		// And so does whose they are, as with a session that is open.
		w.alias, w.tenant = kept.Runtime, kept.Tenant
	}
	sb, made, err := f.cfg.Host.Open(ctx, sandboxd.OpenRequest{Key: w.id, Runtime: w.alias, Tenant: w.tenant, Env: defaultEnv(), Face: sandboxd.FaceSessions})
	if err != nil {
		if made {
			// Nothing was ever in it, and nobody has been told of it.
			if err := f.cfg.Host.Delete(ctx, sb.ID); err != nil && sandboxd.ClassOf(err) != sandboxd.ClassGone {
				f.cfg.Log.Warn("a sandbox whose start failed was not deleted", "sandbox", sb.ID, "error", err.Error())
			}
		}
		return none, f.notStarted(ctx, w, err)
	}
	now := f.cfg.Clock()
	rec := sandboxd.SessionRecord{ID: w.id, Life: sandboxd.NewID(), SandboxID: sb.ID, Runtime: w.alias, Tenant: sb.Tenant, CreatedAt: now, LastActivity: now}
	if err := f.cfg.Sessions.CreateSession(ctx, rec); err != nil {
		return none, err
	}
	return created{Session: f.describe(rec, sb), Token: f.auth.token(rec.Life)}, nil
}

// kept answers the sandbox of a key whose files are there; nil for none.
func (f *Face) kept(ctx context.Context, key string) (*sandboxd.Sandbox, error) {
	list, err := f.cfg.Host.List(ctx, key)
	if err != nil || len(list) == 0 || list[0].State == sandboxd.StateDeleting || list[0].State == sandboxd.StateLost {
		return nil, err
	}
	return &list[0], nil
}

// attachTo answers an open session with the token that its opening was given. One that
// was put to sleep is woken.
func (f *Face) attachTo(ctx context.Context, rec sandboxd.SessionRecord, sb sandboxd.Sandbox, w wanted) (created, error) {
	if w.runtime != nil && *w.runtime != rec.Runtime {
		return created{}, runtimeConflict(rec.ID, rec.Runtime, *w.runtime)
	}
	if sb.Asleep {
		woken, err := f.cfg.Host.Start(ctx, sb.ID)
		if err != nil {
			return created{}, f.notWoken(ctx, rec.ID, err)
		}
		sb = woken
	}
	rec.LastActivity = f.cfg.Clock()
	if err := f.cfg.Sessions.TouchSession(ctx, rec.Life, rec.LastActivity, 0); err != nil {
		return created{}, err
	}
	return created{Session: f.describe(rec, sb), Token: f.auth.token(rec.Life)}, nil
}

func runtimeConflict(id, is, asked string) *problem {
	return refuse(http.StatusConflict, fmt.Sprintf("Session %s is open on runtime %s, not %s. Close it before changing runtime.", id, quoted(is), quoted(asked)))
}

// notStarted gives the error of an opening the wire's words.
func (f *Face) notStarted(ctx context.Context, w wanted, err error) error {
	var e *sandboxd.Error
	if !errors.As(err, &e) {
		e = sandboxd.Wrap(sandboxd.ClassOf(err), err, "the sandbox did not start")
	}
	switch {
	case e.Class == sandboxd.ClassCapacity:
		return &problem{status: http.StatusTooManyRequests, detail: f.ceilingText(ctx, w.tenant, e), retry: retryAfter(e), cause: err}
	case e.Field == Draining:
		return &problem{status: http.StatusServiceUnavailable, detail: e.Message, retry: retryAfter(e), cause: err}
	}
	return &problem{status: http.StatusBadGateway, detail: "Could not start sandbox: " + e.Public(), cause: err}
}

// Draining is the field of an error of Host.Open on a host that takes no new sandboxes.
const Draining = "draining"

// notWoken does so for a session that sleeps or whose sandbox ended.
func (f *Face) notWoken(ctx context.Context, id string, err error) error {
	var e *sandboxd.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Class {
	case sandboxd.ClassCapacity:
		return &problem{status: http.StatusTooManyRequests, detail: "Cannot wake session " + id + ": " + f.ceilingText(ctx, "", e), retry: retryAfter(e), cause: err}
	case sandboxd.ClassNotFound:
		return noSession(id)
	case sandboxd.ClassGone:
		return f.gone(id, err)
	}
	return err
}

// gone answers what has become of a session whose sandbox is no more.
func (f *Face) gone(id string, err error) error {
	p := refuse(http.StatusGone, "The sandbox of session "+id+" is gone, and its files with it")
	p.cause = err
	return p
}

// ceilingText says which ceiling was met.
func (f *Face) ceilingText(ctx context.Context, tenant string, e *sandboxd.Error) string {
	policy, err := f.cfg.Lifetimes.Policy(ctx)
	if e.Ceiling == nil || err != nil {
		return e.Public()
	}
	switch e.Ceiling.Name {
	case sandboxd.CeilingTenant:
		return fmt.Sprintf("Tenant %s already holds %d of %d sessions. Release an idle session before opening another.", quoted(tenant), e.Ceiling.Held, e.Ceiling.Limit)
	case sandboxd.CeilingOpen:
		return fmt.Sprintf("Service holds its ceiling of %d open sessions and all of them are in use. Close one before opening another.", e.Ceiling.Limit)
	}
	limit := e.Ceiling.Limit
	if policy.MaxRunning != nil {
		limit = *policy.MaxRunning
	}
	return fmt.Sprintf("Session limit of %d reached. Release an idle session before opening another.", limit)
}

func retryAfter(e *sandboxd.Error) string {
	return fmt.Sprint(max(1, int(e.RetryS+0.999)))
}

// defaultEnv is what every command of the wire's sandboxes is given: an identity for
// git, and tools that neither ask nor page.
func defaultEnv() map[string]string {
	return map[string]string{
		"GIT_CONFIG_COUNT": "5",
		"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
		"GIT_CONFIG_KEY_1": "user.name", "GIT_CONFIG_VALUE_1": "Agent",
		"GIT_CONFIG_KEY_2": "user.email", "GIT_CONFIG_VALUE_2": "agent@sandbox.local",
		"GIT_CONFIG_KEY_3": "init.defaultBranch", "GIT_CONFIG_VALUE_3": "main",
		"GIT_CONFIG_KEY_4": "advice.detachedHead", "GIT_CONFIG_VALUE_4": "false",
		"GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "PAGER": "cat", "NO_COLOR": "1", "LANG": "C.UTF-8",
		"PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore",
		"UV_CONCURRENT_DOWNLOADS": "2", "UV_CONCURRENT_INSTALLS": "2", "UV_COMPILE_BYTECODE": "1", "DEBIAN_FRONTEND": "noninteractive",
	}
}
