package sessions

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"sandboxd"
)

// info is a session as the wire shows it.
type info struct {
	ID           string  `json:"session_id"`
	Runtime      string  `json:"runtime"`
	Tenant       *string `json:"tenant"`
	Alive        bool    `json:"alive"`
	State        string  `json:"state"`
	CreatedAt    float64 `json:"created_at"`
	LastActivity float64 `json:"last_activity"`
	IdleSeconds  float64 `json:"idle_seconds"`
	Usage        *usage  `json:"usage"`
}

// The wire knows two states. A session is hibernated when it was put to sleep for room;
// every other one that is open is running, one without an environment included.
const (
	stateRunning    = "running"
	stateHibernated = "hibernated"
)

// describe shows a session and touches nothing.
func (f *Face) describe(rec sandboxd.SessionRecord, sb sandboxd.Sandbox) info {
	last := rec.LastActivity
	if a := f.knownActivity(rec.Life); a != nil {
		if t := a.latest(); t.After(last) {
			last = t
		}
	}
	i := info{ID: rec.ID, Runtime: rec.Runtime, Alive: sb.State == sandboxd.StateRunning && !sb.Asleep, State: stateRunning,
		CreatedAt: seconds(rec.CreatedAt), LastActivity: seconds(last), IdleSeconds: max(0, f.cfg.Clock().Sub(last).Seconds())}
	if rec.Tenant != "" {
		i.Tenant = &rec.Tenant
	}
	if sb.Asleep {
		i.State = stateHibernated
	}
	return i
}

// current answers the open session of an id and its sandbox; ClassNotFound when there is
// none. A record whose sandbox was closed or deleted behind the face's back is forgotten.
func (f *Face) current(ctx context.Context, id string) (sandboxd.SessionRecord, sandboxd.Sandbox, error) {
	rec, err := f.cfg.Sessions.GetSession(ctx, id)
	if err != nil {
		return rec, sandboxd.Sandbox{}, err
	}
	sb, err := f.sandboxOf(ctx, rec)
	return rec, sb, err
}

func (f *Face) sandboxOf(ctx context.Context, rec sandboxd.SessionRecord) (sandboxd.Sandbox, error) {
	sb, err := f.cfg.Host.Get(ctx, rec.SandboxID)
	over := err == nil && !sb.Open
	if class := sandboxd.ClassOf(err); err != nil && (class == sandboxd.ClassNotFound || class == sandboxd.ClassGone) {
		over = true
	}
	switch {
	case over:
		if err := f.forget(ctx, rec); err != nil {
			return sb, err
		}
		return sb, sandboxd.Errorf(sandboxd.ClassNotFound, "the session %s is closed", rec.ID)
	case err != nil:
		return sb, err
	}
	return sb, nil
}

// forget ends a session: its token opens nothing from now on.
func (f *Face) forget(ctx context.Context, rec sandboxd.SessionRecord) error {
	if err := f.cfg.Sessions.DeleteSession(ctx, rec.Life); err != nil {
		return err
	}
	f.mu.Lock()
	a := f.activities[rec.Life]
	delete(f.activities, rec.Life)
	delete(f.samples, rec.Life)
	f.mu.Unlock()
	if a != nil {
		a.close()
	}
	return nil
}

// opened answers the session that a request of a session's route is about, and its
// sandbox, after all else about the request was found to be right.
func (f *Face) opened(c *call) (sandboxd.Sandbox, error) {
	if err := c.valid(); err != nil {
		return sandboxd.Sandbox{}, err
	}
	if c.session.ID == "" {
		return sandboxd.Sandbox{}, noSession(c.id)
	}
	sb, err := f.sandboxOf(c.ctx(), c.session)
	if err != nil && sandboxd.ClassOf(err) == sandboxd.ClassNotFound {
		if !c.service {
			return sb, unauthorized()
		}
		return sb, noSession(c.id)
	}
	return sb, err
}

// listing answers GET /sessions.
type listing struct {
	Sessions    []info `json:"sessions"`
	Limit       *int   `json:"limit"`
	OpenLimit   *int   `json:"open_limit"`
	TenantLimit *int   `json:"tenant_limit"`
}

func (f *Face) list(c *call) error {
	sample := queryFlag(c.query, "usage", &c.faults)
	if err := c.valid(); err != nil {
		return err
	}
	policy, err := f.cfg.Lifetimes.Policy(c.ctx())
	if err != nil {
		return err
	}
	recs, boxes, err := f.all(c.ctx())
	if err != nil {
		return err
	}
	l := listing{Sessions: []info{}, Limit: policy.MaxRunning, OpenLimit: policy.MaxOpen, TenantLimit: policy.MaxPerTenant}
	for i, rec := range recs {
		l.Sessions = append(l.Sessions, f.describe(rec, boxes[i]))
	}
	if sample {
		f.sampleAll(c.ctx(), recs, l.Sessions)
	}
	return c.ok(l)
}

