package host

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/fake"
)

// opened is a sandbox in a bubble.
func (w *timed) opened(req sandboxd.OpenRequest) sandboxd.Sandbox {
	w.t.Helper()
	sb, _, err := w.host.Open(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb
}

func (w *timed) get(id string) sandboxd.Sandbox {
	w.t.Helper()
	sb, err := w.host.Get(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return sb
}

// closedAfter waits until the sandbox is closed, and says how long that took.
func (w *timed) closedAfter(id string) time.Duration {
	w.t.Helper()
	began := time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for w.get(id).Open {
		if time.Since(began) > 48*time.Hour {
			w.t.Fatal("it was open for two days")
		}
		<-tick.C
	}
	return time.Since(began)
}

func within(t *testing.T, got, want time.Duration) {
	t.Helper()
	if got < want || got > want+time.Minute+2*time.Second {
		t.Errorf("closed after %v, want %v and at most a tick more", got, want)
	}
}

func bubble(t *testing.T, fn func(*testing.T, *timed)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newTimed(t, dir)
		defer w.end()
		fn(t, w)
	})
}

const half = 30 * time.Minute

// Each sandbox has the clock of the face that opened it, and is closed with the
// reason; a command then starts it again.
func TestClocksOfTheFaces(t *testing.T) {
	for face, limit := range map[string]time.Duration{
		sandboxd.FaceNative: half, sandboxd.FaceSessions: half, sandboxd.FaceApps: 35 * time.Minute, sandboxd.FaceSandboxes: half,
	} {
		t.Run(face, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *timed) {
				sb := w.opened(sandboxd.OpenRequest{Face: face})
				a, err := w.host.Awake(t.Context(), sb.ID)
				if err != nil || a.Lapses == nil || time.Until(*a.Lapses) != limit {
					t.Fatalf("%+v, %v", a, err)
				}
				within(t, w.closedAfter(sb.ID), limit)
				got := w.get(sb.ID)
				if got.State != sandboxd.StateCold || got.LastEnding.Cause != sandboxd.CauseIdle || got.LastEnding.Limit != fmt.Sprintf("%g s", limit.Seconds()) || got.LastEnding.Remedy == "" {
					t.Fatalf("%+v", got.LastEnding)
				}
				if _, _, err := w.host.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Argv: []string{"echo"}}); err != nil {
					t.Fatal(err)
				}
				if got := w.get(sb.ID); !got.Open || got.Generation != 2 {
					t.Fatalf("%+v", got)
				}
			})
		})
	}
}

// Each time of the policy is of its own face, and of none of the others; the sandbox
// says which.
func TestATimeIsOfItsFaceOnly(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		limits := map[string]time.Duration{sandboxd.FaceNative: 3 * time.Hour, sandboxd.FaceSessions: 3 * time.Hour, sandboxd.FaceApps: 2 * time.Hour, sandboxd.FaceSandboxes: time.Hour}
		_, err := w.host.ChangePolicy(t.Context(), func(p *sandboxd.Policy) error {
			return p.Merge([]byte(`{"idle_timeout_s":10800,"app_idle_timeout_s":7200,"owner_lease_s":3600}`))
		})
		if err != nil {
			t.Fatal(err)
		}
		began, ids := time.Now(), map[string]string{}
		for face, limit := range limits {
			sb := w.opened(sandboxd.OpenRequest{Face: face})
			ids[face] = sb.ID
			want := sandboxd.SandboxClock{Name: sandboxd.ClockIdle, WaitsFor: sandboxd.WaitsForWork}
			if face == sandboxd.FaceSandboxes {
				want = sandboxd.SandboxClock{Name: sandboxd.ClockLease, WaitsFor: sandboxd.WaitsForRequest}
			}
			if got := w.get(sb.ID).Clock; got.Name != want.Name || got.WaitsFor != want.WaitsFor || got.LimitS == nil || got.LimitS.Duration() != limit {
				t.Errorf("%s: %+v", face, got)
			}
			if err := w.host.Renew(t.Context(), sb.ID); (err == nil) != (face == sandboxd.FaceSandboxes) {
				t.Errorf("%s: a request of its owner: %v", face, err)
			}
		}
		for face, limit := range limits {
			w.closedAfter(ids[face])
			if at := w.get(ids[face]).LastEnding.At.Sub(began); at < limit || at > limit+time.Minute {
				t.Errorf("%s: closed after %v, want %v", face, at, limit)
			}
		}
	})
}

