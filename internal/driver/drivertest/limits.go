package drivertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/guest/wire"
)

// testLimits changes what runs: the kernel and the counters say the new limits, also over
// a restart of the server, and it goes on. What cannot be had leaves what there was.
func testLimits(t *testing.T, f *fixture) {
	spec, handle := f.mustStart()
	changer, ok := f.d.(sandboxd.LimitChanger)
	if f.Fixed != "" {
		if ok {
			f.wantFixed(changer, spec, handle)
		}
		return
	}
	if !ok {
		t.Fatal("the driver changes no limits")
	}
	if _, err := changer.ChangeLimits(t.Context(), sandboxd.NewID(), handle, spec.Limits); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Errorf("of nobody: %v", err)
	}
	usual := f.wantLimits(spec.ID, "at first", spec.Limits)
	var last sandboxd.Limits
	change := func(l sandboxd.Limits) int64 {
		t.Helper()
		changed, err := changer.ChangeLimits(t.Context(), spec.ID, handle, l)
		if err != nil {
			t.Fatalf("%+v: %v", l, err)
		}
		handle, last = changed, l
		return f.wantLimits(spec.ID, "changed", l)
	}
	change(sandboxd.Limits{MemoryBytes: 192 << 20, CPUs: 0.5, PIDs: 60})
	if lower := change(sandboxd.Limits{MemoryBytes: 96 << 20, SwapBytes: 160 << 20, CPUs: 1.5, CPUShares: 300, PIDs: 200}); f.Group != nil && lower >= usual {
		t.Errorf("300 shares are a weight of %d where the usual is %d", lower, usual)
	}
	if same := change(sandboxd.Limits{MemoryBytes: 64 << 20, CPUs: 1, CPUShares: 1024, PIDs: 60}); same != usual {
		t.Errorf("1024 shares are a weight of %d, and the usual is %d", same, usual)
	}
	if again := change(sandboxd.Limits{MemoryBytes: 256 << 20, CPUs: 1, PIDs: 100}); again != usual {
		t.Errorf("the usual weight is %d again, and was %d", again, usual)
	}
	f.reopen()
	if err := f.d.Adopt(t.Context(), spec.ID, handle); err != nil {
		t.Fatal(err)
	}
	changer = f.d.(sandboxd.LimitChanger)
	f.wantLimits(spec.ID, "after a restart of the server", last)
	change(sandboxd.Limits{MemoryBytes: 128 << 20, SwapBytes: 192 << 20, CPUs: 1, CPUShares: 300, PIDs: 100})
	if f.Group == nil {
		return
	}

	const held = 48 << 20
	if r := Attach(t, f.d, spec.ID).Run(f.Fill(held)...); r.Exit.Code != 0 || r.Exit.Signal != 0 {
		t.Fatalf("memory is not taken: %+v", r)
	}
	for _, test := range []struct {
		what  string
		l     sandboxd.Limits
		class sandboxd.Class
	}{
		{"less memory than is used", sandboxd.Limits{MemoryBytes: held / 2, SwapBytes: 512 << 20, CPUs: 0.5, PIDs: 50}, sandboxd.ClassConflict},
		// The kernel has put the others in force when it comes to this.
		{"more processes than the kernel can count", sandboxd.Limits{MemoryBytes: 112 << 20, CPUs: 0.5, PIDs: 1 << 40}, sandboxd.ClassUnavailable},
		{"the same with more memory", sandboxd.Limits{MemoryBytes: 512 << 20, CPUs: 0.5, PIDs: 1 << 40}, sandboxd.ClassUnavailable},
	} {
		_, err := changer.ChangeLimits(t.Context(), spec.ID, handle, test.l)
		if err == nil || sandboxd.ClassOf(err) != test.class {
			t.Errorf("%s: %v, not of class %s", test.what, err, test.class)
		}
		f.wantLimits(spec.ID, test.what, last)
	}
	// Fewer processes than there are end none.
	id, err := Attach(t, f.d, spec.ID).Start(wire.Start{Argv: f.Sleep, Env: Environment()})
	if err != nil {
		t.Fatal(err)
	}
	change(sandboxd.Limits{MemoryBytes: 2 * held, CPUs: 1, PIDs: 1})
	s := Attach(t, f.d, spec.ID)
	if known := s.Link.Commands(); len(known) == 0 || known[len(known)-1].ID != id || known[len(known)-1].Ended {
		t.Errorf("commands when there may be one process: %+v", known)
	}
}

