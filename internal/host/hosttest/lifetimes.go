package hosttest

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandboxd"
)

var lifetimeCases = []testCase{
	{name: "close ends in cold and counts for nothing", run: closes},
	{name: "attach never creates", run: attaches},
	{name: "awake says what keeps it", run: awake},
	{name: "a hold keeps it awake until it is released", run: holds},
	{name: "bad holds", run: badHolds},
	{name: "usage of what runs and of what is cold", run: usage},
	{name: "the policy changes as a whole or not at all", run: policyChanges},
	{name: "a tenant's burst stops at its ceiling", run: tenantBurst},
	{name: "a lowered ceiling refuses new ones only", run: loweredCeiling},
	{name: "the longest idle one sleeps for another and wakes", run: sleeps},
	{name: "at the open ceiling the longest asleep is closed", run: openCeiling},
}

// lifetimes is what the host offers beside Host.
func (s *suite) lifetimes() sandboxd.Lifetimes {
	s.Helper()
	l, ok := s.host.(sandboxd.Lifetimes)
	if !ok {
		s.Fatal("the host has no lifetimes")
	}
	return l
}

func (s *suite) policy(change func(*sandboxd.Policy)) sandboxd.Policy {
	s.Helper()
	p, err := s.lifetimes().ChangePolicy(s.ctx, func(p *sandboxd.Policy) error { change(p); return nil })
	s.must(err)
	return p
}

// refusedBy fails the test unless err is of this ceiling.
func (s *suite) refusedBy(err error, want sandboxd.Ceiling) {
	s.Helper()
	s.wants(err, sandboxd.ClassCapacity)
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Ceiling == nil || *e.Ceiling != want {
		s.Fatalf("refused by %+v, want %+v: %v", e.Ceiling, want, err)
	}
}

func now() *sandboxd.Seconds { return new(sandboxd.Seconds) }

func bound(n int) *int { return &n }

func closes(s *suite) {
	l := s.lifetimes()
	sb := s.open(sandboxd.OpenRequest{Key: "k"})
	if !sb.Open || sb.Asleep {
		s.Fatalf("%+v", sb)
	}
	for range 2 {
		got, err := l.CloseSandbox(s.ctx, sb.ID)
		s.must(err)
		if got.State != sandboxd.StateCold || got.Open || got.LastEnding == nil || got.LastEnding.Cause != sandboxd.CauseStopped {
			s.Fatalf("%+v", got)
		}
	}
	a, err := l.Awake(s.ctx, sb.ID)
	s.must(err)
	if a.Clock != sandboxd.ClockNone || a.Lapses != nil {
		s.Fatalf("%+v", a)
	}
	s.exits(s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("pwd")}), sandboxd.CauseExit, 0) // a command starts it again
	got, err := s.host.Get(s.ctx, sb.ID)
	s.must(err)
	if !got.Open || got.Generation != 2 {
		s.Fatalf("%+v", got)
	}
	_, err = l.CloseSandbox(s.ctx, sb.ID)
	s.must(err)
	s.must(s.host.Delete(s.ctx, sb.ID))
	_, err = l.CloseSandbox(s.ctx, sb.ID)
	s.wants(err, sandboxd.ClassGone)
	_, err = l.CloseSandbox(s.ctx, sandboxd.NewID())
	s.wants(err, sandboxd.ClassNotFound)
}

func attaches(s *suite) {
	l := s.lifetimes()
	for _, key := range []string{"nobody", "", "../x"} {
		_, err := l.Attach(s.ctx, key)
		s.wants(err, sandboxd.ClassNotFound)
	}
	sb := s.open(sandboxd.OpenRequest{Key: "k"})
	_, err := l.CloseSandbox(s.ctx, sb.ID)
	s.must(err)
	got, err := l.Attach(s.ctx, "k")
	s.must(err)
	if got.ID != sb.ID || got.State != sandboxd.StateCold {
		s.Fatalf("%+v", got)
	}
	all, err := s.host.List(s.ctx, "")
	s.must(err)
	if len(all) != 1 {
		s.Fatalf("%+v", all)
	}
}

