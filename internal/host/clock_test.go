package host

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd"
	"sandboxd/internal/clock"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/pressure"
	"sandboxd/internal/store"
)

// setClock is a machine's clock that can be set and a machine that can restart.
// True time is that of the bubble the test runs in.
type setClock struct {
	mu     sync.Mutex
	wrong  time.Duration // of the wall clock
	boot   string
	booted time.Time
}

func newSetClock() *setClock {
	return &setClock{boot: "first", booted: time.Now().Add(-5 * time.Hour)}
}

func (c *setClock) now() clock.Moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return clock.Moment{Wall: time.Now().Add(c.wrong), Boot: sandboxd.BootTime{ID: c.boot, Since: time.Since(c.booted)}}
}

func (c *setClock) jump(d time.Duration) {
	c.mu.Lock()
	c.wrong += d
	c.mu.Unlock()
}

func (c *setClock) reboot() {
	c.mu.Lock()
	c.boot, c.booted = c.boot+" and again", time.Now()
	c.mu.Unlock()
}

// slowKill is the fake driver with cgroups of commands that take a second to end,
// so that what is ended at once can be told from what is ended one by one.
type slowKill struct {
	*fake.Driver
	mu     sync.Mutex
	ending map[string]int
	most   int
}

func (*slowKill) CreateGroup(context.Context, string, string, sandboxd.CommandLimits) ([]*os.File, error) {
	return nil, nil
}

func (d *slowKill) KillGroup(_ context.Context, id, _ string) error {
	d.mu.Lock()
	d.ending[id]++
	d.most = max(d.most, len(d.ending))
	d.mu.Unlock()
	<-time.After(time.Second)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending[id]--; d.ending[id] == 0 {
		delete(d.ending, id)
	}
	return nil
}

func (*slowKill) GroupUsage(context.Context, string, string) (sandboxd.GroupUsage, error) {
	return sandboxd.GroupUsage{}, nil
}

func (*slowKill) RemoveGroup(context.Context, string, string) error { return nil }

// timed is a host in a bubble whose clock can be set and which can be restarted.
type timed struct {
	t      *testing.T
	clock  *setClock
	dir    string
	store  sandboxd.HostStore
	world  *fake.World
	driver *slowKill
	host   *Host

	pressure func() (pressure.Reading, error)
}

func newTimed(t *testing.T, dir string) *timed {
	w := &timed{t: t, clock: newSetClock(), dir: dir, store: store.NewMemory(), world: fake.NewWorld(fake.Config{})}
	w.up()
	return w
}

