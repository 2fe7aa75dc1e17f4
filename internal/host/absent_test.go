package host

import (
	"context"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/store"
)

// other is the fake driver under another name.
type other struct{ sandboxd.Driver }

func (other) Name() string { return "other" }

// A sandbox whose driver is gone keeps its files, can be deleted while cold, and
// says what is wrong when it is to run.
func TestDriverThatIsGone(t *testing.T) {
	dir, st, world := t.TempDir(), store.NewMemory(), fake.NewWorld(fake.Config{})
	open := func(d sandboxd.Driver) *Host {
		h, err := New(t.Context(), Config{DataDir: dir, Store: st, Drivers: []sandboxd.Driver{d}, UIDs: testUIDs()})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	d := fake.New(world)
	h := open(d)
	no := false
	cold, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Key: "cold", Start: &no})
	if err != nil {
		t.Fatal(err)
	}
	running, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Key: "running"})
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	d.Close()

	od := other{fake.New(fake.NewWorld(fake.Config{}))}
	h = open(od)
	f, err := h.Files(t.Context(), cold.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(t.Context(), "f", strings.NewReader("x"), sandboxd.WriteOptions{Size: 1}); err != nil {
		t.Errorf("files of a sandbox without its driver: %v", err)
	}
	for _, id := range []string{cold.ID, running.ID} {
		if _, err := h.Start(t.Context(), id); sandboxd.ClassOf(err) == sandboxd.ClassInternal || err == nil {
			t.Errorf("start without the driver: %v", err)
		}
	}
	if sb, err := h.Get(t.Context(), running.ID); err != nil || sb.State != sandboxd.StateRunning {
		t.Errorf("what cannot be looked at changed: %+v, %v", sb, err)
	}
	if err := h.Delete(t.Context(), cold.ID); err != nil {
		t.Errorf("delete without the driver: %v", err)
	}
	h.Close()
	od.Close()

	d = fake.New(world)
	h = open(d)
	if sb, err := h.Get(t.Context(), running.ID); err != nil || sb.State != sandboxd.StateRunning || sb.Generation != 1 {
		t.Errorf("not adopted when the driver is back: %+v, %v", sb, err)
	}
	if err := h.StopAll(context.Background()); err != nil {
		t.Error(err)
	}
	h.Close()
	d.Close()
}
