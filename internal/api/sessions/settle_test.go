package sessions

import (
	"strings"
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
	files, err := r.Files(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write(t.Context(), "kept", strings.NewReader("there before"), sandboxd.WriteOptions{Size: -1}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Settle(t.Context(), r.lifetimes, r.lifetimes, r.store); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{first, again} {
			if sb, err := r.Get(t.Context(), id); err != nil || sb.Open || sb.State.HasEnvironment() {
				t.Errorf("what nobody was told of is %+v, %v", sb, err)
			}
		}
		if file, err := files.Open(t.Context(), "kept"); err != nil {
			t.Error(err)
		} else if err := file.Close(); err != nil {
			t.Error(err)
		}
		if sb, err := r.Get(t.Context(), native); err != nil || !sb.Open {
			t.Errorf("what is not of this wire is %+v, %v", sb, err)
		}
		if got := r.do("GET", "/sessions/told", token, nil); got.status != 200 {
			t.Errorf("a session is %d %s", got.status, got.body)
		}
	}
	r.open(m{"session_id": "again", "attach": true})
}