func (w *timed) up() {
	w.t.Helper()
	w.driver = &slowKill{Driver: fake.New(w.world), ending: map[string]int{}}
	var err error
	w.host, err = New(w.t.Context(), Config{DataDir: w.dir, Store: w.store, Drivers: []sandboxd.Driver{w.driver}, UIDs: testUIDs(), Clock: w.clock.now, Pressure: w.pressure})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *timed) down() {
	w.t.Helper()
	if err := w.host.Close(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.driver.Close(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *timed) end() {
	w.t.Helper()
	if err := w.host.StopAll(w.t.Context()); err != nil {
		w.t.Error(err)
	}
	w.down()
	w.world.Close()
}

func (w *timed) start(key string, spec sandboxd.CommandSpec) sandboxd.Command {
	w.t.Helper()
	sb, _, err := w.host.Open(w.t.Context(), sandboxd.OpenRequest{Key: key})
	if err != nil {
		w.t.Fatal(err)
	}
	cmd, _, err := w.host.StartCommand(w.t.Context(), sb.ID, spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return cmd
}

// ended waits for the ending, looking each second for a day.
func (w *timed) ended(cmd sandboxd.Command) sandboxd.Ending {
	w.t.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range 24 * 60 * 60 {
		now, err := w.host.GetCommand(w.t.Context(), cmd.SandboxID, cmd.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		if now.Ending != nil {
			return *now.Ending
		}
		<-tick.C
	}
	w.t.Fatal("it ran for a day")
	return sandboxd.Ending{}
}

// TestClocksOfACommand: each clock that may end a command fires when it should,
// however the wall clock is set while the host is up, while it is down, or while
// the machine restarts. A command starts at 0, its host goes after 10 minutes and
// comes back after 20.
func TestClocksOfACommand(t *testing.T) {
	const minute = time.Minute
	hour := sandboxd.InSeconds(time.Hour)
	none := sandboxd.Seconds(0)
	total := sandboxd.CommandSpec{Argv: []string{"sleep", "1e6"}, TimeoutS: &hour}
	silence := sandboxd.CommandSpec{Shell: "sleep 1500; echo hello; sleep 1e6", TimeoutS: &none, NoOutputTimeoutS: hour}
	orphan := sandboxd.CommandSpec{Argv: []string{"sleep", "1e6"}, TimeoutS: &none, OrphanAfterS: hour}
	set := func(d time.Duration) func(*setClock) { return func(c *setClock) { c.jump(d) } }
	restart := func(d time.Duration) func(*setClock) { return func(c *setClock) { c.reboot(); c.jump(d) } }
	right := set(0)
	const back, forward = -9 * time.Hour, 9 * time.Hour
	for _, tc := range []struct {
		name             string
		spec             sandboxd.CommandSpec
		cause            sandboxd.Cause
		up, down, upThen func(*setClock) // at 5, 15 and 30 minutes
		want             time.Duration
	}{
		{"timeout", total, sandboxd.CauseTimeout, right, right, right, 60 * minute},
		{"timeout, back while up", total, sandboxd.CauseTimeout, set(back), right, right, 60 * minute},
		{"timeout, forward while up", total, sandboxd.CauseTimeout, set(forward), right, right, 60 * minute},
		{"timeout, back while down", total, sandboxd.CauseTimeout, right, set(back), right, 60 * minute},
		{"timeout, forward while down", total, sandboxd.CauseTimeout, right, set(forward), right, 60 * minute},
		{"timeout, back when up again", total, sandboxd.CauseTimeout, right, right, set(back), 60 * minute},
		{"timeout, forward when up again", total, sandboxd.CauseTimeout, right, right, set(forward), 60 * minute},
		// Over a restart of the machine the wall clock is all there is.
		{"timeout, another boot", total, sandboxd.CauseTimeout, right, restart(0), right, 60 * minute},
		{"timeout, another boot, back", total, sandboxd.CauseTimeout, right, restart(back), right, 80 * minute},
		{"timeout, another boot, forward", total, sandboxd.CauseTimeout, right, restart(forward), right, 20 * minute},
		// It speaks after 25 minutes, and nobody sees whether it did while no host is up.
		{"silence", silence, sandboxd.CauseNoOutput, right, right, right, 85 * minute},
		{"silence, back", silence, sandboxd.CauseNoOutput, set(back), set(back), set(back), 85 * minute},
		{"silence, forward", silence, sandboxd.CauseNoOutput, set(forward), set(forward), set(forward), 85 * minute},
		{"silence, another boot, back", silence, sandboxd.CauseNoOutput, right, restart(back), right, 85 * minute},
		{"silence, another boot, forward", silence, sandboxd.CauseNoOutput, right, restart(forward), right, 85 * minute},
		// Nobody can follow while no host is up.
		{"orphan", orphan, sandboxd.CauseOrphaned, right, right, right, 80 * minute},
		{"orphan, back", orphan, sandboxd.CauseOrphaned, set(back), set(back), set(back), 80 * minute},
		{"orphan, forward", orphan, sandboxd.CauseOrphaned, set(forward), set(forward), set(forward), 80 * minute},
		{"orphan, another boot, forward", orphan, sandboxd.CauseOrphaned, right, restart(forward), right, 80 * minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := newTimed(t, dir)
				defer w.end()
				began := time.Now()
				cmd := w.start("k", tc.spec)
				<-time.After(5 * minute)
				tc.up(w.clock)
				<-time.After(5 * minute)
				w.down()
				<-time.After(5 * minute)
				tc.down(w.clock)
				<-time.After(5 * minute)
				w.up()
				time.AfterFunc(10*minute, func() { tc.upThen(w.clock) })
				ending := w.ended(cmd)
				if ending.Cause != tc.cause {
					t.Fatalf("ended by %s", ending.Cause)
				}
				if after := ending.At.Sub(began); after < tc.want || after > tc.want+2*time.Second {
					t.Errorf("ended after %v, want %v", after, tc.want)
				}
				if w.clock.boot == "first" && ending.WallS.Duration().Round(minute) != tc.want {
					t.Errorf("it is said to have run for %v, want %v", ending.WallS.Duration(), tc.want)
				}
			})
		})
	}
}

// TestALeapEndsOneSandboxAtATime: what is overdue for longer than an absence
// explains is ended one by one; what ran out while the host was down, at once.
func TestALeapEndsOneSandboxAtATime(t *testing.T) {
	const boxes = 3
	for _, tc := range []struct {
		name string
		jump time.Duration
		most int
	}{{"an absence", 30 * time.Minute, boxes}, {"a leap", 9 * time.Hour, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := newTimed(t, dir)
				defer w.end()
				limit := sandboxd.InSeconds(10 * time.Minute)
				var cmds []sandboxd.Command
				for i := range boxes {
					cmds = append(cmds, w.start(fmt.Sprint("k", i), sandboxd.CommandSpec{Argv: []string{"sleep", "1e6"}, TimeoutS: &limit}))
				}
				w.down()
				<-time.After(10 * time.Minute)
				w.clock.reboot()
				w.clock.jump(tc.jump)
				w.up()
				for _, cmd := range cmds {
					if e := w.ended(cmd); e.Cause != sandboxd.CauseTimeout {
						t.Errorf("ended by %s", e.Cause)
					}
				}
				if most := w.driver.most; most != tc.most {
					t.Errorf("%d were ended at the same time, want %d", most, tc.most)
				}
			})
		})
	}
}

