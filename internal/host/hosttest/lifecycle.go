package hosttest

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"sandboxd"
)

var lifecycleCases = []testCase{
	{name: "open creates and answers what is in force", run: openCreates},
	{name: "open of a key attaches", run: openAttaches},
	{name: "open of a key that has something else", run: openDiffers},
	{name: "one of fifty opens at once creates", run: oneCreates},
	{name: "a bad request names the field and not the value", run: badOpen},
	{name: "ids that name nothing", run: unknownIDs},
	{name: "list and get", run: listAndGet},
	{name: "start and stop are idempotent", run: startStop},
	{name: "delete is final and frees the key", run: deleteIsFinal},
	{name: "delete from every state at hand", run: deleteStates},
	{name: "the ceiling says who holds the places", places: 2, run: ceiling},
	{name: "runtimes", run: runtimes},
}

func openCreates(s *suite) {
	sb := s.open(sandboxd.OpenRequest{Key: "alpha", Labels: map[string]string{"team": "blue"}})
	if !sandboxd.ValidID(sb.ID) || sb.Key != "alpha" || sb.State != sandboxd.StateRunning || sb.Generation != 1 {
		s.Fatalf("%+v", sb)
	}
	if sb.Driver == "" || sb.Runtime != sandboxd.RuntimeMachine || sb.CreatedAt.IsZero() || sb.Labels["team"] != "blue" {
		s.Fatalf("%+v", sb)
	}
	if l := sb.Limits; l.MemoryBytes == 0 || l.CPUs == 0 || l.PIDs == 0 {
		s.Fatalf("limits in force: %+v", l)
	}
	made := s.open(sandboxd.OpenRequest{Start: cold()})
	if !sandboxd.ValidKey(made.Key) || made.State != sandboxd.StateCold || made.Generation != 0 {
		s.Fatalf("%+v", made)
	}
}

func openAttaches(s *suite) {
	first := s.open(sandboxd.OpenRequest{Key: "same", Start: cold()})
	again, created, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "same"})
	s.must(err)
	if created || again.ID != first.ID || again.State != sandboxd.StateRunning {
		s.Fatalf("created %v, %+v", created, again)
	}
	third, created, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "same"})
	s.must(err)
	if created || third.ID != first.ID || third.Generation != again.Generation {
		s.Fatalf("created %v, %+v", created, third)
	}
}

func openDiffers(s *suite) {
	made := sandboxd.OpenRequest{Key: "made", Start: cold(), Tenant: "blue", Labels: map[string]string{"a": "b"}, Env: map[string]string{"A": "b"},
		Limits:  sandboxd.Limits{MemoryBytes: 256 << 20, CPUs: 0.5, PIDs: 100, TmpBytes: 1 << 20, HomeBytes: 1 << 30, OpenFiles: 100},
		Network: sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: []string{"example.com"}}}
	first := s.open(made)
	made.Network.Allow = []string{"EXAMPLE.com."} // the same in other words
	made.Driver, made.Runtime = first.Driver, first.Runtime
	for name, req := range map[string]sandboxd.OpenRequest{"all of it": made, "nothing": {Key: "made", Start: cold()}} {
		if again, created, err := s.host.Open(s.ctx, req); err != nil || created || again.ID != first.ID {
			s.Errorf("who says %s: created %v, %v", name, created, err)
		}
	}
	const canary = "canary-7f3a"
	for field, change := range map[string]func(*sandboxd.OpenRequest){
		"tenant":              func(r *sandboxd.OpenRequest) { r.Tenant = canary },
		"labels":              func(r *sandboxd.OpenRequest) { r.Labels = map[string]string{"a": canary} },
		"env":                 func(r *sandboxd.OpenRequest) { r.Env = map[string]string{"A": canary} },
		"network":             func(r *sandboxd.OpenRequest) { r.Network.Allow = []string{canary} },
		"limits.memory_bytes": func(r *sandboxd.OpenRequest) { r.Limits.MemoryBytes *= 2 },
		"limits.cpus":         func(r *sandboxd.OpenRequest) { r.Limits.CPUs *= 2 },
		"limits.pids":         func(r *sandboxd.OpenRequest) { r.Limits.PIDs *= 2 },
		"limits.tmp_bytes":    func(r *sandboxd.OpenRequest) { r.Limits.TmpBytes *= 2 },
		"limits.home_bytes":   func(r *sandboxd.OpenRequest) { r.Limits.HomeBytes *= 2 },
		"limits.open_files":   func(r *sandboxd.OpenRequest) { r.Limits.OpenFiles *= 2 },
	} {
		req := made
		change(&req)
		_, _, err := s.host.Open(s.ctx, req)
		s.wants(err, sandboxd.ClassConflict)
		var e *sandboxd.Error
		if !errors.As(err, &e) || e.Field != field || e.Hint == "" || strings.Contains(e.Public()+e.Hint, canary) {
			s.Errorf("%s: %+v", field, e)
		}
	}
	if now, err := s.host.Get(s.ctx, first.ID); err != nil || now.State != sandboxd.StateCold || now.Labels["a"] != "b" {
		s.Errorf("a refused open changed something: %+v, %v", now, err)
	}
}

