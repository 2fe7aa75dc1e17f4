package drivertest

import (
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
)

// testKeep ends environments whose root is to stay, and starts them again.
func testKeep(t *testing.T, f *fixture) {
	k, ok := f.d.(sandboxd.Keeper)
	captest.Need(t, "driver-keeps", ok, "the driver keeps nothing of an environment")
	wantClass(t, "of nobody", k.Keep(f.context(), sandboxd.NewID()), sandboxd.ClassGone)
	spec := f.Spec(t)
	spec.WritableRoot = true
	never := spec
	never.Kept = true
	_, err := f.start(never)
	wantClass(t, "a start of what was never kept", err, sandboxd.ClassGone)
	if _, err := f.start(spec); err != nil {
		t.Fatal(err)
	}
	for range 2 { // kept before is no error
		if err := k.Keep(f.context(), spec.ID); err != nil {
			t.Fatal(err)
		}
		f.wantRunning(spec.ID, false)
	}
	spec.Generation, spec.Kept = spec.Generation+1, true
	handle, err := f.start(spec)
	if err != nil {
		t.Fatal(err)
	}
	f.wantRunning(spec.ID, true)
	if r := Attach(t, f.d, spec.ID).Run("echo", "hello"); r.Stdout != "hello\n" {
		t.Errorf("%+v", r)
	}
	if f.survives() {
		f.reopen()
		if err := f.d.Adopt(f.context(), spec.ID, handle); err != nil {
			t.Fatalf("adopt: %v", err)
		}
		f.wantRunning(spec.ID, true)
		k = f.d.(sandboxd.Keeper)
	}
	if err := k.Keep(f.context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	if err := f.d.Stop(f.context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	wantClass(t, "after a stop", k.Keep(f.context(), spec.ID), sandboxd.ClassGone)
	_, err = f.start(spec)
	wantClass(t, "a start of what was stopped", err, sandboxd.ClassGone)
}