// A server that stops deletes, closes and ends nothing, whatever state a sandbox is in.
func TestAServerThatStopsDeletesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		no := false
		working := w.opened(sandboxd.OpenRequest{Key: "working"})
		cmd, _, err := w.host.StartCommand(t.Context(), working.ID, sandboxd.CommandSpec{Argv: []string{"sleep", "1e6"}, TimeoutS: new(sandboxd.Seconds)})
		if err != nil {
			t.Fatal(err)
		}
		w.opened(sandboxd.OpenRequest{Key: "leased", Face: sandboxd.FaceSandboxes})
		w.opened(sandboxd.OpenRequest{Key: "session", Face: sandboxd.FaceSessions, Start: &no})
		w.opened(sandboxd.OpenRequest{Key: "cold", Start: &no})
		closed := w.opened(sandboxd.OpenRequest{Key: "closed"})
		if _, err := w.host.CloseSandbox(t.Context(), closed.ID); err != nil {
			t.Fatal(err)
		}
		files, err := w.host.Files(t.Context(), closed.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write(t.Context(), "kept", strings.NewReader("kept"), sandboxd.WriteOptions{Size: -1}); err != nil {
			t.Fatal(err)
		}
		was, err := w.host.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			w.down()
			w.up()
			if is, err := w.host.List(t.Context(), ""); err != nil || !reflect.DeepEqual(was, is) {
				t.Fatalf("%v\nbefore %+v\nafter  %+v", err, was, is)
			}
			if got, err := w.host.GetCommand(t.Context(), working.ID, cmd.ID); err != nil || got.Ending != nil {
				t.Fatalf("%+v, %v", got, err)
			}
			files, err := w.host.Files(t.Context(), closed.ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := files.Stat(t.Context(), "kept"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// An open sandbox without an environment is closed too.
func TestAColdSessionIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		no := false
		sb := w.opened(sandboxd.OpenRequest{Face: sandboxd.FaceSessions, Start: &no})
		if !sb.Open || sb.State != sandboxd.StateCold {
			t.Fatalf("%+v", sb)
		}
		within(t, w.closedAfter(sb.ID), half)
	})
}