// TestOrphansAreReapedAfterTheirGraceOneAtATime, whatever is done to the clock.
func TestOrphansAreReapedAfterTheirGraceOneAtATime(t *testing.T) {
	for _, jump := range []time.Duration{0, -9 * time.Hour, 9 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				w := newTimed(t, dir)
				defer w.end()
				for range 3 {
					if _, err := w.driver.Start(t.Context(), sandboxd.EnvironmentSpec{ID: sandboxd.NewID(), Generation: 1}); err != nil {
						t.Fatal(err)
					}
				}
				w.world.Configure(func(c *fake.Config) { c.SlowStop = 10 * time.Second })
				w.down()
				w.clock.jump(jump)
				w.up()
				w.clock.jump(jump)
				<-time.After(5 * time.Second)
				// At 5, 15, 25, ... seconds: the grace is 30, each stop takes 10.
				for i, want := range []int{3, 3, 3, 3, 2, 1, 0} {
					ids, err := w.driver.List(t.Context())
					if err != nil || len(ids) != want {
						t.Errorf("after %d s there are %d orphans, want %d (%v)", 5+10*i, len(ids), want, err)
					}
					<-time.After(10 * time.Second)
				}
			})
		})
	}
}

// TestAnEarlierHostsSandboxIsKnownByItsRecord: what interrupted writes left is swept
// though the clock was set back, so that the sandbox seems to be of the future.
func TestAnEarlierHostsSandboxIsKnownByItsRecord(t *testing.T) {
	dir, st := t.TempDir(), store.NewMemory()
	rec, _, err := st.Create(t.Context(), sandboxd.SandboxRecord{Sandbox: sandboxd.Sandbox{ID: sandboxd.NewID(), Key: "k", State: sandboxd.StateCold,
		Driver: "fake", Runtime: sandboxd.RuntimeMachine, Root: sandboxd.RootReadonly, Face: sandboxd.FaceNative, CreatedAt: time.Now().Add(time.Hour)}}, testUIDs())
	if err != nil {
		t.Fatal(err)
	}
	d := fake.New(fake.NewWorld(fake.Config{}))
	defer d.Close()
	h, err := New(t.Context(), Config{DataDir: dir, Store: st, Drivers: []sandboxd.Driver{d}, UIDs: testUIDs()})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	no := false
	fresh, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Key: "fresh", Start: &no})
	if err != nil {
		t.Fatal(err)
	}
	for id, old := range map[string]bool{rec.ID: true, fresh.ID: false} {
		now, err := st.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.boxOf(now).old; got != old {
			t.Errorf("%s is of an earlier host: %v, want %v", now.Key, got, old)
		}
	}
}
