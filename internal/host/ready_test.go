package host

import (
	"slices"
	"sync"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/store"
)

// told is a driver that notes what it may keep ready.
type told struct {
	*fake.Driver
	mu   sync.Mutex
	room []int
}

func (d *told) KeepReady(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.room) == 0 || d.room[len(d.room)-1] != n {
		d.room = append(d.room, n)
	}
}

func (d *told) wants(t *testing.T, what string, want ...int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.room, want) {
		t.Errorf("%s: the driver was told %v, want %v", what, d.room, want)
	}
	d.room = nil
}

// What is ready counts as what runs, and gives way to it.
func TestReadyEnvironmentsCountAsPlaces(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	defer world.Close()
	dir, st := t.TempDir(), store.NewMemory()
	open := func() (*Host, *told) {
		d := &told{Driver: fake.New(world)}
		h, err := New(t.Context(), Config{DataDir: dir, Store: st, Drivers: []sandboxd.Driver{d}, UIDs: testUIDs(), MaxSandboxes: 3, Ready: 2})
		if err != nil {
			t.Fatal(err)
		}
		return h, d
	}
	h, d := open()
	d.wants(t, "three places are free", 2)
	var ids []string
	for range 3 {
		sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.ID)
	}
	d.wants(t, "all places are taken", 1, 0)
	if _, _, err := h.Open(t.Context(), sandboxd.OpenRequest{WaitS: new(sandboxd.Seconds)}); sandboxd.ClassOf(err) != sandboxd.ClassCapacity {
		t.Errorf("a fourth one: %v", err)
	}
	if _, err := h.Stop(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	d.wants(t, "one was stopped", 1)
	h.Close()
	d.Close()
	h, d = open()
	d.wants(t, "two were adopted: nothing is told before they are known", 1)
	if err := h.Delete(t.Context(), ids[1]); err != nil {
		t.Fatal(err)
	}
	d.wants(t, "one was deleted", 2)
	h.Close()
	d.Close()
}
