// Package drivertest is the suite that every sandboxd.Driver must pass. It knows
// the contract only: what an isolation is worth is each driver's own tests'.
package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
)

// Harness is a driver under test, made anew for each test of the suite.
type Harness struct {
	// Open makes a driver over the harness's data. A second call, after the first
	// one's driver was closed, is as after a restart of the server.
	Open func(t testing.TB) sandboxd.Driver
	// Spec describes a new environment, with the directories it needs.
	Spec func(t testing.TB) sandboxd.EnvironmentSpec
	// True exits 0 at once; Echo writes a text and a newline to stdout; Sleep runs
	// until it is ended.
	True  []string
	Echo  func(text string) []string
	Sleep []string
	// Show writes a file of the sandbox to stdout; nil where there are no files.
	Show func(name string) []string
	// Fixed says why the limits of what runs cannot be changed here; empty where they can.
	Fixed string
	// Group answers the directory in which the kernel has the limits of an environment by a
	// controller of cgroups; nil where no kernel has any. OwnProcesses count in the limit of
	// processes beside it, and Fill takes memory that stays taken.
	Group        func(t testing.TB, d sandboxd.Driver, id, controller string) string
	OwnProcesses int64
	Fill         func(bytes int64) []string
	// Image makes an image of a tar, which has all that an environment needs beside, and
	// answers its name and how to remove it; nil where there are no images.
	Image func(t testing.TB, archive []byte) (name string, remove func())
	// End makes an environment end by itself, as a crash of its init would.
	End func(t testing.TB, d sandboxd.Driver, id string)
	// Left describes what the driver has on the machine: the same before a test and
	// after it. nil when there is nothing to see.
	Left func() string
}

// Run runs the suite.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *fixture)
	}{
		{"start, connect, ping, stop", testStart},
		{"commands", testCommands},
		{"a command that cannot be run", testNotFound},
		{"the host's certificates", testCABundle},
		{"a newer connection replaces the older", testNewest},
		{"a second start is a conflict", testConflict},
		{"a bad specification is refused", testInvalid},
		{"stop is idempotent", testStopTwice},
		{"an id starts again after a stop", testAgain},
		{"adopt", testAdopt},
		{"adopt of what has died is gone", testAdoptDead},
		{"adopt with another's handle is gone", testAdoptWrong},
		{"an event on a death", testDeath},
		{"start again after a death", testRestart},
		{"list", testList},
		{"close keeps environments", testClose},
		{"many at once", testConcurrent},
		{"start and stop of one id at once", testRace},
		{"command groups", testGroups},
		{"a pool", testPool},
		{"samples", testSamples},
		{"keep", testKeep},
		{"the home of a new sandbox", testSeed},
		{"the home of an image", testSeedOfImage},
		{"limits change", testLimits},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := harness(t)
			before := ""
			if h.Left != nil {
				before = h.Left()
			}
			f := &fixture{Harness: h, t: t}
			defer func() {
				f.end()
				if h.Left == nil {
					return
				}
				if err := poll(func() error {
					if after := h.Left(); after != before {
						return fmt.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
			}()
			f.d = h.Open(t)
			test.run(t, f)
		})
	}
}

// poll tries until there is no error or Patience is over.
func poll(try func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(Patience)
	for {
		err := try()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-tick.C
	}
}

type fixture struct {
	Harness
	t  *testing.T
	d  sandboxd.Driver
	mu sync.Mutex
	id []string

	images []func() // how to remove those of the test
}

func (f *fixture) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	f.t.Cleanup(cancel)
	return ctx
}

// start starts an environment that the end of the test stops.
func (f *fixture) start(spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	f.mu.Lock()
	f.id = append(f.id, spec.ID)
	f.mu.Unlock()
	return f.d.Start(f.context(), spec)
}

func (f *fixture) mustStart() (sandboxd.EnvironmentSpec, sandboxd.Handle) {
	f.t.Helper()
	spec := f.Spec(f.t)
	handle, err := f.start(spec)
	if err != nil {
		f.t.Fatalf("start: %v", err)
	}
	return spec, handle
}

// reopen is a restart of the server.
func (f *fixture) reopen() {
	f.t.Helper()
	if err := f.d.Close(); err != nil {
		f.t.Fatalf("close: %v", err)
	}
	f.d = f.Open(f.t)
}

func (f *fixture) survives() bool {
	return f.d.Fingerprint(f.context()).Capabilities.SurvivesHostRestart
}

func (f *fixture) end() {
	for _, id := range f.id {
		if err := f.d.Stop(f.context(), id); err != nil {
			f.t.Errorf("stop %s at the end: %v", id, err)
		}
	}
	if err := f.d.Close(); err != nil {
		f.t.Errorf("close at the end: %v", err)
	}
	for range f.d.Events() {
	}
	for _, remove := range f.images {
		remove()
	}
}

