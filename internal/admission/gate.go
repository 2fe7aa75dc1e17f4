// Package admission counts the sandboxes of a host against its ceilings and lets
// those that must wait for a place have one in turn.
//
// It knows ids and tenants only. It starts, stops and closes nothing: who has to
// make room for another is the host's to say.
package admission

import (
	"slices"
	"sync"

	"sandboxd"
)

// Ceilings are what may be at most; nil is no bound.
type Ceilings struct{ Running, Open, Tenant *int }

// The bounds of those that wait.
const (
	mostWaiting  = 1024
	mostOfTenant = 64
)

// Gate counts. Methods are safe for concurrent use.
//
// An id is open, or not known. One that is open may have a place: it counts against
// Ceilings.Running. To be open counts against the other two. What is being opened
// counts as if it were.
type Gate struct {
	mu       sync.Mutex
	ceilings Ceilings
	open     map[string]*holding
	places   int
	lanes    map[string][]*Turn // who waits, by tenant
	order    []string           // the tenants with somebody who waits, the next one in front
	waiting  int
}

type holding struct {
	tenant string
	place  bool
}

// New makes a gate that nobody has passed.
func New(c Ceilings) *Gate {
	return &Gate{ceilings: c, open: map[string]*holding{}, lanes: map[string][]*Turn{}}
}

// SetCeilings changes the ceilings. A lower one takes nothing from anybody.
func (g *Gate) SetCeilings(c Ceilings) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ceilings = c
	g.grant()
}

// Restore notes what is so already, whatever the ceilings are.
func (g *Gate) Restore(id, tenant string, place bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.holding(id, tenant)
	if place && !h.place {
		h.place = true
		g.places++
	}
}

func (g *Gate) holding(id, tenant string) *holding {
	h := g.open[id]
	if h == nil {
		h = &holding{tenant: tenant}
		g.open[id] = h
	}
	return h
}

// Open lets an id be open; one that is needs no leave. It answers the ceiling that
// is in the way, or nil. An empty tenant is nobody's and not counted.
func (g *Gate) Open(id, tenant string) *sandboxd.Ceiling {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[id] != nil {
		return nil
	}
	if c := g.ceilings.Open; c != nil && len(g.open) >= *c {
		return &sandboxd.Ceiling{Name: sandboxd.CeilingOpen, Held: len(g.open), Limit: *c}
	}
	if c := g.ceilings.Tenant; c != nil && tenant != "" {
		if held := g.ofTenant(tenant); held >= *c {
			return &sandboxd.Ceiling{Name: sandboxd.CeilingTenant, Tenant: tenant, Held: held, Limit: *c}
		}
	}
	g.open[id] = &holding{tenant: tenant}
	return nil
}

func (g *Gate) ofTenant(tenant string) int {
	n := 0
	for _, h := range g.open {
		if h.tenant == tenant {
			n++
		}
	}
	return n
}

// Leave gives up a place; the id stays open.
func (g *Gate) Leave(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.open[id]; h != nil && h.place {
		h.place = false
		g.places--
		g.grant()
	}
}

// Close forgets an id, and its place with it.
func (g *Gate) Close(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.open[id]; h != nil {
		delete(g.open, id)
		if h.place {
			g.places--
			g.grant()
		}
	}
}

// Places names who has one, in no order.
func (g *Gate) Places() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var ids []string
	for id, h := range g.open {
		if h.place {
			ids = append(ids, id)
		}
	}
	return ids
}

// Room is how many places are free, or most if that is fewer.
func (g *Gate) Room(most int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ceilings.Running == nil {
		return most
	}
	return max(0, min(most, *g.ceilings.Running-g.places))
}

// Turn is a wait for a place.
type Turn struct {
	g      *Gate
	id     string
	tenant string
	had    chan struct{}
}

// Join asks for a place for an id that is open. It is given at once when one is free
// and nobody waits, else in turn: one tenant after the other, and within a tenant who
// came first. Too many who wait are refused: then it answers nil.
func (g *Gate) Join(id string) *Turn {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &Turn{g: g, id: id, had: make(chan struct{})}
	h := g.open[id]
	if h == nil {
		h = g.holding(id, "")
	}
	if h.place {
		close(t.had)
		return t
	}
	t.tenant = h.tenant
	if g.waiting >= mostWaiting || len(g.lanes[t.tenant]) >= mostOfTenant {
		return nil
	}
	if len(g.lanes[t.tenant]) == 0 {
		g.order = append(g.order, t.tenant)
	}
	g.lanes[t.tenant] = append(g.lanes[t.tenant], t)
	g.waiting++
	g.grant()
	return t
}

// grant gives free places to those who wait. Under mu.
func (g *Gate) grant() {
	for len(g.order) > 0 && (g.ceilings.Running == nil || g.places < *g.ceilings.Running) {
		tenant := g.order[0]
		t := g.lanes[tenant][0]
		g.unqueue(t)
		if len(g.lanes[tenant]) > 0 { // its next one after those of the others
			g.order = append(slices.DeleteFunc(g.order, func(s string) bool { return s == tenant }), tenant)
		}
		if h := g.open[t.id]; h != nil { // else it was closed while it waited
			if !h.place {
				h.place = true
				g.places++
			}
			close(t.had)
		}
	}
}

// unqueue takes a turn off its lane, if it is there. Under mu.
func (g *Gate) unqueue(t *Turn) {
	lane := g.lanes[t.tenant]
	i := slices.Index(lane, t)
	if i < 0 {
		return
	}
	g.waiting--
	if lane = slices.Delete(lane, i, i+1); len(lane) > 0 {
		g.lanes[t.tenant] = lane
		return
	}
	delete(g.lanes, t.tenant)
	g.order = slices.DeleteFunc(g.order, func(s string) bool { return s == t.tenant })
}

// Granted is closed when the place is there.
func (t *Turn) Granted() <-chan struct{} { return t.had }

// Has says whether the place is there.
func (t *Turn) Has() bool {
	select {
	case <-t.had:
		return true
	default:
		return false
	}
}

// GiveUp ends the wait, unless the place came meanwhile: then had is true and the id
// keeps it. Otherwise it answers the ceiling that was in the way.
func (t *Turn) GiveUp() (ceiling sandboxd.Ceiling, had bool) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	t.g.unqueue(t)
	if t.Has() {
		return sandboxd.Ceiling{}, true
	}
	return t.g.running(), false
}

// running is the ceiling of places as it stands. Under mu.
func (g *Gate) running() sandboxd.Ceiling {
	c := sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Held: g.places}
	if g.ceilings.Running != nil {
		c.Limit = *g.ceilings.Running
	}
	return c
}

// Running is the ceiling of places as it stands.
func (g *Gate) Running() sandboxd.Ceiling {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running()
}
