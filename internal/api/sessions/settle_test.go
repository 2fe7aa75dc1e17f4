package sessions

import (
	"testing"

	"sandboxd"
)

// A process that ended in the middle of openings leaves no place taken.
func TestSettle(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "told"})
	began := func(key, face string, start bool) string {
		t.Helper()
		sb, _, err := r.lifetimes.Open(t.Context(), sandboxd.OpenRequest{Key: key, Face: face, Tenant: "acme", Start: &start})
		if err != nil {
			t.Fatal(err)
		}
		return sb.ID
	}
	again, native := began("again", sandboxd.FaceSessions, true), began("native", "", true)
	first := began("first", sandboxd.FaceSessions, false)
	for range 2 {
		if err := Settle(t.Context(), r.lifetimes, r.lifetimes, r.store); err != nil {
			t.Fatal(err)
		}
		if sb, err := r.Get(t.Context(), first); sandboxd.ClassOf(err) != sandboxd.ClassNotFound && sandboxd.ClassOf(err) != sandboxd.ClassGone {
			t.Errorf("what never began is %+v, %v", sb, err)
		}
		if sb, err := r.Get(t.Context(), again); err != nil || sb.Open {
			t.Errorf("what was there before is %+v, %v", sb, err)
		}
		if sb, err := r.Get(t.Context(), native); err != nil || !sb.Open {
			t.Errorf("what is not of this wire is %+v, %v", sb, err)
		}
		if got := r.do("GET", "/sessions/told", token, nil); got.status != 200 {
			t.Errorf("a session is %d %s", got.status, got.body)
		}
	}
	if got := r.do("POST", "/sessions", serviceToken, m{"session_id": "first", "attach": true}); got.status != 404 {
		t.Errorf("attached to what nobody was told of: %d %s", got.status, got.body)
	}
	r.open(m{"session_id": "again", "attach": true})
}
