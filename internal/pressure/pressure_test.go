package pressure

import (
	"strings"
	"testing"

	"sandboxd/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	plenty = "MemTotal:       10000000 kB\nMemFree:  1 kB\nMemAvailable:    5000000 kB\n"
	some   = "MemTotal:       10000000 kB\nMemAvailable:    1000000 kB\n"
	little = "MemTotal:       10000000 kB\nMemAvailable:     500000 kB\n"
	none   = "MemTotal:       10000000 kB\nMemAvailable:     200000 kB\n"
	calm   = "some avg10=50.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.50 avg60=90.00 avg300=0.00 total=0\n"
	stalls = "some avg10=50.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=12.34 avg60=0.00 avg300=0.00 total=0\n"
)

func TestShort(t *testing.T) {
	for _, tc := range []struct {
		memory, stalls string
		short          bool
	}{
		{plenty, calm, false}, {plenty, stalls, false}, {plenty, "", false},
		{some, calm, false}, {some, stalls, true}, {some, "", false},
		{little, calm, false}, {little, stalls, true}, {little, "", true},
		{none, calm, true}, {none, "", true}, {none, "full avg10=x\n\nfull\n", true},
	} {
		r, err := parse(tc.memory, tc.stalls)
		if err != nil || r.Short() != tc.short {
			t.Errorf("%q %q: short %v, want %v; %v", tc.memory, tc.stalls, r.Short(), tc.short, err)
		}
	}
	for _, bad := range []string{"", "MemTotal: x kB\n", "MemTotal: 5 kB\n", "MemTotal:\n"} {
		if r, err := parse(bad, stalls); err == nil {
			t.Errorf("%q: %+v, %v", bad, r, err)
		}
	}
	r, _ := parse(some, stalls)
	if text := r.String(); !strings.Contains(text, "976 MiB of 9765 MiB") || !strings.Contains(text, "12 %") {
		t.Error(text)
	}
}

func TestMachine(t *testing.T) {
	r, err := Machine()
	if err != nil || r.Total < 64<<20 || r.Available > r.Total {
		t.Fatalf("%+v, %v", r, err)
	}
}
