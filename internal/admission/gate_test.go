package admission

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"sandboxd"
)

func bound(n int) *int { return &n }

func mustOpen(t *testing.T, g *Gate, id, tenant string) {
	t.Helper()
	if c := g.Open(id, tenant); c != nil {
		t.Fatalf("%s of %s: %+v", id, tenant, *c)
	}
}

// A burst of one tenant gets exactly what it may have, and takes nothing from another.
func TestTenantCeilingUnderABurst(t *testing.T) {
	g := New(Ceilings{Tenant: bound(10)})
	var in atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			switch c := g.Open(fmt.Sprint("id", i), "acme"); {
			case c == nil:
				in.Add(1)
			case *c != sandboxd.Ceiling{Name: sandboxd.CeilingTenant, Tenant: "acme", Held: 10, Limit: 10}:
				t.Errorf("refused by %+v", *c)
			}
		})
	}
	wg.Wait()
	if in.Load() != 10 {
		t.Fatalf("%d of 100 were let in, want 10", in.Load())
	}
	mustOpen(t, g, "other", "umbrella")
	mustOpen(t, g, "nobody's", "")
	mustOpen(t, g, "id0x", "")
	g.Close("other")
	mustOpen(t, g, "again", "umbrella")
}

// Who is open already does not count against itself, and 0 refuses all.
func TestCeilings(t *testing.T) {
	g := New(Ceilings{Open: bound(1)})
	mustOpen(t, g, "a", "x")
	mustOpen(t, g, "a", "x")
	if c := g.Open("b", "y"); c == nil || *c != (sandboxd.Ceiling{Name: sandboxd.CeilingOpen, Held: 1, Limit: 1}) {
		t.Fatalf("refused by %+v", c)
	}
	g.SetCeilings(Ceilings{Open: bound(0), Running: bound(0)})
	mustOpen(t, g, "a", "x") // a lower ceiling takes nothing away
	if c := g.Open("b", "y"); c == nil || c.Limit != 0 {
		t.Fatalf("refused by %+v", c)
	}
	if g.Join("a").Has() {
		t.Fatal("a place was given that is not there")
	}
}

// Places go round the tenants, first come first served within one.
func TestTurns(t *testing.T) {
	g := New(Ceilings{Running: bound(1)})
	mustOpen(t, g, "holder", "")
	if !g.Join("holder").Has() || g.Room(5) != 0 {
		t.Fatal("a free place was not given")
	}
	var turns []*Turn
	for _, id := range []string{"a1", "a2", "a3", "b1", "b2", "c1"} {
		mustOpen(t, g, id, id[:1])
		turn := g.Join(id)
		if turn == nil || turn.Has() {
			t.Fatalf("%s: %v", id, turn)
		}
		turns = append(turns, turn)
	}
	if c, had := turns[1].GiveUp(); had || c != (sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Held: 1, Limit: 1}) { // a2 leaves
		t.Fatalf("%+v, %v", c, had)
	}
	g.Leave("holder")
	var got []string
	for range 5 {
		for _, turn := range turns {
			if turn.Has() && !slices.Contains(got, turn.id) {
				got = append(got, turn.id)
				g.Close(turn.id)
				break
			}
		}
	}
	if want := []string{"a1", "b1", "c1", "a3", "b2"}; !slices.Equal(got, want) {
		t.Fatalf("in turn %v, want %v", got, want)
	}
	if g.waiting != 0 || len(g.lanes) != 0 || len(g.order) != 0 || g.places != 0 {
		t.Fatalf("left: %d waiting, lanes %v, order %v, %d places", g.waiting, g.lanes, g.order, g.places)
	}
}

// One tenant cannot fill the queue; a raised ceiling lets all in that fit.
func TestBoundsOfTheQueue(t *testing.T) {
	g := New(Ceilings{Running: bound(0)})
	in := 0
	for i := range 2 * mostOfTenant {
		id := fmt.Sprint(i)
		mustOpen(t, g, id, "acme")
		if g.Join(id) != nil {
			in++
		}
	}
	mustOpen(t, g, "other", "umbrella")
	other := g.Join("other")
	if in != mostOfTenant || other == nil {
		t.Fatalf("%d of one tenant wait, and another's %v", in, other)
	}
	g.Close("other") // while it waits: its place is nobody's
	g.SetCeilings(Ceilings{Running: bound(3)})
	if n := len(g.Places()); n != 3 || other.Has() {
		t.Fatalf("%d places were given, to a closed one: %v", n, other.Has())
	}
	g.SetCeilings(Ceilings{})
	if n := len(g.Places()); n != mostOfTenant || g.Room(7) != 7 {
		t.Fatalf("%d places are taken, room for %d", n, g.Room(7))
	}
}