// What is work, and what is none.
func TestWhatKeepsAwake(t *testing.T) {
	background := sandboxd.CommandSpec{Argv: []string{"sleep", "1e6"}, Background: true, TimeoutS: new(sandboxd.Seconds)}
	minutely := func(w *timed, n int, do func()) {
		for range n {
			do()
			<-time.After(time.Minute)
		}
	}
	use := func(more sandboxd.Sample) func(*testing.T, *timed, sandboxd.Sandbox) {
		return func(_ *testing.T, w *timed, sb sandboxd.Sandbox) {
			w.host.StartCommand(w.t.Context(), sb.ID, background)
			<-time.After(30 * time.Second) // between two looks
			minutely(w, 60, func() { w.world.Use(sb.ID, more) })
		}
	}
	for _, tc := range []struct {
		name   string
		reason string // that is told, if it is awake
		awake  bool
		face   string
		do     func(*testing.T, *timed, sandboxd.Sandbox) // takes an hour
	}{
		{name: "a foreground command", reason: reasonCommand, awake: true, do: func(t *testing.T, w *timed, sb sandboxd.Sandbox) {
			w.host.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Argv: []string{"sleep", "1e6"}, TimeoutS: new(sandboxd.Seconds)})
			minutely(w, 60, func() {})
		}},
		{name: "a command in the background that does nothing", do: use(sandboxd.Sample{})},
		{name: "3 % of a core", reason: reasonCPU, awake: true, do: use(sandboxd.Sample{CPU: 1800 * time.Millisecond})},
		{name: "1 % of a core", do: use(sandboxd.Sample{CPU: 600 * time.Millisecond})},
		{name: "80 KiB a second", reason: reasonIO, awake: true, do: use(sandboxd.Sample{IOBytes: 60 * 80 << 10})},
		{name: "32 KiB a second", do: use(sandboxd.Sample{IOBytes: 60 * 32 << 10})},
		{name: "polls", do: func(t *testing.T, w *timed, sb sandboxd.Sandbox) {
			cmd, _, err := w.host.StartCommand(t.Context(), sb.ID, background)
			if err != nil {
				t.Fatal(err)
			}
			minutely(w, 60, func() {
				w.host.Get(t.Context(), sb.ID)
				w.host.List(t.Context(), "")
				w.host.Awake(t.Context(), sb.ID)
				w.host.Usage(t.Context(), sb.ID)
				w.host.Holds(t.Context(), sb.ID)
				w.host.ListCommands(t.Context(), sb.ID)
				w.host.GetCommand(t.Context(), sb.ID, cmd.ID)
				w.host.ListPorts(t.Context(), sb.ID)
				w.host.NetworkActivity(t.Context(), sb.ID)
				if s, err := w.host.FollowCommand(t.Context(), sb.ID, cmd.ID, sandboxd.FollowOptions{}); err == nil {
					s.Close()
				}
			})
		}},
		{name: "a terminal that somebody has", reason: reasonTerminal, awake: true, do: func(t *testing.T, w *timed, sb sandboxd.Sandbox) {
			s := terminal(t, w, sb)
			defer s.Close()
			minutely(w, 60, func() {})
		}},
		{name: "a terminal that nobody has", do: func(t *testing.T, w *timed, sb sandboxd.Sandbox) {
			terminal(t, w, sb).Close()
			minutely(w, 60, func() {})
		}},
		{name: "a hold", reason: reasonHold, awake: true, do: func(t *testing.T, w *timed, sb sandboxd.Sandbox) {
			if _, err := w.host.Hold(t.Context(), sb.ID, sandboxd.Hold{ForS: 7200}); err != nil {
				t.Fatal(err)
			}
			minutely(w, 60, func() {})
		}},
		{name: "a request, under the owner's lease", reason: reasonRequest, awake: true, face: sandboxd.FaceSandboxes, do: func(t *testing.T, w *timed, sb sandboxd.Sandbox) {
			minutely(w, 60, func() { w.host.Renew(t.Context(), sb.ID) })
		}},
		{name: "processor time, under the owner's lease", face: sandboxd.FaceSandboxes, do: use(sandboxd.Sample{CPU: time.Minute})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *timed) {
				sb := w.opened(sandboxd.OpenRequest{Face: tc.face})
				tc.do(t, w, sb)
				a, err := w.host.Awake(t.Context(), sb.ID)
				if err != nil {
					t.Fatal(err)
				}
				if got := w.get(sb.ID); got.Open != tc.awake {
					t.Fatalf("open %v, want %v: %+v", got.Open, tc.awake, a)
				}
				if !tc.awake {
					return
				}
				if a.Reason != tc.reason && !strings.HasPrefix(tc.name, "a terminal") || a.Detail == "" {
					t.Errorf("%+v", a)
				}
			})
		})
	}
}

func terminal(t *testing.T, w *timed, sb sandboxd.Sandbox) sandboxd.CommandStream {
	t.Helper()
	cmd, _, err := w.host.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Argv: []string{"sleep", "1e6"}, TTY: &sandboxd.TTY{Cols: 80, Rows: 24}, TimeoutS: new(sandboxd.Seconds)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.host.FollowCommand(t.Context(), sb.ID, cmd.ID, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A sandbox that works for 10 minutes is idle for 30 after, however the wall clock is
// set, and over restarts of the host, which take 20 minutes each that do not count.
func TestTheClockOutlivesTheHost(t *testing.T) {
	const minute = time.Minute
	works := func(w *timed, id string) error {
		_, _, err := w.host.StartCommand(w.t.Context(), id, sandboxd.CommandSpec{Argv: []string{"echo"}})
		return err
	}
	asked := func(w *timed, id string) error { return w.host.Renew(w.t.Context(), id) }
	for _, tc := range []struct {
		name string
		face string
		wind func(*timed, string) error
		jump time.Duration
	}{
		{"idle, as it is", sandboxd.FaceNative, works, 0}, {"idle, set back", sandboxd.FaceNative, works, -9 * time.Hour}, {"idle, set forward", sandboxd.FaceNative, works, 9 * time.Hour},
		{"lease, as it is", sandboxd.FaceSandboxes, asked, 0}, {"lease, set back", sandboxd.FaceSandboxes, asked, -9 * time.Hour}, {"lease, set forward", sandboxd.FaceSandboxes, asked, 9 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *timed) {
				began := time.Now()
				sb := w.opened(sandboxd.OpenRequest{Face: tc.face})
				wind := func() {
					if err := tc.wind(w, sb.ID); err != nil {
						t.Fatal(err)
					}
				}
				for range 10 {
					wind()
					<-time.After(minute)
				}
				wind()
				<-time.After(10 * minute)
				w.clock.jump(tc.jump)
				<-time.After(2 * minute)
				w.down()
				<-time.After(20 * minute)
				w.clock.jump(tc.jump)
				w.up()
				if !w.get(sb.ID).Open {
					t.Fatal("closed for the time in which nobody looked")
				}
				w.closedAfter(sb.ID)
				// What is stored of the last look may be a tick old.
				if took := time.Since(began); took < 58*minute || took > 64*minute {
					t.Errorf("closed after %v, want 60 minutes", took)
				}
			})
		})
	}
}

