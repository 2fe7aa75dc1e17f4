package clock

import (
	"testing"
	"time"

	"sandboxd"
)

func at(wall time.Duration, boot string, since time.Duration) Moment {
	return Moment{Wall: time.Unix(1_700_000_000, 0).Add(wall), Boot: sandboxd.BootTime{ID: boot, Since: since}}
}

func TestElapsed(t *testing.T) {
	for _, tc := range []struct {
		name     string
		from, to Moment
		want     time.Duration
	}{
		{"one boot", at(0, "a", time.Hour), at(time.Minute, "a", time.Hour+time.Minute), time.Minute},
		{"one boot, wall set back", at(0, "a", time.Hour), at(-5*time.Hour, "a", time.Hour+time.Minute), time.Minute},
		{"one boot, wall set forward", at(0, "a", time.Hour), at(5*time.Hour, "a", time.Hour+time.Minute), time.Minute},
		{"one boot, backward", at(0, "a", time.Hour), at(0, "a", time.Minute), 0},
		{"another boot", at(0, "a", time.Hour), at(time.Minute, "b", time.Second), time.Minute},
		{"another boot, later since it", at(0, "a", time.Hour), at(time.Minute, "b", 9*time.Hour), time.Minute},
		{"another boot, wall set back", at(0, "a", time.Hour), at(-time.Minute, "b", time.Second), 0},
		{"no boot known", at(0, "", 0), at(time.Minute, "", 0), time.Minute},
		{"kept before boots were", at(0, "", 0), at(time.Minute, "b", time.Hour), time.Minute},
	} {
		if got := Elapsed(tc.from, tc.to); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestMachine: this machine has both clocks, and they go on.
func TestMachine(t *testing.T) {
	one, two := Machine(), Machine()
	if one.Boot.ID == "" || one.Boot.ID != two.Boot.ID || one.Boot.Since <= 0 || two.Boot.Since < one.Boot.Since {
		t.Fatalf("boot times %+v and %+v", one.Boot, two.Boot)
	}
	if d := time.Since(one.Wall); d < 0 || d > time.Minute {
		t.Fatalf("wall time is off by %v", d)
	}
}
