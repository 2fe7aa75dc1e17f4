package app

import "testing"

func TestUnitOf(t *testing.T) {
	for _, tc := range []struct {
		groups, unit string
		user         bool
	}{
		{"0::/system.slice/sandboxd.service\n", "sandboxd.service", false},
		{"0::/system.slice/sandboxd.service/payload\n", "sandboxd.service", false},
		{"4:memory:/other.service\n1:name=systemd:/system.slice/sandboxd.service\n", "sandboxd.service", false},
		{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/mine.service\n", "mine.service", true},
		{"0::/user.slice/user-1000.slice/session-2.scope\n", "", false},
		{"0::/\n", "", false},
		{"", "", false},
	} {
		if unit, user := unitOf(tc.groups); unit != tc.unit || user != tc.user {
			t.Errorf("%q: %q, %v", tc.groups, unit, user)
		}
	}
}