func awake(s *suite) {
	l := s.lifetimes()
	sb := s.open(sandboxd.OpenRequest{})
	a, err := l.Awake(s.ctx, sb.ID)
	s.must(err)
	if a.Clock != sandboxd.ClockIdle || a.Reason != "opened" || a.Lapses == nil || a.Since.After(*a.Lapses) {
		s.Fatalf("%+v", a)
	}
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600")})
	a, err = l.Awake(s.ctx, sb.ID)
	s.must(err)
	if a.Reason != "command" || !strings.Contains(a.Detail, cmd.ID) {
		s.Fatalf("%+v", a)
	}
	_, err = s.host.StopCommand(s.ctx, sb.ID, cmd.ID, 0)
	s.must(err)
	background := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600"), Background: true})
	a, err = l.Awake(s.ctx, sb.ID)
	s.must(err)
	if a.Reason != "command" || strings.Contains(a.Detail, background.ID) {
		s.Fatalf("a command in the background is no work by itself: %+v", a)
	}
	s.wants(l.Renew(s.ctx, sb.ID), sandboxd.ClassConflict) // which is for the lease of another face
	s.policy(func(p *sandboxd.Policy) { p.IdleTimeoutS = nil })
	a, err = l.Awake(s.ctx, sb.ID)
	s.must(err)
	if a.Clock != sandboxd.ClockNone || a.Lapses != nil {
		s.Fatalf("without a limit: %+v", a)
	}
	seconds := func(n sandboxd.Seconds) *sandboxd.Seconds { return &n }
	s.policy(func(p *sandboxd.Policy) { p.IdleTimeoutS, p.WorkspaceTTLS = seconds(1200), seconds(86400) })
	s.clock(sb.ID, sandboxd.SandboxClock{Name: sandboxd.ClockIdle, WaitsFor: sandboxd.WaitsForWork, LimitS: seconds(1200)})
	_, err = l.CloseSandbox(s.ctx, sb.ID)
	s.must(err)
	s.clock(sb.ID, sandboxd.SandboxClock{Name: sandboxd.ClockFiles, WaitsFor: sandboxd.WaitsForUse, LimitS: seconds(86400)})
	a, err = l.Awake(s.ctx, sb.ID)
	s.must(err)
	if a.Clock != sandboxd.ClockFiles || a.Reason != "closed" || a.Lapses == nil || a.Lapses.Sub(a.Since) != 24*time.Hour {
		s.Fatalf("%+v", a)
	}
	s.policy(func(p *sandboxd.Policy) { p.WorkspaceTTLS = nil })
	s.clock(sb.ID, sandboxd.SandboxClock{Name: sandboxd.ClockNone})
	_, err = l.Awake(s.ctx, sandboxd.NewID())
	s.wants(err, sandboxd.ClassNotFound)
	s.wants(l.Renew(s.ctx, sandboxd.NewID()), sandboxd.ClassNotFound)
}

// clock wants it said everywhere which clock a sandbox has.
func (s *suite) clock(id string, want sandboxd.SandboxClock) {
	s.Helper()
	got, err := s.host.Get(s.ctx, id)
	s.must(err)
	list, err := s.host.List(s.ctx, "")
	s.must(err)
	byKey, err := s.host.List(s.ctx, got.Key)
	s.must(err)
	for _, sb := range append(append(list, byKey...), got) {
		if sb.ID == id && !reflect.DeepEqual(sb.Clock, want) {
			s.Fatalf("the clock is %+v, want %+v", sb.Clock, want)
		}
	}
}

