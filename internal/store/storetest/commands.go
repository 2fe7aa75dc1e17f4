package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sandboxd"
)

func commands(t *testing.T, s sandboxd.HostStore) {
	ctx := t.Context()
	one, other := create(t, s, "one"), create(t, s, "other")
	want := NewCommand(one.ID, "c1")
	timeout := sandboxd.Seconds(0)
	want.Command.Argv, want.Shell, want.TTY, want.Offset = nil, "echo ü", true, 3
	want.Spec = sandboxd.CommandSpec{ID: "c1", Shell: "echo ü", Env: map[string]string{"A": "b"}, Stdin: []byte{0, 255},
		TTY: &sandboxd.TTY{Cols: 80, Rows: 24}, TimeoutS: &timeout, Wait: sandboxd.WaitPipes,
		Limits: sandboxd.CommandLimits{MemoryBytes: 1 << 20}, Background: true}
	got, created, err := s.CreateCommand(ctx, want)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	same(t, "created", got, want)

	another := NewCommand(one.ID, "c1")
	got, created, err = s.CreateCommand(ctx, another)
	if err != nil || created {
		t.Fatalf("a second command of one id: created %v, %v", created, err)
	}
	same(t, "the first answered again", got, want)
	if got, err = s.GetCommand(ctx, one.ID, "c1"); err != nil {
		t.Fatal(err)
	}
	same(t, "got", got, want)

	second := NewCommand(one.ID, "c0")
	elsewhere := NewCommand(other.ID, "c1")
	for _, rec := range []sandboxd.CommandRecord{second, elsewhere} {
		if _, created, err := s.CreateCommand(ctx, rec); err != nil || !created {
			t.Fatal(created, err)
		}
	}
	list, err := s.ListCommands(ctx, one.ID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "list", list, []sandboxd.CommandRecord{want, second})
	if err := s.DeleteCommands(ctx, one.ID); err != nil {
		t.Fatal(err)
	}
	if list, err = s.ListCommands(ctx, one.ID); err != nil || len(list) != 0 {
		t.Fatalf("after the delete: %v %v", list, err)
	}
	if list, err = s.ListCommands(ctx, other.ID); err != nil || len(list) != 1 {
		t.Fatalf("the other sandbox's: %v %v", list, err)
	}

	var wg sync.WaitGroup
	made := make([]bool, 20)
	for i := range made {
		wg.Go(func() {
			var err error
			if _, made[i], err = s.CreateCommand(ctx, NewCommand(one.ID, "race")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	for _, m := range made {
		if m {
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d of 20 starts of one id made a command", n)
	}
}

func firstEndingWins(t *testing.T, s sandboxd.HostStore) {
	sb := create(t, s, "k")
	cmd := NewCommand(sb.ID, "c")
	if _, _, err := s.CreateCommand(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	for _, cause := range []sandboxd.Cause{sandboxd.CauseTimeout, sandboxd.CauseStopped} {
		if err := s.IntendCommand(t.Context(), sb.ID, "c", cause); err != nil {
			t.Fatal(err)
		}
		if rec, err := s.GetCommand(t.Context(), sb.ID, "c"); err != nil || rec.Intent != sandboxd.CauseTimeout {
			t.Fatalf("intent %q, %v; the first one stands", rec.Intent, err)
		}
	}
	code := 0
	causes := []sandboxd.Cause{sandboxd.CauseExit, sandboxd.CauseTimeout, sandboxd.CauseStopped, sandboxd.CauseMemory}
	kept := make([]bool, len(causes))
	var wg sync.WaitGroup
	for i, cause := range causes {
		wg.Go(func() {
			var err error
			ending := sandboxd.Ending{Cause: cause, ExitCode: &code, At: time.Now().UTC()}
			if kept[i], err = s.EndCommand(t.Context(), sb.ID, "c", int64(100+i), ending); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := s.GetCommand(t.Context(), sb.ID, "c")
	if err != nil {
		t.Fatal(err)
	}
	if got.Ending == nil {
		t.Fatal("no ending")
	}
	won := got.Offset - 100
	if causes[won] != got.Ending.Cause {
		t.Fatalf("the offset of %s with the ending of %s", causes[won], got.Ending.Cause)
	}
	for i, k := range kept {
		if k != (int64(i) == won) {
			t.Fatalf("ending %d was kept: %v, and number %d is there", i, k, won)
		}
	}
}

// nothingIsShared changes what a caller passed and got, and looks whether the
// store noticed.
func nothingIsShared(t *testing.T, s sandboxd.HostStore) {
	rec := full("k")
	rec.LastEnding.At = rec.LastEnding.At.Truncate(time.Microsecond)
	made, _, err := s.Create(t.Context(), rec, testPool)
	if err != nil {
		t.Fatal(err)
	}
	rec.Labels["a"], rec.Env["SECRET"], rec.Handle[0], rec.LastEnding.Cause = "changed", "changed", 99, "changed"
	rec.Network.Allow[0] = "*"
	want := full("k")
	for range 2 {
		got, err := s.Get(t.Context(), made.ID)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "labels", got.Labels, want.Labels)
		same(t, "env", got.Env, want.Env)
		same(t, "handle", got.Handle, want.Handle)
		same(t, "network", got.Network, want.Network)
		if got.LastEnding.Cause != want.LastEnding.Cause {
			t.Fatalf("ending %s", got.LastEnding.Cause)
		}
		got.Network.Allow[0] = "*"
		got.Labels["a"], got.Env["SECRET"], got.Handle[0], got.LastEnding.Cause = "changed", "changed", 99, "changed"
	}
}

func cancelledAndClosed(t *testing.T, s sandboxd.HostStore) {
	rec := create(t, s, "k")
	calls := func(ctx context.Context) []error {
		_, _, createErr := s.Create(ctx, NewRecord("x"), testPool)
		_, getErr := s.Get(ctx, rec.ID)
		_, keyErr := s.ByKey(ctx, "k")
		_, listErr := s.List(ctx)
		_, updateErr := s.Update(ctx, rec.ID, func(r *sandboxd.SandboxRecord) error { r.Generation = 9; return nil })
		_, _, commandErr := s.CreateCommand(ctx, NewCommand(rec.ID, "c"))
		_, getCommandErr := s.GetCommand(ctx, rec.ID, "c")
		_, listCommandsErr := s.ListCommands(ctx, rec.ID)
		_, endErr := s.EndCommand(ctx, rec.ID, "c", 0, sandboxd.Ending{})
		intendErr := s.IntendCommand(ctx, rec.ID, "c", sandboxd.CauseStopped)
		return []error{intendErr, createErr, getErr, keyErr, listErr, updateErr, commandErr, getCommandErr, listCommandsErr, endErr, s.DeleteCommands(ctx, rec.ID)}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i, err := range calls(ctx) {
		if err == nil || sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
			t.Errorf("call %d with a cancelled context: %v", i, err)
		}
	}
	got, err := s.Get(t.Context(), rec.ID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "after cancelled calls", got, rec)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for i, err := range calls(t.Context()) {
		if err == nil || sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
			t.Errorf("call %d after close: %v", i, fmt.Sprint(err))
		}
	}
}