func oneCreates(s *suite) {
	var created atomic.Int64
	var ids sync.Map
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			sb, isNew, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "crowd"})
			if err != nil {
				s.Errorf("open: %v", err)
				return
			}
			if isNew {
				created.Add(1)
			}
			if sb.State != sandboxd.StateRunning {
				s.Errorf("answered in state %s", sb.State)
			}
			ids.Store(sb.ID, true)
		})
	}
	wg.Wait()
	n := 0
	ids.Range(func(any, any) bool { n++; return true })
	if created.Load() != 1 || n != 1 {
		s.Fatalf("%d opens created, %d ids", created.Load(), n)
	}
}

func badOpen(s *suite) {
	const canary = "canary-7f3a"
	for _, tc := range []struct {
		field string
		req   sandboxd.OpenRequest
	}{
		{"key", sandboxd.OpenRequest{Key: "../" + canary}},
		{"key", sandboxd.OpenRequest{Key: strings.Repeat("k", 65)}},
		{"key", sandboxd.OpenRequest{Key: "-" + canary}},
		{"runtime", sandboxd.OpenRequest{Runtime: canary}},
		{"driver", sandboxd.OpenRequest{Driver: canary}},
		{"limits", sandboxd.OpenRequest{Limits: sandboxd.Limits{MemoryBytes: -1}}},
		{"limits", sandboxd.OpenRequest{Limits: sandboxd.Limits{PIDs: 1}}},
		{"env", sandboxd.OpenRequest{Env: map[string]string{"A": canary + "\x00"}}},
		{"env", sandboxd.OpenRequest{Env: map[string]string{"": canary}}},
		{"labels", sandboxd.OpenRequest{Labels: map[string]string{"a": canary + "\n"}}},
	} {
		_, _, err := s.host.Open(s.ctx, tc.req)
		s.wants(err, sandboxd.ClassInvalid)
		if !strings.Contains(err.Error(), tc.field) || strings.Contains(err.Error(), canary) {
			s.Errorf("%s: the error is %q", tc.field, err)
		}
	}
	all, err := s.host.List(s.ctx, "")
	s.must(err)
	if len(all) != 0 {
		s.Fatalf("a refused open left %+v", all)
	}
}

func unknownIDs(s *suite) {
	for _, id := range []string{sandboxd.NewID(), "x", "..", strings.Repeat("a", 300)} {
		_, err := s.host.Get(s.ctx, id)
		s.wants(err, sandboxd.ClassNotFound)
		_, err = s.host.Start(s.ctx, id)
		s.wants(err, sandboxd.ClassNotFound)
		_, err = s.host.Stop(s.ctx, id)
		s.wants(err, sandboxd.ClassNotFound)
		s.wants(s.host.Delete(s.ctx, id), sandboxd.ClassNotFound)
		_, _, err = s.host.StartCommand(s.ctx, id, sandboxd.CommandSpec{Argv: s.program("pwd")})
		s.wants(err, sandboxd.ClassNotFound)
		_, err = s.host.ListCommands(s.ctx, id)
		s.wants(err, sandboxd.ClassNotFound)
		_, err = s.host.Files(s.ctx, id)
		s.wants(err, sandboxd.ClassNotFound)
	}
}

func listAndGet(s *suite) {
	all, err := s.host.List(s.ctx, "")
	s.must(err)
	if len(all) != 0 {
		s.Fatalf("a new host has %+v", all)
	}
	a := s.open(sandboxd.OpenRequest{Key: "a", Start: cold()})
	b := s.open(sandboxd.OpenRequest{Key: "b", Start: cold()})
	all, err = s.host.List(s.ctx, "")
	s.must(err)
	if len(all) != 2 || all[0].ID != a.ID || all[1].ID != b.ID {
		s.Fatalf("%+v", all)
	}
	one, err := s.host.List(s.ctx, "b")
	s.must(err)
	if len(one) != 1 || one[0].ID != b.ID {
		s.Fatalf("%+v", one)
	}
	none, err := s.host.List(s.ctx, "c")
	s.must(err)
	if len(none) != 0 {
		s.Fatalf("%+v", none)
	}
	got, err := s.host.Get(s.ctx, a.ID)
	s.must(err)
	if got.ID != a.ID || got.Key != "a" || !got.CreatedAt.Equal(a.CreatedAt) {
		s.Fatalf("%+v, want %+v", got, a)
	}
}