// A hold lasts as long as it was made for, over a restart and a wrong wall clock.
func TestAHoldOutlivesTheHost(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		began := time.Now()
		sb := w.opened(sandboxd.OpenRequest{})
		if _, err := w.host.Hold(t.Context(), sb.ID, sandboxd.Hold{ID: "h", ForS: 2 * 3600}); err != nil {
			t.Fatal(err)
		}
		w.clock.jump(9 * time.Hour)
		w.down()
		w.up()
		holds, err := w.host.Holds(t.Context(), sb.ID)
		if err != nil || len(holds) != 1 || holds[0].ForS != 7200 {
			t.Fatalf("%+v, %v", holds, err)
		}
		w.closedAfter(sb.ID)
		if took := time.Since(began); took < 149*time.Minute || took > 153*time.Minute {
			t.Errorf("closed after %v, want two and a half hours", took)
		}
	})
}

// Fifty idle sandboxes are looked at once a minute each, and nothing else
// happens to them.
func TestIdleSandboxesAreLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		if _, err := w.host.ChangePolicy(t.Context(), func(p *sandboxd.Policy) error { p.MaxRunning = nil; return nil }); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			w.opened(sandboxd.OpenRequest{})
		}
		before := w.world.Samples()
		<-time.After(10 * time.Minute)
		if n := w.world.Samples() - before; n < 400 || n > 550 {
			t.Errorf("%d looks at 50 sandboxes in ten minutes", n)
		}
	})
}

// A command that comes while its sandbox is being closed runs in the next environment.
func TestACommandOvertakesTheClose(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		w.world.Configure(func(c *fake.Config) { c.SlowStop = 10 * time.Second })
		defer w.world.Configure(func(c *fake.Config) { c.SlowStop = 0 })
		sb := w.opened(sandboxd.OpenRequest{})
		for w.get(sb.ID).State == sandboxd.StateRunning {
			<-time.After(time.Second)
		}
		cmd, started, err := w.host.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Argv: []string{"echo", "x"}})
		if err != nil || !started || cmd.Generation != 2 {
			t.Fatalf("%+v, %v, %v", cmd, started, err)
		}
	})
}

// Who waits for a place gets it as soon as somebody is idle for long enough, or is
// refused after its time: 10 s on the sessions face, 30 s elsewhere.
func TestWaitingForAPlace(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		one, after := 1, sandboxd.Seconds(300)
		if _, err := w.host.ChangePolicy(t.Context(), func(p *sandboxd.Policy) error { p.MaxRunning, p.EvictIdleAfterS = &one, &after; return nil }); err != nil {
			t.Fatal(err)
		}
		first := w.opened(sandboxd.OpenRequest{})
		for face, wait := range map[string]time.Duration{sandboxd.FaceSessions: 10 * time.Second, sandboxd.FaceNative: 30 * time.Second} {
			began := time.Now()
			_, _, err := w.host.Open(t.Context(), sandboxd.OpenRequest{Face: face})
			if took := time.Since(began); sandboxd.ClassOf(err) != sandboxd.ClassCapacity || took != wait {
				t.Errorf("%s: %v after %v", face, err, took)
			}
		}
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		if _, _, err := w.host.Open(short, sandboxd.OpenRequest{}); sandboxd.ClassOf(err) != sandboxd.ClassCapacity || time.Since(began) != 5*time.Second {
			t.Errorf("a caller with 5 s: %v after %v", err, time.Since(began))
		}
		<-time.After(240 * time.Second)
		w.opened(sandboxd.OpenRequest{}) // waits until the first is idle for 300 s
		if got := w.get(first.ID); !got.Asleep {
			t.Fatalf("%+v", got)
		}
		// It is closed when it slept for as long as it may be idle.
		within(t, w.closedAfter(first.ID), half-5*time.Minute-2*time.Second)
	})
}
