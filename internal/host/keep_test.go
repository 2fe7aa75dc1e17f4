package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/fake"
)

// writable is a store whose sandboxes have roots that take writes.
type writable struct{ sandboxd.HostStore }

func (s writable) Create(ctx context.Context, rec sandboxd.SandboxRecord, pool sandboxd.UIDPool) (sandboxd.SandboxRecord, bool, error) {
	rec.Root = sandboxd.RootWritable
	return s.HostStore.Create(ctx, rec, pool)
}

func (w *timed) writable() {
	w.t.Helper()
	w.down()
	w.store = writable{w.store}
	w.up()
}

// What was installed outlives a stop, an idle close and a restart of the host, a close,
// costs no place, survives a start that fails, and goes after its time.
func TestAKeptEnvironment(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		w.writable()
		one := 1
		w.policy(func(p *sandboxd.Policy) { p.MaxRunning = &one })
		sb := w.opened(sandboxd.OpenRequest{Key: "k"})
		is := func(state sandboxd.State, generation int64) {
			t.Helper()
			if got := w.get(sb.ID); got.State != state || got.Generation != generation {
				t.Fatalf("%s, generation %d; want %s, %d; %+v", got.State, got.Generation, state, generation, got.LastEnding)
			}
		}
		if _, err := w.host.Stop(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		is(sandboxd.StateStopped, 1)
		other := w.opened(sandboxd.OpenRequest{Key: "other"})
		if err := w.host.Delete(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
		w.down()
		w.up()
		is(sandboxd.StateStopped, 1)
		w.world.Configure(func(c *fake.Config) { c.StartError = errors.New("for a while") })
		if _, err := w.host.Start(t.Context(), sb.ID); err == nil {
			t.Fatal("it started")
		}
		w.world.Configure(func(c *fake.Config) { c.StartError = nil })
		is(sandboxd.StateStopped, 2)
		if _, _, err := w.host.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Argv: []string{"echo"}}); err != nil {
			t.Fatal(err)
		}
		is(sandboxd.StateRunning, 3)
		w.closedAfter(sb.ID)
		is(sandboxd.StateStopped, 3)
		<-time.After(12 * time.Hour)
		w.down()
		<-time.After(11 * time.Hour)
		w.up()
		is(sandboxd.StateStopped, 3)
		<-time.After(time.Hour + 2*time.Minute)
		is(sandboxd.StateCold, 3)
		if _, err := w.host.Start(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		w.world.Kill(sb.ID)
		for w.get(sb.ID).State == sandboxd.StateRunning {
			<-time.After(time.Second)
		}
		is(sandboxd.StateStopped, 4)
		for range 2 {
			if got, err := w.host.CloseSandbox(t.Context(), sb.ID); err != nil || got.State != sandboxd.StateStopped || got.Open {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		// What somebody else removed is told, once, and then begins anew.
		if _, err := w.host.Start(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.host.Stop(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if err := w.driver.Stop(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := w.host.Start(t.Context(), sb.ID); sandboxd.ClassOf(err) != sandboxd.ClassGone {
			t.Fatalf("%v", err)
		}
		is(sandboxd.StateCold, 6)
		if _, err := w.host.Start(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		is(sandboxd.StateRunning, 7)
	})
}