func wantClass(t *testing.T, what string, err error, class sandboxd.Class) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: no error, want %s", what, class)
	}
	if got := sandboxd.ClassOf(err); got != class {
		t.Fatalf("%s: class %s, want %s: %v", what, got, class, err)
	}
}

func (f *fixture) wantRunning(id string, want bool) {
	f.t.Helper()
	status, err := f.d.Inspect(f.context(), id)
	if !want && sandboxd.ClassOf(err) == sandboxd.ClassNotFound {
		return
	}
	if err != nil {
		f.t.Fatalf("inspect: %v", err)
	}
	if status.Running != want {
		f.t.Fatalf("running is %v, want %v", status.Running, want)
	}
}

func testStart(t *testing.T, f *fixture) {
	if f.d.Name() == "" {
		t.Error("the driver has no name")
	}
	_, err := f.d.Connect(f.context(), sandboxd.NewID())
	wantClass(t, "connect to nothing", err, sandboxd.ClassGone)
	_, err = f.d.Inspect(f.context(), sandboxd.NewID())
	wantClass(t, "inspect nothing", err, sandboxd.ClassNotFound)
	spec, handle := f.mustStart()
	if len(handle) == 0 || len(handle) > 4096 {
		t.Errorf("the handle has %d bytes", len(handle))
	}
	f.wantRunning(spec.ID, true)
	s := Attach(t, f.d, spec.ID)
	if err := s.Link.Ping(f.context()); err != nil {
		t.Fatalf("ping: %v", err)
	}
	if err := f.d.Stop(f.context(), spec.ID); err != nil {
		t.Fatalf("stop: %v", err)
	}
	f.wantRunning(spec.ID, false)
	select {
	case <-s.Link.Done():
	case <-time.After(Patience):
		t.Fatal("the link outlives the environment")
	}
	_, err = f.d.Connect(f.context(), spec.ID)
	wantClass(t, "connect after stop", err, sandboxd.ClassGone)
	select {
	case e := <-f.d.Events():
		t.Fatalf("an event for what was asked: %+v", e)
	default:
	}
}

func testCommands(t *testing.T, f *fixture) {
	spec, _ := f.mustStart()
	s := Attach(t, f.d, spec.ID)
	if r := s.Run(f.True...); r.Exit.Code != 0 || r.Exit.Signal != 0 || r.Stdout+r.Stderr != "" {
		t.Errorf("true: %+v", r)
	}
	if r := s.Run(f.Echo("hello")...); r.Stdout != "hello\n" || r.Exit.Code != 0 {
		t.Errorf("echo: %+v", r)
	}
	id, err := s.Start(wire.Start{Argv: f.Sleep})
	if err != nil {
		t.Fatalf("start sleep: %v", err)
	}
	if err := s.Link.Signal(f.context(), id, 15); err != nil {
		t.Fatalf("signal: %v", err)
	}
	if r := s.Wait(id); r.Exit.Signal != 15 {
		t.Errorf("sleep after SIGTERM: %+v", r.Exit)
	}
}

func testNotFound(t *testing.T, f *fixture) {
	spec, _ := f.mustStart()
	s := Attach(t, f.d, spec.ID)
	id := sandboxd.NewID()
	err := s.Link.Start(f.context(), Spec(wire.Start{ID: id, Argv: []string{"no-such-program-here"}}), nil)
	var failed *guest.StartError
	if !errors.As(err, &failed) || failed.Exit.Code != 127 {
		t.Errorf("a program that does not exist: %v", err)
	}
	if r := s.Run(f.True...); r.Exit.Code != 0 {
		t.Errorf("true afterwards: %+v", r)
	}
}

func testNewest(t *testing.T, f *fixture) {
	spec, _ := f.mustStart()
	older := Attach(t, f.d, spec.ID)
	newer := Attach(t, f.d, spec.ID)
	select {
	case <-older.Link.Done():
	case <-time.After(Patience):
		t.Fatal("the older link lives on")
	}
	if r := newer.Run(f.Echo("new")...); r.Stdout != "new\n" {
		t.Errorf("echo: %+v", r)
	}
}

func testConflict(t *testing.T, f *fixture) {
	spec, _ := f.mustStart()
	_, err := f.start(spec)
	wantClass(t, "second start", err, sandboxd.ClassConflict)
	if r := Attach(t, f.d, spec.ID).Run(f.True...); r.Exit.Code != 0 {
		t.Errorf("the first one is harmed: %+v", r)
	}
}

