package docker

import (
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
)

// What a killed server's trial left is removed by whoever comes next, and what somebody
// tries just now is not.
func TestLeftProbesAreSwept(t *testing.T) {
	e, err := newEngine(dockertest.Find(t, "runc").Host, lookTime)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	name, err := e.emptyImage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.sweepProbes(t.Context(), time.Hour); err != nil {
		t.Error(err)
	}
	if _, err := e.image(t.Context(), name); err != nil {
		t.Errorf("one that is new: %v", err)
	}
	if err := e.sweepProbes(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if _, err := e.image(t.Context(), name); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Errorf("one that is old: %v", err)
	}
}