func holds(s *suite) {
	l := s.lifetimes()
	sb := s.open(sandboxd.OpenRequest{})
	made, err := l.Hold(s.ctx, sb.ID, sandboxd.Hold{Reason: "a build", ForS: 3600})
	s.must(err)
	if made.ID == "" || made.Reason != "a build" || time.Until(made.Expires) < 59*time.Minute {
		s.Fatalf("%+v", made)
	}
	_, err = l.Hold(s.ctx, sb.ID, sandboxd.Hold{ID: "own", ForS: 60})
	s.must(err)
	longer, err := l.Hold(s.ctx, sb.ID, sandboxd.Hold{ID: "own", ForS: 7200})
	s.must(err)
	all, err := l.Holds(s.ctx, sb.ID)
	s.must(err)
	if len(all) != 2 || all[0].ID != made.ID || all[1].ID != "own" || time.Until(longer.Expires) < 119*time.Minute {
		s.Fatalf("%+v", all)
	}
	a, err := l.Awake(s.ctx, sb.ID)
	s.must(err)
	if a.Reason != "hold" || a.Holding != 2 || a.Lapses == nil || time.Until(*a.Lapses) < 2*time.Hour {
		s.Fatalf("%+v", a)
	}
	for range 2 {
		s.must(l.Release(s.ctx, sb.ID, "own"))
	}
	all, err = l.Holds(s.ctx, sb.ID)
	s.must(err)
	if len(all) != 1 {
		s.Fatalf("%+v", all)
	}
	_, err = l.CloseSandbox(s.ctx, sb.ID)
	s.must(err)
	all, err = l.Holds(s.ctx, sb.ID)
	s.must(err)
	if len(all) != 0 {
		s.Fatalf("a closed sandbox has %+v", all)
	}
	_, err = l.Hold(s.ctx, sb.ID, sandboxd.Hold{ForS: 3600})
	s.wants(err, sandboxd.ClassConflict)
}

func badHolds(s *suite) {
	l := s.lifetimes()
	sb := s.open(sandboxd.OpenRequest{})
	for _, bad := range []sandboxd.Hold{
		{}, {ForS: -60}, {ForS: sandboxd.InSeconds(sandboxd.MaxHold) + 1},
		{ID: "a/b", ForS: 3600}, {Reason: strings.Repeat("r", 201), ForS: 3600}, {Reason: "a\nb", ForS: 3600},
	} {
		_, err := l.Hold(s.ctx, sb.ID, bad)
		s.wants(err, sandboxd.ClassInvalid)
	}
	for i := range sandboxd.MaxHolds {
		_, err := l.Hold(s.ctx, sb.ID, sandboxd.Hold{ID: fmt.Sprint("h", i), ForS: 3600})
		s.must(err)
	}
	_, err := l.Hold(s.ctx, sb.ID, sandboxd.Hold{ID: "more", ForS: 3600})
	s.wants(err, sandboxd.ClassCapacity)
	_, err = l.Hold(s.ctx, sandboxd.NewID(), sandboxd.Hold{ForS: 3600})
	s.wants(err, sandboxd.ClassNotFound)
}

func usage(s *suite) {
	l := s.lifetimes()
	sb := s.open(sandboxd.OpenRequest{Start: cold()})
	use, err := l.Usage(s.ctx, sb.ID)
	s.must(err)
	if use.MemoryBytes == nil || *use.MemoryBytes != 0 || use.PIDs == nil || *use.PIDs != 0 || use.CPUSeconds == nil || *use.CPUSeconds != 0 {
		s.Fatalf("a cold one uses %+v", use)
	}
	_, err = s.host.Start(s.ctx, sb.ID)
	s.must(err)
	use, err = l.Usage(s.ctx, sb.ID)
	s.must(err)
	if use.MemoryLimitBytes == nil || *use.MemoryLimitBytes <= 0 || use.CPUSeconds != nil && *use.CPUSeconds < 0 {
		s.Fatalf("%+v", use)
	}
	_, err = l.Usage(s.ctx, sandboxd.NewID())
	s.wants(err, sandboxd.ClassNotFound)
}

