package host

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd"
	"sandboxd/internal/pressure"
)

// While memory is short the sandbox that did not work for longest goes first, and one
// with a running command last; each is told, and so is its command.
func TestMemoryPressure(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var reading atomic.Pointer[pressure.Reading]
		w := newTimed(t, dir)
		w.down()
		w.pressure = func() (pressure.Reading, error) {
			if r := reading.Load(); r != nil {
				return *r, nil
			}
			return pressure.Reading{}, errors.New("no numbers")
		}
		w.up()
		defer w.end()
		busy := w.opened(sandboxd.OpenRequest{Key: "busy"})
		cmd := w.start("busy", sandboxd.CommandSpec{Argv: []string{"sleep", "1e6"}, TimeoutS: new(sandboxd.Seconds)})
		<-time.After(time.Minute)
		old := w.opened(sandboxd.OpenRequest{Key: "old"})
		<-time.After(time.Minute)
		young := w.opened(sandboxd.OpenRequest{Key: "young"})
		<-time.After(time.Minute)
		memory := int64(700 << 20)
		w.world.Use(old.ID, sandboxd.Sample{MemoryBytes: &memory})
		for _, plenty := range []*pressure.Reading{nil, {Total: 1 << 40, Available: 1 << 39, Stalled: 0}} {
			reading.Store(plenty)
			<-time.After(time.Minute)
		}
		reading.Store(&pressure.Reading{Total: 1 << 40, Available: 1 << 30, Stalled: 50})
		for _, id := range []string{old.ID, young.ID, busy.ID} {
			<-time.After(10 * time.Second)
			got := w.get(id)
			if got.State != sandboxd.StateCold || got.LastEnding == nil || got.LastEnding.Cause != sandboxd.CauseEvicted ||
				!strings.Contains(got.LastEnding.Message, "1024 MiB of 1048576 MiB") || got.LastEnding.Remedy == "" {
				t.Fatalf("%s: %s, %+v", got.Key, got.State, got.LastEnding)
			}
			if id == old.ID && (got.LastEnding.PeakBytes != memory || !strings.Contains(got.LastEnding.Message, "700 MiB")) {
				t.Errorf("%+v", got.LastEnding)
			}
			_, _, err := w.host.StartCommand(t.Context(), id, sandboxd.CommandSpec{Argv: []string{"echo"}})
			var e *sandboxd.Error
			if !errors.As(err, &e) || e.Class != sandboxd.ClassGone || e.Ending == nil || e.Ending.Cause != sandboxd.CauseEvicted {
				t.Fatalf("%s is not told: %v", got.Key, err)
			}
			<-time.After(5 * time.Second)
		}
		if e := w.ended(cmd); e.Cause != sandboxd.CauseEvicted || !strings.Contains(e.Message, "MiB") || e.Remedy == "" {
			t.Errorf("the command: %+v", e)
		}
		<-time.After(time.Minute) // none is left to go
		reading.Store(nil)
		if _, err := w.host.Start(t.Context(), old.ID); err != nil {
			t.Fatal(err)
		}
	})
}
