package host

import (
	"fmt"
	"testing"
	"time"

	"sandboxd"
)

const day = 24 * time.Hour

func (w *timed) policy(change func(*sandboxd.Policy)) {
	w.t.Helper()
	if _, err := w.host.ChangePolicy(w.t.Context(), func(p *sandboxd.Policy) error { change(p); return nil }); err != nil {
		w.t.Fatal(err)
	}
}

// there says how many of these sandboxes are.
func (w *timed) there() int {
	w.t.Helper()
	all, err := w.host.List(w.t.Context(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	return len(all)
}

// Files that nobody used for three days go, also while no place is free; whoever
// reads or writes one, or starts the sandbox, uses them.
func TestWorkspaceTTL(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		ttl, zero := sandboxd.InSeconds(3*day), 0
		w.policy(func(p *sandboxd.Policy) { p.WorkspaceTTLS = &ttl })
		runs := w.opened(sandboxd.OpenRequest{Key: "runs"})
		if _, err := w.host.Hold(t.Context(), runs.ID, sandboxd.Hold{ForS: sandboxd.InSeconds(7 * day)}); err != nil {
			t.Fatal(err)
		}
		no := false
		w.opened(sandboxd.OpenRequest{Key: "old", Start: &no})
		read := w.opened(sandboxd.OpenRequest{Key: "read", Start: &no})
		w.policy(func(p *sandboxd.Policy) { p.MaxRunning, p.MaxPerTenant = &zero, &zero })
		<-time.After(2 * day)
		if _, err := w.host.Files(t.Context(), read.ID); err != nil || w.there() != 3 {
			t.Fatalf("%d are there, %v", w.there(), err)
		}
		<-time.After(2 * time.Minute)
		w.down()
		<-time.After(10 * time.Hour)
		w.up()
		<-time.After(14*time.Hour + 2*time.Minute)
		if _, err := w.host.Get(t.Context(), runs.ID); err != nil || w.there() != 2 {
			t.Fatalf("after three days %d are there, %v", w.there(), err)
		}
		<-time.After(2 * day)
		if w.there() != 1 {
			t.Fatalf("after five days %d are there", w.there())
		}
		if got := w.get(runs.ID); got.Generation != 1 || got.State != sandboxd.StateRunning {
			t.Fatalf("%+v", got)
		}
	})
}

// Files that somebody waits for, until there is a place, do not go.
func TestWhoWaitsKeepsTheFiles(t *testing.T) {
	for name, ask := range map[string]func(*timed, string){
		"to start": func(w *timed, id string) { _, _ = w.host.Start(w.t.Context(), id) },
		"to open": func(w *timed, _ string) {
			wait := sandboxd.Seconds(600) // longer than the files last
			_, _, _ = w.host.Open(w.t.Context(), sandboxd.OpenRequest{Key: "old", WaitS: &wait})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *timed) {
				ttl, zero, no := sandboxd.InSeconds(2*time.Minute), 0, false
				w.policy(func(p *sandboxd.Policy) { p.WorkspaceTTLS = &ttl })
				old := w.opened(sandboxd.OpenRequest{Key: "old", Start: &no})
				w.policy(func(p *sandboxd.Policy) { p.MaxRunning = &zero })
				<-time.After(110 * time.Second)
				ask(w, old.ID)
				if _, err := w.host.Get(t.Context(), old.ID); err != nil {
					t.Errorf("deleted under who waits for it: %v", err)
				}
			})
		})
	}
}

// A wall clock that is wrong by a month, after a restart of the machine, costs one
// sandbox a minute and not all of them.
func TestALeapDeletesOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		ttl := sandboxd.InSeconds(3 * day)
		w.policy(func(p *sandboxd.Policy) { p.WorkspaceTTLS = &ttl })
		no := false
		for i := range 6 {
			w.opened(sandboxd.OpenRequest{Key: fmt.Sprint("k", i), Start: &no})
		}
		w.down()
		w.clock.reboot()
		w.clock.jump(-30 * day)
		w.up()
		<-time.After(10*time.Minute + time.Second)
		if w.there() != 6 {
			t.Fatalf("set back: %d of 6 are there", w.there())
		}
		w.down()
		w.clock.reboot()
		w.clock.jump(60 * day)
		w.up()
		<-time.After(3*time.Minute + time.Second)
		if w.there() != 3 {
			t.Fatalf("set forward: %d of 6 are there after three minutes", w.there())
		}
	})
}