func policyChanges(s *suite) {
	l := s.lifetimes()
	before, err := l.Policy(s.ctx)
	s.must(err)
	if before.MaxRunning == nil || before.IdleTimeoutS == nil || before.DefaultRuntime != sandboxd.RuntimeMachine {
		s.Fatalf("%+v", before)
	}
	for field, change := range map[string]func(*sandboxd.Policy){
		"max_running":         func(p *sandboxd.Policy) { p.MaxRunning = bound(-1) },
		"max_open":            func(p *sandboxd.Policy) { p.MaxOpen, p.MaxRunning = bound(3), bound(4) },
		"command_timeout_s":   func(p *sandboxd.Policy) { p.CommandTimeoutS = 0 },
		"max_read_bytes":      func(p *sandboxd.Policy) { p.MaxReadBytes = 0 },
		"default_runtime":     func(p *sandboxd.Policy) { p.DefaultRuntime = "canary-runtime" },
		"limits.cpus":         func(p *sandboxd.Policy) { p.Limits.CPUs = -1 },
		"runtimes.nobody":     func(p *sandboxd.Policy) { p.Runtimes["nobody"] = sandboxd.RuntimeLimits{} },
		"runtimes.machine":    func(p *sandboxd.Policy) { p.Runtimes["machine"] = sandboxd.RuntimeLimits{CPUs: new(float64)} },
		"environment_ttl_s":   func(p *sandboxd.Policy) { v := sandboxd.Seconds(-1); p.EnvironmentTTLS = &v },
		"limits.memory_bytes": func(p *sandboxd.Policy) { p.Limits.MemoryBytes = 1 },
	} {
		_, err := l.ChangePolicy(s.ctx, func(p *sandboxd.Policy) error {
			change(p)
			p.MaxPerTenant = bound(77)
			return nil
		})
		s.wants(err, sandboxd.ClassInvalid)
		if !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "canary") {
			s.Errorf("%s: %v", field, err)
		}
	}
	after, err := l.Policy(s.ctx)
	s.must(err)
	if diff := string(sandboxd.PolicyChange(before, after)); diff != "{}" {
		s.Fatalf("a refused change did %s", diff)
	}
	memory := int64(64 << 20)
	p := s.policy(func(p *sandboxd.Policy) {
		p.Runtimes[sandboxd.RuntimeMachine] = sandboxd.RuntimeLimits{MemoryBytes: &memory}
		p.IdleTimeoutS, p.Limits.PIDs = nil, 99
	})
	if p.IdleTimeoutS != nil || p.Limits.PIDs != 99 {
		s.Fatalf("%+v", p)
	}
	if sb := s.open(sandboxd.OpenRequest{Start: cold()}); sb.Limits.MemoryBytes != memory || sb.Limits.PIDs != 99 {
		s.Fatalf("the next one has %+v", sb.Limits)
	}
	p = s.policy(func(p *sandboxd.Policy) { delete(p.Runtimes, sandboxd.RuntimeMachine) })
	if len(p.Runtimes) != 0 {
		s.Fatalf("%+v", p.Runtimes)
	}
	failed := errors.New("on second thoughts")
	if _, err := l.ChangePolicy(s.ctx, func(*sandboxd.Policy) error { return failed }); !errors.Is(err, failed) {
		s.Fatalf("%v", err)
	}
}

func tenantBurst(s *suite) {
	s.policy(func(p *sandboxd.Policy) { p.MaxPerTenant = bound(3) })
	var opened atomic.Int64
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Tenant: "acme"})
			if err == nil {
				opened.Add(1)
				return
			}
			var e *sandboxd.Error
			if !errors.As(err, &e) || e.Ceiling == nil || *e.Ceiling != (sandboxd.Ceiling{Name: sandboxd.CeilingTenant, Tenant: "acme", Held: 3, Limit: 3}) {
				s.Errorf("refused with %v", err)
			}
		})
	}
	wg.Wait()
	if opened.Load() != 3 {
		s.Fatalf("%d were opened, want 3", opened.Load())
	}
	s.open(sandboxd.OpenRequest{Tenant: "umbrella"})
	s.open(sandboxd.OpenRequest{})
	s.open(sandboxd.OpenRequest{Tenant: "acme", Start: cold()}) // closed: it counts when it starts
	all, err := s.host.List(s.ctx, "")
	s.must(err)
	for _, sb := range all {
		if sb.Tenant == "acme" && sb.State == sandboxd.StateCold {
			_, err := s.host.Start(s.ctx, sb.ID)
			s.refusedBy(err, sandboxd.Ceiling{Name: sandboxd.CeilingTenant, Tenant: "acme", Held: 3, Limit: 3})
		}
	}
	// The one that is open already does not count against itself.
	for _, sb := range all {
		if sb.Tenant == "acme" && sb.Open {
			_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: sb.Key, Tenant: "acme"})
			s.must(err)
			_, err = s.lifetimes().CloseSandbox(s.ctx, sb.ID)
			s.must(err)
			break
		}
	}
	s.open(sandboxd.OpenRequest{Tenant: "acme"})
}

