package host

import (
	"context"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/store"
)

// lateStore answers a listing that a command's ending has overtaken.
type lateStore struct {
	sandboxd.HostStore
	meanwhile func()
}

func (s *lateStore) ListCommands(ctx context.Context, sandbox string) ([]sandboxd.CommandRecord, error) {
	recs, err := s.HostStore.ListCommands(ctx, sandbox)
	if s.meanwhile != nil {
		s.meanwhile()
	}
	return recs, err
}

// Who has read an ending finds it in every later listing.
func TestListingIsNotOlderThanItsCall(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	defer world.Close()
	d := fake.New(world)
	defer d.Close()
	late := &lateStore{HostStore: store.NewMemory()}
	h, err := New(t.Context(), Config{DataDir: t.TempDir(), Store: late, Drivers: []sandboxd.Driver{d}, UIDs: testUIDs()})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{ID: "c", Argv: []string{"sleep", "600"}, Background: true}); err != nil {
		t.Fatal(err)
	}
	late.meanwhile = func() {
		if _, err := h.StopCommand(t.Context(), sb.ID, "c", 0); err != nil {
			t.Error(err)
		}
	}
	list, err := h.ListCommands(t.Context(), sb.ID)
	if err != nil || len(list) != 1 || list[0].Ending == nil {
		t.Fatalf("the command has ended, and is listed as %+v, %v", list, err)
	}
}
