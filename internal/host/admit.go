package host

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/admission"
	"sandboxd/internal/policy"
)

// How long an opening waits for a place when its request does not say. A client of
// the sessions wire gives up after 30 s, and is to hear the answer before.
const (
	waitSessions = 10 * time.Second
	waitElse     = 30 * time.Second
)

// lookAgain is how often who waits looks whether somebody has become idle enough to
// make room.
const lookAgain = time.Second

// openPolicy reads the policy and makes the gate that obeys it.
func (h *Host) openPolicy(ctx context.Context) error {
	base := sandboxd.DefaultPolicy()
	if h.cfg.Policy != nil {
		base = *h.cfg.Policy
	}
	if _, listed := h.entry(base.DefaultRuntime); h.cfg.Runtimes != nil && !listed {
		base.DefaultRuntime = h.cfg.Runtimes.Entries()[0].Name
	}
	if h.cfg.MaxSandboxes != 0 {
		base.MaxRunning = &h.cfg.MaxSandboxes
	}
	kept, err := policy.Open(ctx, policy.Config{Base: base, Store: h.store, Overrides: h.cfg.Overrides, Words: h.cfg.OverrideWords, Runtime: h.hasRuntime, Log: h.log})
	if err != nil {
		return err
	}
	h.policy, h.gate = kept, admission.New(ceilings(kept.Now()))
	return nil
}

func (h *Host) hasRuntime(name string) bool {
	_, listed := h.entry(name)
	return listed || h.cfg.Runtimes == nil && name == sandboxd.RuntimeMachine
}

func ceilings(p sandboxd.Policy) admission.Ceilings {
	return admission.Ceilings{Running: p.MaxRunning, Open: p.MaxOpen, Tenant: p.MaxPerTenant}
}

// obey has what looks at the policy itself do as it says now.
func (h *Host) obey() {
	h.gate.SetCeilings(ceilings(h.policy.Now()))
	h.shareRoom()
	h.adapt()
	select {
	case h.retick <- struct{}{}:
	default:
	}
}

// staysOpen says whether a sandbox of this face is open until somebody closes it,
// with an environment or without. The others are while they have one.
func staysOpen(face string) bool { return face != sandboxd.FaceNative }

// keepsPlace says whether an open sandbox counts as running although it is cold: on
// the sessions face all do that were not put to sleep.
func keepsPlace(rec sandboxd.Sandbox) bool {
	return rec.Open && !rec.Asleep && rec.Face == sandboxd.FaceSessions
}

// admitOpen lets a sandbox count as open. At the open ceiling the one that sleeps
// for longest is closed for it.
func (h *Host) admitOpen(ctx context.Context, id, tenant string) error {
	for {
		c := h.gate.Open(id, tenant)
		if c == nil {
			return nil
		}
		if c.Name != sandboxd.CeilingOpen || !h.closeSleeper(ctx) {
			return h.refused(ctx, *c)
		}
	}
}

// admitPlace gets a place for an open sandbox, waiting for it in turn.
func (h *Host) admitPlace(ctx context.Context, id string, wait time.Duration) error {
	turn := h.gate.Join(id)
	if turn == nil {
		return h.refused(ctx, h.gate.Running())
	}
	defer h.shareRoom()
	var again <-chan time.Time
	var over <-chan time.Time
	for {
		for !turn.Has() && h.evictIdle(ctx) {
		}
		if turn.Has() {
			return nil
		}
		if again == nil && wait > 0 {
			ticker, timer := time.NewTicker(lookAgain), time.NewTimer(wait)
			defer ticker.Stop()
			defer timer.Stop()
			again, over = ticker.C, timer.C
		}
		if wait > 0 {
			select {
			case <-turn.Granted():
				return nil
			case <-again:
				continue
			case <-over:
			case <-ctx.Done():
			}
		}
		c, had := turn.GiveUp()
		if had {
			return nil
		}
		if err := ctx.Err(); err != nil && err != context.DeadlineExceeded {
			return err
		}
		return h.refused(context.WithoutCancel(ctx), c)
	}
}

// waitOf is how long an opening by a face may wait.
func waitOf(face string) time.Duration {
	if face == sandboxd.FaceSessions {
		return waitSessions
	}
	return waitElse
}

// refused is the error of a ceiling: what holds the places, and when to ask again.
func (h *Host) refused(ctx context.Context, c sandboxd.Ceiling) error {
	var e *sandboxd.Error
	switch c.Name {
	case sandboxd.CeilingTenant:
		e = sandboxd.Errorf(sandboxd.ClassCapacity, "the tenant %s already holds %d of %d sandboxes", c.Tenant, c.Held, c.Limit).
			WithHint("close or delete one of the tenant's, or raise max_per_tenant of the policy")
	case sandboxd.CeilingOpen:
		e = sandboxd.Errorf(sandboxd.ClassCapacity, "%d of %d sandboxes are open and none of them sleeps", c.Held, c.Limit).
			WithHint("close or delete one, or raise max_open of the policy")
	default:
		names := h.gate.Places()
		for i, id := range names {
			if rec, err := h.store.Get(ctx, id); err == nil {
				names[i] = rec.Key
			}
		}
		slices.Sort(names)
		e = sandboxd.Errorf(sandboxd.ClassCapacity, "%d of %d places are taken by: %s", c.Held, c.Limit, joinSome(names, 20)).
			WithHint("stop or delete one of them, or raise max_running of the policy (--max-sandboxes)")
	}
	e.Ceiling, e.RetryS = &c, retryAfter
	return e
}