func loweredCeiling(s *suite) {
	first := s.open(sandboxd.OpenRequest{})
	s.policy(func(p *sandboxd.Policy) { p.MaxRunning = bound(0) })
	got, err := s.host.Get(s.ctx, first.ID)
	s.must(err)
	if got.State != sandboxd.StateRunning {
		s.Fatalf("%+v", got)
	}
	_, _, err = s.host.Open(s.ctx, sandboxd.OpenRequest{WaitS: now()})
	s.refusedBy(err, sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Held: 1, Limit: 0})
	waits := make(chan error, 1)
	go func() {
		_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{})
		waits <- err
	}()
	s.policy(func(p *sandboxd.Policy) { p.MaxRunning = nil })
	s.must(<-waits)
}

func sleeps(s *suite) {
	l := s.lifetimes()
	s.policy(func(p *sandboxd.Policy) { p.MaxRunning = bound(2) })
	busy := s.open(sandboxd.OpenRequest{Key: "busy"})
	s.start(busy.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600")})
	idle := s.open(sandboxd.OpenRequest{Key: "idle"})
	_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{WaitS: now()})
	s.refusedBy(err, sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Held: 2, Limit: 2})
	s.policy(func(p *sandboxd.Policy) { p.EvictIdleAfterS = now() })
	third := s.open(sandboxd.OpenRequest{WaitS: now()})
	got, err := s.host.Get(s.ctx, idle.ID)
	s.must(err)
	if got.State != sandboxd.StateCold || !got.Asleep || !got.Open || got.LastEnding == nil || got.LastEnding.Cause != sandboxd.CauseAsleep {
		s.Fatalf("%+v", got)
	}
	s.start(third.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600")})
	_, _, err = s.host.Open(s.ctx, sandboxd.OpenRequest{WaitS: now()})
	s.refusedBy(err, sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Held: 2, Limit: 2}) // both work
	s.must(s.host.Delete(s.ctx, third.ID))
	s.exits(s.run(idle.ID, sandboxd.CommandSpec{Argv: s.program("pwd")}), sandboxd.CauseExit, 0)
	got, err = s.host.Get(s.ctx, idle.ID)
	s.must(err)
	if got.State != sandboxd.StateRunning || got.Asleep || got.Generation != 2 {
		s.Fatalf("%+v", got)
	}
	if _, err := l.CloseSandbox(s.ctx, busy.ID); err != nil {
		s.Fatal(err)
	}
}

func openCeiling(s *suite) {
	s.policy(func(p *sandboxd.Policy) { p.MaxRunning, p.MaxOpen, p.EvictIdleAfterS = bound(1), bound(2), now() })
	first := s.open(sandboxd.OpenRequest{Key: "first"})
	second := s.open(sandboxd.OpenRequest{Key: "second"})
	third := s.open(sandboxd.OpenRequest{Key: "third"})
	for _, want := range []struct {
		id           string
		open, asleep bool
	}{{first.ID, false, false}, {second.ID, true, true}, {third.ID, true, false}} {
		got, err := s.host.Get(s.ctx, want.id)
		s.must(err)
		if got.Open != want.open || got.Asleep != want.asleep {
			s.Errorf("want %+v: %+v", want, got)
		}
	}
	_, err := s.host.Files(s.ctx, first.ID) // its files stay
	s.must(err)
	s.policy(func(p *sandboxd.Policy) { p.EvictIdleAfterS = nil })
	_, err = s.lifetimes().CloseSandbox(s.ctx, second.ID)
	s.must(err)
	s.policy(func(p *sandboxd.Policy) { p.MaxRunning = bound(2) })
	s.open(sandboxd.OpenRequest{Key: "fourth"})
	_, _, err = s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "fifth", WaitS: now()})
	s.refusedBy(err, sandboxd.Ceiling{Name: sandboxd.CeilingOpen, Held: 2, Limit: 2})
}