// wantLimits says what else than l is in force, and answers the weight among processors.
// A command runs: it is no smaller group that has them.
func (f *fixture) wantLimits(id, when string, l sandboxd.Limits) (weight int64) {
	f.t.Helper()
	s, err := f.d.(sandboxd.Sampler).Sample(f.t.Context(), id)
	if err != nil || s.MemoryLimit == nil || *s.MemoryLimit != l.MemoryBytes {
		f.t.Errorf("%s: a sample says %+v, %v; the limit is %d", when, s, err, l.MemoryBytes)
	}
	if f.Group == nil {
		return 0
	}
	swap := max(l.MemoryBytes, l.SwapBytes)
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	quota := int64(l.CPUs * 100_000)
	seen := map[string]int{}
	for _, limit := range []struct{ controller, what, file, want string }{
		{"memory", "memory", "memory.limit_in_bytes", number(l.MemoryBytes)},
		{"memory", "memory", "memory.max", number(l.MemoryBytes)},
		{"memory", "swap", "memory.memsw.limit_in_bytes", number(swap)},
		{"memory", "swap", "memory.swap.max", number(swap - l.MemoryBytes)},
		{"pids", "processes", "pids.max", number(l.PIDs + f.OwnProcesses)},
		{"cpu", "processors", "cpu.cfs_quota_us", number(quota)},
		{"cpu", "processors", "cpu.max", fmt.Sprint(quota, " 100000")},
		{"cpu", "weight", "cpu.shares", ""},
		{"cpu", "weight", "cpu.weight", ""},
	} {
		text, err := os.ReadFile(filepath.Join(f.Group(f.t, f.d, id, limit.controller), limit.file))
		if err != nil {
			continue
		}
		seen[limit.what]++
		got := strings.TrimSpace(string(text))
		if limit.what == "weight" {
			if weight, err = strconv.ParseInt(got, 10, 64); err != nil {
				f.t.Errorf("%s: %v", when, err)
			}
		} else if got != limit.want {
			f.t.Errorf("%s: %s is %s, not %s", when, limit.file, got, limit.want)
		}
	}
	for _, what := range []string{"memory", "processes", "processors", "weight", "swap"} {
		if seen[what] != 1 {
			f.t.Errorf("%s: the limit of %s was found %d times", when, what, seen[what])
		}
	}
	return weight
}

// wantFixed has a driver refuse what it cannot do, and the environment go on.
func (f *fixture) wantFixed(changer sandboxd.LimitChanger, spec sandboxd.EnvironmentSpec, handle sandboxd.Handle) {
	f.t.Helper()
	before, err := f.d.(sandboxd.Sampler).Sample(f.t.Context(), spec.ID)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, memory := range []int64{spec.Limits.MemoryBytes / 2, spec.Limits.MemoryBytes * 2} {
		l := spec.Limits
		l.MemoryBytes = memory
		_, err := changer.ChangeLimits(f.t.Context(), spec.ID, handle, l)
		if class := sandboxd.ClassOf(err); err == nil || class != sandboxd.ClassUnsupported && class != sandboxd.ClassUnavailable {
			f.t.Errorf("where %s: %v", f.Fixed, err)
		}
		after, err := f.d.(sandboxd.Sampler).Sample(f.t.Context(), spec.ID)
		if err != nil || (before.MemoryLimit == nil) != (after.MemoryLimit == nil) || after.MemoryLimit != nil && *after.MemoryLimit != *before.MemoryLimit {
			f.t.Errorf("the limit after that: %+v, %v", after, err)
		}
	}
	if r := Attach(f.t, f.d, spec.ID).Run(f.Echo("hello")...); r.Stdout != "hello\n" {
		f.t.Errorf("echo: %+v", r)
	}
}