func startStop(s *suite) {
	sb := s.open(sandboxd.OpenRequest{Start: cold()})
	for range 2 {
		got, err := s.host.Stop(s.ctx, sb.ID)
		s.must(err)
		if got.State != sandboxd.StateCold {
			s.Fatalf("%+v", got)
		}
	}
	for range 2 {
		got, err := s.host.Start(s.ctx, sb.ID)
		s.must(err)
		if got.State != sandboxd.StateRunning || got.Generation != 1 {
			s.Fatalf("%+v", got)
		}
	}
	got, err := s.host.Stop(s.ctx, sb.ID)
	s.must(err)
	if got.State != sandboxd.StateCold {
		s.Fatalf("%+v", got)
	}
	got, err = s.host.Start(s.ctx, sb.ID)
	s.must(err)
	if got.State != sandboxd.StateRunning || got.Generation != 2 {
		s.Fatalf("%+v", got)
	}
}

func deleteIsFinal(s *suite) {
	sb := s.open(sandboxd.OpenRequest{Key: "once"})
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600"), Background: true})
	stream, err := s.host.FollowCommand(s.ctx, sb.ID, cmd.ID, sandboxd.FollowOptions{Follow: true})
	s.must(err)
	defer stream.Close()
	s.must(s.host.Delete(s.ctx, sb.ID))
	for { // a follower is let go, with an ending or an error, but never kept
		if _, err := stream.Next(s.ctx); err != nil {
			s.must(s.ctx.Err())
			break
		}
	}
	s.wants(s.host.Delete(s.ctx, sb.ID), sandboxd.ClassGone)
	_, err = s.host.Start(s.ctx, sb.ID)
	s.wants(err, sandboxd.ClassGone)
	_, _, err = s.host.StartCommand(s.ctx, sb.ID, sandboxd.CommandSpec{Argv: s.program("pwd")})
	s.wants(err, sandboxd.ClassGone)
	all, err := s.host.List(s.ctx, "")
	s.must(err)
	if len(all) != 0 {
		s.Fatalf("the deleted one is listed: %+v", all)
	}
	s.eventually("the key opens anew", func() bool {
		next, created, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "once", Start: cold()})
		return err == nil && created && next.ID != sb.ID
	})
}

func deleteStates(s *suite) {
	s.must(s.host.Delete(s.ctx, s.open(sandboxd.OpenRequest{Start: cold()}).ID))
	s.must(s.host.Delete(s.ctx, s.open(sandboxd.OpenRequest{}).ID))
	sb := s.open(sandboxd.OpenRequest{})
	_, err := s.host.Stop(s.ctx, sb.ID)
	s.must(err)
	s.must(s.host.Delete(s.ctx, sb.ID))
}

func ceiling(s *suite) {
	s.open(sandboxd.OpenRequest{Key: "holder-one"})
	two := s.open(sandboxd.OpenRequest{Key: "holder-two"})
	_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "late", WaitS: new(sandboxd.Seconds)})
	s.wants(err, sandboxd.ClassCapacity)
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Ceiling == nil || *e.Ceiling != (sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Held: 2, Limit: 2}) || e.RetryS <= 0 {
		s.Fatalf("the error does not say which ceiling: %+v", e)
	}
	if !strings.Contains(err.Error(), "holder-one") || !strings.Contains(err.Error(), "holder-two") {
		s.Fatalf("the error does not name the holders: %v", err)
	}
	all, err := s.host.List(s.ctx, "late")
	s.must(err)
	if len(all) != 0 {
		s.Fatalf("a refused opening left %+v", all)
	}
	waits := make(chan error, 1)
	go func() {
		_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "late"})
		waits <- err
	}()
	s.must(s.host.Delete(s.ctx, two.ID))
	s.must(<-waits) // a place became free
	sb, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "late"})
	s.must(err)
	if sb.State != sandboxd.StateRunning {
		s.Fatalf("%+v", sb)
	}
}

func runtimes(s *suite) {
	all, err := s.host.Runtimes(s.ctx)
	s.must(err)
	for _, r := range all {
		if r.Name == sandboxd.RuntimeMachine && len(r.Drivers) > 0 && r.Limits.MemoryBytes > 0 {
			return
		}
	}
	s.Fatalf("%+v", all)
}
