package limits

import (
	"context"
	"errors"
	"testing"

	"sandboxd"
)

func TestQuota(t *testing.T) {
	for cpus, want := range map[float64]int64{0: 0, -1: 0, 0.001: 1000, 0.29: 29_000, 0.55: 55_000, 1: 100_000, 2.5: 250_000} {
		if got := Quota(cpus); got != want {
			t.Errorf("%v processors are %d, not %d", cpus, got, want)
		}
	}
}

// counted is a sampler that answers the memory in use, nil for nobody knows, or an error.
type counted struct {
	memory *int64
	err    error
}

func (c counted) Sample(context.Context, string) (sandboxd.Sample, error) {
	return sandboxd.Sample{MemoryBytes: c.memory}, c.err
}

func TestFits(t *testing.T) {
	used, gone := int64(100), sandboxd.Errorf(sandboxd.ClassGone, "it has ended")
	for _, test := range []struct {
		what   string
		d      counted
		wanted int64
		class  sandboxd.Class
	}{
		{"more, which nobody need count", counted{err: errors.New("asked")}, 301, ""},
		{"as much as before", counted{err: errors.New("asked")}, 300, ""},
		{"less than before", counted{memory: &used}, 100, ""},
		{"less than is used", counted{memory: &used}, 99, sandboxd.ClassConflict},
		{"less, where nobody counts", counted{}, 299, sandboxd.ClassUnsupported},
		{"less, of what has ended", counted{err: gone}, 299, sandboxd.ClassGone},
	} {
		err := Fits(t.Context(), test.d, "", sandboxd.Limits{MemoryBytes: 300}, sandboxd.Limits{MemoryBytes: test.wanted})
		if (err == nil) != (test.class == "") || err != nil && sandboxd.ClassOf(err) != test.class {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}
