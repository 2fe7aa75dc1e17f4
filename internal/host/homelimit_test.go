package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandboxd"
)

// put has a file of so many bytes be in the home of k.
func (w *timed) put(name string, size int) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, "workspaces", "k", "home", name), make([]byte, size), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *timed) drop(name string) {
	w.t.Helper()
	if err := os.Remove(filepath.Join(w.dir, "workspaces", "k", "home", name)); err != nil {
		w.t.Fatal(err)
	}
}

// runs starts a command that does not end by itself.
func (w *timed) runs(id string) sandboxd.Command {
	w.t.Helper()
	cmd, _, err := w.host.StartCommand(w.t.Context(), id, sandboxd.CommandSpec{Argv: []string{"sleep", "1e9"}, Background: true, TimeoutS: new(sandboxd.Seconds)})
	if err != nil {
		w.t.Fatal(err)
	}
	return cmd
}

// stays wants a command to run for a quarter of an hour more.
func (w *timed) stays(cmd sandboxd.Command) {
	w.t.Helper()
	<-time.After(15 * time.Minute)
	if now, err := w.host.GetCommand(w.t.Context(), cmd.SandboxID, cmd.ID); err != nil || now.Ending != nil {
		w.t.Fatalf("%+v, %v", now.Ending, err)
	}
}

// overHome wants a command to be ended soon for what HOME holds.
func (w *timed) overHome(cmd sandboxd.Command, least int64) {
	w.t.Helper()
	began := time.Now()
	e := w.ended(cmd)
	if e.Cause != sandboxd.CauseDisk || e.Limit != "1048576 bytes of HOME" || e.PeakBytes < least || e.PeakSource != "home" || e.Remedy == "" || e.Message == "" {
		w.t.Fatalf("%+v", e)
	}
	if took := time.Since(began); took > 40*time.Second {
		w.t.Errorf("it was ended after %v", took)
	}
}

const mib = 1 << 20

// What runs while HOME holds too much is ended for it. Who then removes files is not, but
// who adds more; and a restart of the host or of the sandbox is no fault of what runs.
func TestTheLimitOfAHome(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		never := sandboxd.Seconds(1e8)
		w.policy(func(p *sandboxd.Policy) { p.IdleTimeoutS = &never })
		sb := w.opened(sandboxd.OpenRequest{Key: "k", Limits: sandboxd.Limits{HomeBytes: mib}})
		if got := w.get(sb.ID); got.HomeLimit != "measured" || got.Limits.HomeBytes != mib {
			t.Fatalf("%+v", got)
		}
		cmd := w.runs(sb.ID)
		w.put("fits", mib/2)
		w.stays(cmd)
		w.put("large", 2*mib)
		w.overHome(cmd, 2*mib)

		cmd = w.runs(sb.ID)
		w.put("few", mib/4)
		w.stays(cmd)
		w.put("more", 2*mib)
		w.overHome(cmd, 4*mib)

		cmd = w.runs(sb.ID)
		w.drop("more")
		w.stays(cmd)
		w.put("more", 3*mib/2) // less than it once was, and more than it was since
		w.overHome(cmd, 3*mib)

		cmd = w.runs(sb.ID)
		w.down()
		w.up()
		w.stays(cmd)
		if _, err := w.host.Stop(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		cmd = w.runs(sb.ID)
		w.stays(cmd)
		for _, name := range []string{"more", "large"} {
			w.drop(name)
		}
		w.stays(cmd)
		for _, name := range []string{"a", "b", "c", "d"} { // many small ones
			for i := range 100 {
				w.put(name+string(rune('0'+i)), 1)
			}
		}
		w.overHome(cmd, mib)
	})
}

// Where no command runs and HOME goes on growing, what commands left behind ends.
func TestWhatIsLeftBehindFillsAHome(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		never := sandboxd.Seconds(1e8)
		w.policy(func(p *sandboxd.Policy) { p.IdleTimeoutS = &never })
		sb := w.opened(sandboxd.OpenRequest{Key: "k", Limits: sandboxd.Limits{HomeBytes: mib}})
		<-time.After(time.Hour)
		if got := w.get(sb.ID); got.State != sandboxd.StateRunning {
			t.Fatalf("%+v", got)
		}
		w.put("large", 2*mib)
		<-time.After(10 * time.Minute)
		got := w.get(sb.ID)
		if got.State != sandboxd.StateCold || got.LastEnding.Cause != sandboxd.CauseDisk || got.LastEnding.Limit == "" || got.LastEnding.PeakBytes < 2*mib || got.LastEnding.Remedy == "" {
			t.Fatalf("%+v, %+v", got, got.LastEnding)
		}
		var e *sandboxd.Error
		if _, _, err := w.host.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Argv: []string{"true"}}); !errors.As(err, &e) || e.Class != sandboxd.ClassGone || e.Ending == nil {
			t.Fatal(err)
		}
		if _, err := w.host.Start(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		w.stays(w.runs(sb.ID)) // who removes files may
	})
}