func testInvalid(t *testing.T, f *fixture) {
	spec := f.Spec(t)
	spec.ID = "../escape"
	_, err := f.d.Start(f.context(), spec)
	wantClass(t, "start with a bad id", err, sandboxd.ClassInvalid)
}

func testStopTwice(t *testing.T, f *fixture) {
	if err := f.d.Stop(f.context(), sandboxd.NewID()); err != nil {
		t.Errorf("stop of nothing: %v", err)
	}
	spec, _ := f.mustStart()
	for range 2 {
		if err := f.d.Stop(f.context(), spec.ID); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
}

func testAgain(t *testing.T, f *fixture) {
	spec, _ := f.mustStart()
	if err := f.d.Stop(f.context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	spec.Generation++
	if _, err := f.start(spec); err != nil {
		t.Fatalf("start again: %v", err)
	}
	if r := Attach(t, f.d, spec.ID).Run(f.True...); r.Exit.Code != 0 {
		t.Errorf("true: %+v", r)
	}
}

func testAdopt(t *testing.T, f *fixture) {
	spec, handle := f.mustStart()
	err := f.d.Adopt(f.context(), spec.ID, handle)
	wantClass(t, "adopt of what is held", err, sandboxd.ClassConflict)
	if !f.survives() {
		return
	}
	s := Attach(t, f.d, spec.ID)
	id, err := s.Start(wire.Start{Argv: f.Sleep})
	if err != nil {
		t.Fatal(err)
	}
	f.reopen()
	_, err = f.start(spec)
	wantClass(t, "start of what was not adopted", err, sandboxd.ClassConflict)
	if err := f.d.Adopt(f.context(), spec.ID, handle); err != nil {
		t.Fatalf("adopt: %v", err)
	}
	f.wantRunning(spec.ID, true)
	s = Attach(t, f.d, spec.ID)
	if known := s.Link.Commands(); len(known) != 1 || known[0].ID != id || known[0].Ended {
		t.Errorf("commands after adoption: %+v", known)
	}
	if r := s.Run(f.Echo("adopted")...); r.Stdout != "adopted\n" {
		t.Errorf("echo: %+v", r)
	}
	if err := s.Link.Signal(f.context(), id, 9); err != nil {
		t.Fatal(err)
	}
	if r := s.Wait(id); r.Exit.Signal != 9 {
		t.Errorf("sleep after SIGKILL: %+v", r.Exit)
	}
}

func testAdoptDead(t *testing.T, f *fixture) {
	spec, handle := f.mustStart()
	f.End(t, f.d, spec.ID)
	f.nextEvent()
	f.reopen()
	err := f.d.Adopt(f.context(), spec.ID, handle)
	wantClass(t, "adopt", err, sandboxd.ClassGone)
	f.wantList()
}

func testAdoptWrong(t *testing.T, f *fixture) {
	_, err1 := f.d.Inspect(f.context(), sandboxd.NewID())
	wantClass(t, "inspect", err1, sandboxd.ClassNotFound)
	err := f.d.Adopt(f.context(), sandboxd.NewID(), sandboxd.Handle("no handle"))
	wantClass(t, "adopt with nonsense", err, sandboxd.ClassGone)
	first, _ := f.mustStart()
	_, second := f.mustStart()
	if !f.survives() {
		return
	}
	f.reopen()
	err = f.d.Adopt(f.context(), first.ID, second)
	wantClass(t, "adopt with another's handle", err, sandboxd.ClassGone)
	f.wantRunning(first.ID, false)
}

// nextEvent waits for one.
func (f *fixture) nextEvent() sandboxd.DriverEvent {
	f.t.Helper()
	select {
	case e := <-f.d.Events():
		return e
	case <-time.After(Patience):
		f.t.Fatal("no event")
		panic("unreachable")
	}
}

func testDeath(t *testing.T, f *fixture) {
	quiet, _ := f.mustStart()
	spec, _ := f.mustStart()
	f.End(t, f.d, spec.ID)
	e := f.nextEvent()
	if e.ID != spec.ID || e.Generation != spec.Generation || e.Ending.At.IsZero() {
		t.Errorf("event: %+v", e)
	}
	if e.Ending.Cause == "" || e.Ending.Cause == sandboxd.CauseStopped {
		t.Errorf("cause %q of a death that nobody asked for", e.Ending.Cause)
	}
	status, err := f.d.Inspect(f.context(), spec.ID)
	if err != nil || status.Running || status.Ending == nil {
		t.Errorf("inspect: %+v, %v", status, err)
	}
	_, err = f.d.Connect(f.context(), spec.ID)
	wantClass(t, "connect", err, sandboxd.ClassGone)
	f.wantRunning(quiet.ID, true)
}

func testRestart(t *testing.T, f *fixture) {
	spec, _ := f.mustStart()
	f.End(t, f.d, spec.ID)
	f.nextEvent()
	spec.Generation++
	if _, err := f.start(spec); err != nil {
		t.Fatalf("start after a death: %v", err)
	}
	if r := Attach(t, f.d, spec.ID).Run(f.True...); r.Exit.Code != 0 {
		t.Errorf("true: %+v", r)
	}
}

// wantList compares the list with ids, in any order.
func (f *fixture) wantList(ids ...string) {
	f.t.Helper()
	got, err := f.d.List(f.context())
	if err != nil {
		f.t.Fatalf("list: %v", err)
	}
	want := map[string]bool{}
	for _, id := range ids {
		want[id] = true
	}
	for _, id := range got {
		if !want[id] {
			f.t.Errorf("listed and not ours: %s", id)
		}
		delete(want, id)
	}
	for id := range want {
		f.t.Errorf("not listed: %s", id)
	}
}

func testList(t *testing.T, f *fixture) {
	f.wantList()
	first, _ := f.mustStart()
	second, _ := f.mustStart()
	f.wantList(first.ID, second.ID)
	if f.survives() {
		f.reopen() // not adopted, listed all the same
		f.wantList(first.ID, second.ID)
	}
	for _, spec := range []sandboxd.EnvironmentSpec{first, second} {
		if err := f.d.Stop(f.context(), spec.ID); err != nil {
			t.Fatalf("stop: %v", err)
		}
	}
	f.wantList()
}

func testClose(t *testing.T, f *fixture) {
	spec, _ := f.mustStart()
	survives := f.survives()
	if err := f.d.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if _, open := <-f.d.Events(); open {
		t.Error("an event after close")
	}
	if _, err := f.d.Start(f.context(), f.Spec(t)); err == nil {
		t.Error("a closed driver starts")
	}
	f.d = f.Open(t)
	if survives {
		f.wantList(spec.ID)
	}
}

func testConcurrent(t *testing.T, f *fixture) {
	specs := make([]sandboxd.EnvironmentSpec, 8)
	for i := range specs {
		specs[i] = f.Spec(t)
	}
	var wg sync.WaitGroup
	for _, spec := range specs {
		wg.Go(func() {
			if _, err := f.start(spec); err != nil {
				t.Errorf("start: %v", err)
				return
			}
			if spec.ID < "m" { // some stop, some stay
				if err := f.d.Stop(f.context(), spec.ID); err != nil {
					t.Errorf("stop: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for _, spec := range specs {
		f.wantRunning(spec.ID, spec.ID >= "m")
	}
}

func testRace(t *testing.T, f *fixture) {
	spec := f.Spec(t)
	for range 5 {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				_, err := f.start(spec)
				// One that was stopped while it started is not there.
				if c := sandboxd.ClassOf(err); err != nil && c != sandboxd.ClassConflict && c != sandboxd.ClassUnavailable {
					t.Errorf("start: %v", err)
				}
			})
			wg.Go(func() {
				err := f.d.Stop(f.context(), spec.ID)
				if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassBusy {
					t.Errorf("stop: %v", err)
				}
			})
		}
		wg.Wait()
	}
	if err := f.d.Stop(f.context(), spec.ID); err != nil {
		t.Errorf("stop: %v", err)
	}
	f.wantList()
}

func testGroups(t *testing.T, f *fixture) {
	g, ok := f.d.(sandboxd.CommandGroups)
	if !ok {
		if f.d.Fingerprint(f.context()).Capabilities.CommandCgroup {
			t.Fatal("command groups are claimed and not there")
		}
		return
	}
	spec, _ := f.mustStart()
	s := Attach(t, f.d, spec.ID)
	id, err := s.Start(wire.Start{Argv: f.Sleep})
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.CreateGroup(f.context(), spec.ID, id, sandboxd.CommandLimits{})
	wantClass(t, "create twice", err, sandboxd.ClassConflict)
	u, err := g.GroupUsage(f.context(), spec.ID, id)
	if err != nil || u.Processes < 1 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	wantClass(t, "remove of a running one", g.RemoveGroup(f.context(), spec.ID, id), sandboxd.ClassBusy)
	if err := g.KillGroup(f.context(), spec.ID, id); err != nil {
		t.Errorf("kill: %v", err)
	}
	if r := s.Wait(id); r.Exit.Signal != 9 {
		t.Errorf("after the kill: %+v", r.Exit)
	}
	_, err = g.GroupUsage(f.context(), spec.ID, id)
	wantClass(t, "usage after remove", err, sandboxd.ClassNotFound)
	_, err = g.CreateGroup(f.context(), spec.ID, "../up", sandboxd.CommandLimits{})
	wantClass(t, "a bad name", err, sandboxd.ClassInvalid)
}