// all answers every open session with its sandbox.
func (f *Face) all(ctx context.Context) ([]sandboxd.SessionRecord, []sandboxd.Sandbox, error) {
	recs, err := f.cfg.Sessions.ListSessions(ctx)
	if err != nil {
		return nil, nil, err
	}
	list, err := f.cfg.Host.List(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	byID := make(map[string]sandboxd.Sandbox, len(list))
	for _, sb := range list {
		byID[sb.ID] = sb
	}
	boxes := make([]sandboxd.Sandbox, 0, len(recs))
	recs = slices.DeleteFunc(recs, func(rec sandboxd.SessionRecord) bool {
		sb, ok := byID[rec.SandboxID]
		if !ok || !sb.Open {
			return true // forgotten when somebody asks for it
		}
		boxes = append(boxes, sb)
		return false
	})
	return recs, boxes, nil
}

func (f *Face) get(c *call) error {
	sample := queryFlag(c.query, "usage", &c.faults)
	sb, err := f.opened(c)
	if err != nil {
		return err
	}
	i := f.describe(c.session, sb)
	if sample {
		i.Usage = f.usageOf(c.ctx(), c.session)
	}
	return c.ok(i)
}

// remove is DELETE: it closes the session and keeps the files, or with purge deletes
// both. What a closed session left can be purged too, by who may open sessions.
func (f *Face) remove(c *call) error {
	purge := queryFlag(c.query, "purge", &c.faults)
	_, err := f.opened(c)
	var p *problem
	if errors.As(err, &p) && p.status == http.StatusNotFound && purge && c.service {
		return f.purgeKept(c)
	}
	if err != nil {
		return err
	}
	rec := c.session
	if a := f.knownActivity(rec.Life); a != nil {
		a.close()
	}
	if purge {
		err = f.cfg.Host.Delete(c.ctx(), rec.SandboxID)
	} else {
		_, err = f.cfg.Lifetimes.CloseSandbox(c.ctx(), rec.SandboxID)
	}
	if class := sandboxd.ClassOf(err); err != nil && class != sandboxd.ClassNotFound && class != sandboxd.ClassGone {
		// It is as open as before; its runs that were told otherwise are over.
		f.mu.Lock()
		delete(f.activities, rec.Life)
		f.mu.Unlock()
		return err
	}
	// Last: who is interrupted before this asks again.
	if err := f.forget(c.ctx(), rec); err != nil {
		return err
	}
	return c.done()
}

func (f *Face) purgeKept(c *call) error {
	list, err := f.cfg.Host.List(c.ctx(), c.id)
	if err != nil {
		return err
	}
	if len(list) == 0 || list[0].Face != sandboxd.FaceSessions {
		return noSession(c.id)
	}
	if err := f.cfg.Host.Delete(c.ctx(), list[0].ID); err != nil && sandboxd.ClassOf(err) != sandboxd.ClassGone {
		return err
	}
	return c.done()
}

// eventList answers what was done in a session.
type eventList struct {
	Events    []event `json:"events"`
	LatestSeq int64   `json:"latest_seq"`
}

func (f *Face) events(c *call) error {
	after := queryCount(c.query, "after", &c.faults)
	if _, err := f.opened(c); err != nil {
		return err
	}
	l := eventList{Events: []event{}, LatestSeq: c.session.LastSeq}
	if a := f.knownActivity(c.session.Life); a != nil {
		l.Events, l.LatestSeq = a.since(after)
	}
	return c.ok(l)
}

// usage is what a sandbox takes, as the wire shows it.
type usage struct {
	MemoryBytes      *int64   `json:"memory_bytes"`
	MemoryLimitBytes *int64   `json:"memory_limit_bytes"`
	CPUPercent       *float64 `json:"cpu_percent"`
	PIDs             *int64   `json:"pids"`
}

// sampleAge is how long a sample of the usage is shown again.
const sampleAge = 5 * time.Second

type sample struct {
	at    time.Time
	cpu   *float64 // seconds
	shown usage
}

// usageOf samples a session's sandbox; nil when that fails, because a figure that is
// missing is no reason to answer nothing.
func (f *Face) usageOf(ctx context.Context, rec sandboxd.SessionRecord) *usage {
	f.mu.Lock()
	was, known := f.samples[rec.Life]
	f.mu.Unlock()
	now := f.cfg.Clock()
	if known && now.Sub(was.at) < sampleAge {
		return &was.shown
	}
	got, err := f.cfg.Lifetimes.Usage(ctx, rec.SandboxID)
	if err != nil {
		f.cfg.Log.Debug("usage not sampled", "sandbox", rec.SandboxID, "error", err.Error())
		return nil
	}
	is := sample{at: now, cpu: got.CPUSeconds, shown: usage{MemoryBytes: got.MemoryBytes, MemoryLimitBytes: got.MemoryLimitBytes, PIDs: got.PIDs}}
	if known && was.cpu != nil && is.cpu != nil && *is.cpu >= *was.cpu {
		percent := (*is.cpu - *was.cpu) / now.Sub(was.at).Seconds() * 100
		is.shown.CPUPercent = &percent
	}
	f.mu.Lock()
	f.samples[rec.Life] = is
	f.mu.Unlock()
	return &is.shown
}

// sampleAll fills in the usage of a list. One sample after the other: each is a read of
// counters.
func (f *Face) sampleAll(ctx context.Context, recs []sandboxd.SessionRecord, shown []info) {
	for i, rec := range recs {
		shown[i].Usage = f.usageOf(ctx, rec)
	}
}