// retryAfter is when a refused opening may try again.
const retryAfter sandboxd.Seconds = 5

// counted brings the gate up to date with a record that was just stored.
func (h *Host) counted(rec sandboxd.Sandbox) {
	switch {
	case !rec.Open, rec.State == sandboxd.StateDeleting, rec.State == sandboxd.StateDeleted:
		h.gate.Close(rec.ID)
	case !rec.State.HasEnvironment() && !keepsPlace(rec):
		h.gate.Leave(rec.ID)
	}
	h.shareRoom()
}

// shareRoom tells the drivers how many environments they may keep ready: an
// environment that nobody has counts like one that somebody has, and gives way to it.
func (h *Host) shareRoom() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.pooling {
		return
	}
	room := h.gate.Room(h.cfg.Ready * len(h.cfg.Drivers))
	for _, d := range h.cfg.Drivers {
		p, ok := d.(sandboxd.EnvironmentPool)
		if !ok {
			continue
		}
		n := min(h.cfg.Ready, room)
		room -= n
		if was, told := h.ready[d.Name()]; !told || was != n {
			h.ready[d.Name()] = n
			p.KeepReady(n)
		}
	}
}

// turns has those who want the same name go one at a time.
type turns struct {
	mu   sync.Mutex
	busy map[string]*turnOf
}

type turnOf struct {
	free chan struct{} // holds one token while nobody has it
	want int
}

// take waits for the name and answers how to give it back.
func (t *turns) take(ctx context.Context, name string) (func(), error) {
	t.mu.Lock()
	if t.busy == nil {
		t.busy = map[string]*turnOf{}
	}
	one := t.busy[name]
	if one == nil {
		one = &turnOf{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		t.busy[name] = one
	}
	one.want++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.want--; one.want == 0 {
			delete(t.busy, name)
		}
	}
	select {
	case <-one.free:
		return func() { one.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

func joinSome(names []string, most int) string {
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// limitsOf is what a sandbox gets that its request says nothing of: what the policy
// changed of its runtime's entry, what the entry says, and the policy's for all.
func (h *Host) limitsOf(runtime string) sandboxd.Limits { return h.limitsBy(h.policy.Now(), runtime) }

func (h *Host) limitsBy(p sandboxd.Policy, runtime string) sandboxd.Limits {
	limits := p.Limits
	if e, listed := h.entry(runtime); listed {
		limits = filled(e.Limits, limits)
	}
	change := p.Runtimes[runtime]
	if change.MemoryBytes != nil {
		limits.MemoryBytes = *change.MemoryBytes
	}
	if change.SwapBytes != nil {
		limits.SwapBytes = *change.SwapBytes
	}
	if change.CPUs != nil {
		limits.CPUs = *change.CPUs
	}
	if change.CPUShares != nil {
		limits.CPUShares = *change.CPUShares
	}
	if change.PIDs != nil {
		limits.PIDs = *change.PIDs
	}
	return limits
}

// filled is l with the fields of def for those that are not stated. Swap that def has
// beside less memory is none beside more.
func filled(l, def sandboxd.Limits) sandboxd.Limits {
	all := sandboxd.Limits{
		MemoryBytes: cmp.Or(l.MemoryBytes, def.MemoryBytes), SwapBytes: l.SwapBytes, CPUs: cmp.Or(l.CPUs, def.CPUs),
		CPUShares: cmp.Or(l.CPUShares, def.CPUShares), PIDs: cmp.Or(l.PIDs, def.PIDs),
		TmpBytes: cmp.Or(l.TmpBytes, def.TmpBytes), HomeBytes: cmp.Or(l.HomeBytes, def.HomeBytes), OpenFiles: cmp.Or(l.OpenFiles, def.OpenFiles),
	}
	if all.SwapBytes == 0 && def.SwapBytes >= all.MemoryBytes {
		all.SwapBytes = def.SwapBytes
	}
	return all
}

// fillLimits puts what is there for what the request leaves out.
func fillLimits(l *sandboxd.Limits, def sandboxd.Limits) error {
	*l = withRoom(filled(*l, def))
	return policy.CheckLimits("limits", *l)
}

// What the directories in memory leave of a sandbox's memory when they are full. They are
// full for good: no process has that memory, so ending some gives none back. Without room
// beside it no command could start that removes a file, and the kernel would take an init
// that is in the same limit.
const roomBesideScratch = 16 << 20

// withRoom is l with a /tmp and a /dev/shm that leave room.
func withRoom(l sandboxd.Limits) sandboxd.Limits {
	l.TmpBytes = min(l.TmpBytes, max(1<<20, (l.MemoryBytes-roomBesideScratch)/2))
	return l
}
