package drivertest

import (
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
)

// testLimits changes what runs: its counters say the new limit, also over a restart of
// the server, and it goes on.
func testLimits(t *testing.T, f *fixture) {
	changer, ok := f.d.(sandboxd.LimitChanger)
	captest.Need(t, "driver-limits", ok, "the driver changes no limits")
	spec, handle := f.mustStart()
	if _, err := changer.ChangeLimits(t.Context(), sandboxd.NewID(), handle, spec.Limits); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Errorf("of nobody: %v", err)
	}
	limit := func() int64 {
		t.Helper()
		s, err := f.d.(sandboxd.Sampler).Sample(t.Context(), spec.ID)
		if err != nil || s.MemoryLimit == nil {
			t.Fatalf("%+v, %v", s, err)
		}
		return *s.MemoryLimit
	}
	for _, l := range []sandboxd.Limits{
		{MemoryBytes: 192 << 20, CPUs: 0.5, PIDs: 60},
		{MemoryBytes: 96 << 20, SwapBytes: 160 << 20, CPUs: 1.5, CPUShares: 300, PIDs: 200},
		{MemoryBytes: 256 << 20, CPUs: 1, PIDs: 100},
	} {
		changed, err := changer.ChangeLimits(t.Context(), spec.ID, handle, l)
		if sandboxd.ClassOf(err) == sandboxd.ClassUnavailable || sandboxd.ClassOf(err) == sandboxd.ClassUnsupported {
			captest.Need(t, "driver-limits-change", false, err.Error())
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := limit(); got != l.MemoryBytes {
			t.Errorf("%+v: the limit is %d", l, got)
		}
		Attach(t, f.d, spec.ID).Run("echo", "hello")
		handle = changed
	}
	f.reopen()
	if err := f.d.Adopt(t.Context(), spec.ID, handle); err != nil {
		t.Fatal(err)
	}
	changer = f.d.(sandboxd.LimitChanger)
	if _, err := changer.ChangeLimits(t.Context(), spec.ID, handle, sandboxd.Limits{MemoryBytes: 128 << 20, CPUs: 1, PIDs: 100}); err != nil {
		t.Fatal(err)
	}
	if got := limit(); got != 128<<20 {
		t.Errorf("after a restart of the server the limit is %d", got)
	}
	if err := f.d.Stop(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
}
