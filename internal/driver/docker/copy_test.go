package docker

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
)

// A server on a copy of the data directory knows the same ids and handles. What runs
// is the original's: the copy neither adopts nor removes it, and its own sandbox of
// the same id is another.
func TestACopyOfTheDataDirectory(t *testing.T) {
	e := dockertest.Find(t, "runc")
	dir := t.TempDir()
	original, copied := openDriver(t, e, dir), openDriver(t, e, t.TempDir())
	defer original.Close()
	defer copied.Close()
	spec := newSpec(t, dir)
	handle, err := original.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer original.Stop(context.Background(), spec.ID)
	alive := func(when string) {
		t.Helper()
		if err := drivertest.Attach(t, original, spec.ID).Link.Ping(t.Context()); err != nil {
			t.Fatalf("after %s: %v", when, err)
		}
	}
	if err := copied.Adopt(t.Context(), spec.ID, handle); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Errorf("the copy adopts what is the original's: %v", err)
	}
	alive("an adoption by the copy")
	if err := copied.Stop(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	alive("a stop by the copy")
	if ids, err := copied.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("the copy lists %v, %v", ids, err)
	}
	other := newSpec(t, copied.cfg.DataDir)
	other.ID = spec.ID
	if _, err := copied.Start(t.Context(), other); err != nil {
		t.Fatalf("the copy starts its own: %v", err)
	}
	alive("a start of the copy")
	if err := copied.Stop(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
	alive("a stop of the copy's own")

	// The same directory by another name is no copy.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	same := openDriver(t, e, link)
	defer same.Close()
	if ids, err := same.List(t.Context()); err != nil || len(ids) != 1 || ids[0] != spec.ID {
		t.Errorf("by another name: %v, %v", ids, err)
	}
}
