package drivertest

import (
	"testing"
	"time"

	"sandboxd"
)

// testSamples asks for counters: they only grow, and end with the environment.
func testSamples(t *testing.T, f *fixture) {
	sampler, ok := f.d.(sandboxd.Sampler)
	if !ok {
		t.Fatal("the driver measures nothing")
	}
	if _, err := sampler.Sample(t.Context(), sandboxd.NewID()); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Errorf("of nobody: %v", err)
	}
	spec, _ := f.mustStart()
	first, err := sampler.Sample(t.Context(), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	Attach(t, f.d, spec.ID).Run("echo", "hello")
	second, err := sampler.Sample(t.Context(), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if first.CPU < 0 || second.CPU < first.CPU || second.IOBytes < first.IOBytes {
		t.Errorf("%+v, then %+v", first, second)
	}
	for _, n := range []*int64{second.MemoryBytes, second.MemoryLimit, second.PIDs} {
		if n != nil && *n < 0 {
			t.Errorf("%+v", second)
		}
	}
	// Counters of another, as of the whole machine, would be larger.
	if second.CPU > 10*time.Second {
		t.Errorf("%v of processor time for one command", second.CPU)
	}
	if second.MemoryBytes != nil && (second.MemoryLimit == nil || *second.MemoryBytes > *second.MemoryLimit) {
		t.Errorf("more memory than the limit: %+v", second)
	}
	if second.MemoryLimit != nil && *second.MemoryLimit != spec.Limits.MemoryBytes {
		t.Errorf("the limit is %d, not %d", *second.MemoryLimit, spec.Limits.MemoryBytes)
	}
	if err := f.d.Stop(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	if s, err := sampler.Sample(t.Context(), spec.ID); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Errorf("after the stop: %+v, %v", s, err)
	}
}
