// Package storetest is the conformance suite of sandboxd.HostStore. It is run by
// every implementation and holds no knowledge of any.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxd"
)

var testPool = sandboxd.UIDPool{First: 700_000, Last: 700_999}

// Run runs the suite. open answers an empty store; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) sandboxd.HostStore) {
	for name, test := range map[string]func(*testing.T, sandboxd.HostStore){
		"RoundTrip":          roundTrip,
		"OneKeyOneSandbox":   oneKeyOneSandbox,
		"UIDPool":            uidPool,
		"SharedUID":          uidShared,
		"UIDsUnderConflict":  uidsUnderConflict,
		"Transitions":        transitions,
		"Rollback":           rollback,
		"Immutable":          immutable,
		"ConcurrentUpdates":  concurrentUpdates,
		"Deleted":            deleted,
		"NotFound":           notFound,
		"Commands":           commands,
		"FirstEndingWins":    firstEndingWins,
		"Documents":          documents,
		"NothingIsShared":    nothingIsShared,
		"CancelledAndClosed": cancelledAndClosed,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			defer func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			test(t, s)
		})
	}
}

// NewRecord is a cold record of a key, as a host makes it.
func NewRecord(key string) sandboxd.SandboxRecord {
	now := time.Now()
	return sandboxd.SandboxRecord{
		Sandbox: sandboxd.Sandbox{
			ID: sandboxd.NewID(), Key: key, State: sandboxd.StateCold, Driver: "process",
			Runtime: sandboxd.RuntimeMachine, CreatedAt: now, Limits: sandboxd.DefaultLimits(),
			Root: sandboxd.RootReadonly, Face: sandboxd.FaceNative,
		},
	}
}

// NewCommand is a command of a sandbox, as a host makes it.
func NewCommand(sandbox, id string) sandboxd.CommandRecord {
	now := time.Now()
	return sandboxd.CommandRecord{
		Command: sandboxd.Command{ID: id, SandboxID: sandbox, Generation: 1, Argv: []string{"true"}, StartedAt: now},
		Spec:    sandboxd.CommandSpec{ID: id, Argv: []string{"true"}},

		StartedBoot: sandboxd.BootTime{ID: "a boot", Since: 5 * time.Hour},
	}
}

func create(t testing.TB, s sandboxd.HostStore, key string) sandboxd.SandboxRecord {
	t.Helper()
	rec, created, err := s.Create(t.Context(), NewRecord(key), testPool)
	if err != nil || !created {
		t.Fatalf("create %s: created %v, %v", key, created, err)
	}
	return rec
}

// path is a way through the table of transitions from a new record to each state.
var path = map[sandboxd.State][]sandboxd.State{
	sandboxd.StateCold:      {},
	sandboxd.StatePreparing: {sandboxd.StatePreparing},
	sandboxd.StateStarting:  {sandboxd.StateStarting},
	sandboxd.StateRunning:   {sandboxd.StateStarting, sandboxd.StateRunning},
	sandboxd.StateStopping:  {sandboxd.StateStarting, sandboxd.StateRunning, sandboxd.StateStopping},
	sandboxd.StateStopped:   {sandboxd.StateStarting, sandboxd.StateRunning, sandboxd.StateStopping, sandboxd.StateStopped},
	sandboxd.StateLost:      {sandboxd.StateLost},
	sandboxd.StateDeleting:  {sandboxd.StateDeleting},
	sandboxd.StateDeleted:   {sandboxd.StateDeleting, sandboxd.StateDeleted},
}

func move(ctx context.Context, s sandboxd.HostStore, id string, to ...sandboxd.State) error {
	for _, state := range to {
		if _, err := s.Update(ctx, id, func(r *sandboxd.SandboxRecord) error { r.State = state; return nil }); err != nil {
			return err
		}
	}
	return nil
}

func mustMove(t testing.TB, s sandboxd.HostStore, id string, to ...sandboxd.State) {
	t.Helper()
	if err := move(t.Context(), s, id, to...); err != nil {
		t.Fatal(err)
	}
}

func wantClass(t testing.TB, err error, class sandboxd.Class) {
	t.Helper()
	if err == nil || sandboxd.ClassOf(err) != class {
		t.Fatalf("error %v, want class %s", err, class)
	}
}

// same compares records as the contract keeps them: times to the microsecond.
func same(t testing.TB, what string, got, want any) {
	t.Helper()
	micros := cmp.Comparer(func(a, b time.Time) bool { return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond)) })
	if diff := cmp.Diff(want, got, micros); diff != "" {
		t.Fatalf("%s differs (-want +got):\n%s", what, diff)
	}
}

func full(key string) sandboxd.SandboxRecord {
	rec := NewRecord(key)
	code := 137
	rec.Labels = map[string]string{"a": "1", "b": "ü\x00\n"}
	rec.Env = map[string]string{"SECRET": "s3cret"}
	rec.Network = sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: []string{"*.example.com", "example.com:443"}, Deny: []string{"x.example.com"}}
	rec.Handle = sandboxd.Handle{0, 1, 2, 255}
	rec.Nonce = "nonce"
	rec.Image, rec.OCIRuntime = "registry.example/team/tools:1", "runsc"
	rec.Root, rec.Tenant, rec.Face = sandboxd.RootWritable, "acme", sandboxd.FaceSessions
	rec.Open, rec.Asleep = true, true
	moment := sandboxd.Moment{Wall: time.Now().UTC().Truncate(time.Microsecond), Boot: sandboxd.BootTime{ID: "a boot", Since: 7 * time.Hour}}
	rec.Life = sandboxd.Life{Worked: moment, Reason: "cpu", Detail: "3 % of a core", Used: moment, Ended: moment,
		Holds: []sandboxd.HeldHold{{ID: "h", Reason: "a build", From: moment, For: time.Hour}}}
	rec.Generation = 7
	rec.LastEnding = &sandboxd.Ending{Cause: sandboxd.CauseMemory, ExitCode: &code, Signal: "SIGKILL", WallS: 1.25, At: time.Now().UTC()}
	return rec
}

func roundTrip(t *testing.T, s sandboxd.HostStore) {
	want := full("round")
	got, created, err := s.Create(t.Context(), want, testPool)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	if got.UID < testPool.First || got.UID > testPool.Last {
		t.Fatalf("uid %d is not of the pool", got.UID)
	}
	want.UID = got.UID
	same(t, "created", got, want)
	got, err = s.Get(t.Context(), want.ID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "got", got, want)

	want.State, want.Generation, want.Driver, want.Runtime = sandboxd.StateStarting, 8, "docker", "node"
	want.Image = "registry.example/team/tools:2"
	want.Handle, want.Nonce, want.LastEnding, want.Env, want.Labels = nil, "", nil, nil, nil
	want.Limits.PIDs = 9
	want.Open, want.Asleep, want.Life = false, false, sandboxd.Life{}
	got, err = s.Update(t.Context(), want.ID, func(r *sandboxd.SandboxRecord) error { *r = want; return nil })
	if err != nil {
		t.Fatal(err)
	}
	same(t, "updated", got, want)
	if got, err = s.ByKey(t.Context(), "round"); err != nil {
		t.Fatal(err)
	}
	same(t, "by key", got, want)
	second := create(t, s, "second")
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "list", list, []sandboxd.SandboxRecord{want, second})
}

func documents(t *testing.T, s sandboxd.HostStore) {
	for _, want := range []string{"one", "{\"two\": 2}\x00"} {
		if err := s.PutDocument(t.Context(), "name", []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Document(t.Context(), "name"); err != nil || string(got) != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	if err := s.PutDocument(t.Context(), "name", nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"name", "never"} {
		if got, err := s.Document(t.Context(), name); err != nil || got != nil {
			t.Fatalf("%s: %q, %v; want nothing", name, got, err)
		}
	}
}

func oneKeyOneSandbox(t *testing.T, s sandboxd.HostStore) {
	var wg sync.WaitGroup
	type outcome struct {
		rec     sandboxd.SandboxRecord
		created bool
		err     error
	}
	outcomes := make([]outcome, 50)
	for i := range outcomes {
		wg.Go(func() {
			o := &outcomes[i]
			o.rec, o.created, o.err = s.Create(t.Context(), NewRecord("one"), testPool)
		})
	}
	wg.Wait()
	made := 0
	for _, o := range outcomes {
		if o.err != nil {
			t.Fatal(o.err)
		}
		if o.created {
			made++
		}
		if o.rec.ID != outcomes[0].rec.ID || o.rec.UID != outcomes[0].rec.UID {
			t.Fatalf("two answers for one key: %s and %s", o.rec.ID, outcomes[0].rec.ID)
		}
	}
	if made != 1 {
		t.Fatalf("%d creates made a sandbox", made)
	}
}

func uidPool(t *testing.T, s sandboxd.HostStore) {
	pool := sandboxd.UIDPool{First: 10, Last: 13}
	owner := map[uint32]string{}
	open := func(key string) (sandboxd.SandboxRecord, error) {
		rec, _, err := s.Create(t.Context(), NewRecord(key), pool)
		return rec, err
	}
	for i := range 4 {
		rec, err := open(fmt.Sprint("k", i))
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := owner[rec.UID]; taken || rec.UID < 10 || rec.UID > 13 {
			t.Fatalf("uid %d for %s, owned by %q", rec.UID, rec.ID, other)
		}
		owner[rec.UID] = rec.ID
	}
	_, err := open("full")
	wantClass(t, err, sandboxd.ClassCapacity)

	// Only the end of a deletion frees a uid, because files belong to it until then.
	for _, uid := range []uint32{12, 10} {
		mustMove(t, s, owner[uid], sandboxd.StateDeleting)
		_, err = open("full")
		wantClass(t, err, sandboxd.ClassCapacity)
		mustMove(t, s, owner[uid], sandboxd.StateDeleted)
		rec, err := open(fmt.Sprint("again", uid))
		if err != nil || rec.UID != uid {
			t.Fatalf("uid %d, %v; want the freed one, %d", rec.UID, err, uid)
		}
	}
	_, _, err = s.Create(t.Context(), NewRecord("none"), sandboxd.UIDPool{First: 5, Last: 4})
	wantClass(t, err, sandboxd.ClassCapacity)
}

// A pool that is shared gives its first to each.
func uidShared(t *testing.T, s sandboxd.HostStore) {
	pool := sandboxd.UIDPool{First: 10, Last: 10, Shared: true}
	for _, key := range []string{"a", "b", "c"} {
		rec, made, err := s.Create(t.Context(), NewRecord(key), pool)
		if err != nil || !made || rec.UID != 10 {
			t.Fatalf("%s: uid %d, made %v, %v", key, rec.UID, made, err)
		}
		if got, err := s.Get(t.Context(), rec.ID); err != nil || got.UID != 10 {
			t.Fatalf("%s again: uid %d, %v", key, got.UID, err)
		}
	}
}

func uidsUnderConflict(t *testing.T, s sandboxd.HostStore) {
	pool := sandboxd.UIDPool{First: 10, Last: 29}
	var mu sync.Mutex
	owned := map[uint32]bool{}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 20 {
				rec, _, err := s.Create(t.Context(), NewRecord(fmt.Sprintf("w%d-%d", worker, i)), pool)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if owned[rec.UID] {
					t.Errorf("uid %d has two owners", rec.UID)
				}
				owned[rec.UID] = true
				mu.Unlock()
				if err := move(t.Context(), s, rec.ID, sandboxd.StateDeleting); err != nil {
					t.Error(err)
				}
				mu.Lock()
				delete(owned, rec.UID)
				mu.Unlock()
				if err := move(t.Context(), s, rec.ID, sandboxd.StateDeleted); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func transitions(t *testing.T, s sandboxd.HostStore) {
	for _, state := range sandboxd.States() {
		rec := NewRecord("begin-" + string(state))
		rec.State = state
		_, created, err := s.Create(t.Context(), rec, testPool)
		if allowed := sandboxd.CanMove("", state); allowed != (err == nil) || created != allowed {
			t.Fatalf("begin as %s: %v %v", state, created, err)
		} else if !allowed {
			wantClass(t, err, sandboxd.ClassConflict)
		}
	}
	for _, from := range sandboxd.States() {
		for _, to := range sandboxd.States() {
			rec := create(t, s, fmt.Sprintf("%s-%s", from, to))
			mustMove(t, s, rec.ID, path[from]...)
			err := move(t.Context(), s, rec.ID, to)
			want := to
			if from != to && !sandboxd.CanMove(from, to) {
				wantClass(t, err, sandboxd.ClassConflict)
				want = from
			} else if err != nil {
				t.Fatalf("%s to %s: %v", from, to, err)
			}
			if got, err := s.Get(t.Context(), rec.ID); err != nil || got.State != want {
				t.Fatalf("%s to %s: is %s, %v", from, to, got.State, err)
			}
		}
	}
}

func rollback(t *testing.T, s sandboxd.HostStore) {
	rec := create(t, s, "k")
	// Also an error that has a class must come back as it is.
	for _, mine := range []error{errors.New("mine"), sandboxd.Errorf(sandboxd.ClassBusy, "mine"), fmt.Errorf("of %w", sandboxd.Errorf(sandboxd.ClassGone, "mine"))} {
		_, err := s.Update(t.Context(), rec.ID, func(r *sandboxd.SandboxRecord) error {
			r.Generation, r.State, r.Nonce = 5, sandboxd.StateStarting, "x"
			return mine
		})
		if err != mine {
			t.Fatalf("error %v, want the function's own", err)
		}
		got, err := s.Get(t.Context(), rec.ID)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "after a rollback", got, rec)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Fatal("the panic was swallowed")
			}
		}()
		_, _ = s.Update(t.Context(), rec.ID, func(*sandboxd.SandboxRecord) error { panic("fn") })
	}()
	mustMove(t, s, rec.ID, sandboxd.StateStarting) // the store still works
}

func immutable(t *testing.T, s sandboxd.HostStore) {
	rec := create(t, s, "k")
	for name, change := range map[string]func(*sandboxd.SandboxRecord){
		"id":      func(r *sandboxd.SandboxRecord) { r.ID = sandboxd.NewID() },
		"key":     func(r *sandboxd.SandboxRecord) { r.Key = "other" },
		"uid":     func(r *sandboxd.SandboxRecord) { r.UID++ },
		"runtime": func(r *sandboxd.SandboxRecord) { r.OCIRuntime = "other" },
		"root":    func(r *sandboxd.SandboxRecord) { r.Root = sandboxd.RootWritable },
		"tenant":  func(r *sandboxd.SandboxRecord) { r.Tenant = "other" },
		"face":    func(r *sandboxd.SandboxRecord) { r.Face = sandboxd.FaceApps },
		"created": func(r *sandboxd.SandboxRecord) { r.CreatedAt = r.CreatedAt.Add(time.Second) },
		"network": func(r *sandboxd.SandboxRecord) { r.Network.Allow = append(r.Network.Allow, "*") },
	} {
		if _, err := s.Update(t.Context(), rec.ID, func(r *sandboxd.SandboxRecord) error { change(r); return nil }); err == nil {
			t.Errorf("%s was changed", name)
		}
	}
	got, err := s.Get(t.Context(), rec.ID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "record", got, rec)
	again := NewRecord("other")
	again.ID = rec.ID
	_, _, err = s.Create(t.Context(), again, testPool)
	wantClass(t, err, sandboxd.ClassConflict)
}

func concurrentUpdates(t *testing.T, s sandboxd.HostStore) {
	rec := create(t, s, "k")
	const workers, rounds = 8, 25
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				if _, err := s.Update(t.Context(), rec.ID, func(r *sandboxd.SandboxRecord) error { r.Generation++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := s.Get(t.Context(), rec.ID); err != nil || got.Generation != workers*rounds {
		t.Fatalf("generation %d, %v: updates were lost", got.Generation, err)
	}
}

func deleted(t *testing.T, s sandboxd.HostStore) {
	first := create(t, s, "k")
	mustMove(t, s, first.ID, sandboxd.StateDeleting)
	_, err := s.ByKey(t.Context(), "k")
	wantClass(t, err, sandboxd.ClassNotFound)
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 {
		t.Fatalf("a sandbox that is being deleted is still listed: %v %v", list, err)
	}
	second := create(t, s, "k")
	if second.ID == first.ID || second.UID == first.UID {
		t.Fatal("the second life of a key shares with the first")
	}
	mustMove(t, s, first.ID, sandboxd.StateDeleted)
	if got, err := s.Get(t.Context(), first.ID); err != nil || got.State != sandboxd.StateDeleted {
		t.Fatalf("get of a deleted one: %v %v", got.State, err)
	}
	if got, err := s.ByKey(t.Context(), "k"); err != nil || got.ID != second.ID {
		t.Fatalf("by key: %v %v", got.ID, err)
	}
	list, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "list", list, []sandboxd.SandboxRecord{second})
}

func notFound(t *testing.T, s sandboxd.HostStore) {
	ctx, id := t.Context(), sandboxd.NewID()
	_, err := s.Get(ctx, id)
	wantClass(t, err, sandboxd.ClassNotFound)
	_, err = s.ByKey(ctx, "none")
	wantClass(t, err, sandboxd.ClassNotFound)
	_, err = s.Update(ctx, id, func(*sandboxd.SandboxRecord) error { return nil })
	wantClass(t, err, sandboxd.ClassNotFound)
	_, _, err = s.CreateCommand(ctx, NewCommand(id, "c"))
	wantClass(t, err, sandboxd.ClassNotFound)
	_, err = s.GetCommand(ctx, id, "c")
	wantClass(t, err, sandboxd.ClassNotFound)
	_, err = s.EndCommand(ctx, id, "c", 0, sandboxd.Ending{Cause: sandboxd.CauseExit})
	wantClass(t, err, sandboxd.ClassNotFound)
	wantClass(t, s.IntendCommand(ctx, id, "c", sandboxd.CauseStopped), sandboxd.ClassNotFound)
	if list, err := s.List(ctx); err != nil || list == nil || len(list) != 0 {
		t.Fatalf("list %v, %v; want empty and not nil", list, err)
	}
	if list, err := s.ListCommands(ctx, id); err != nil || list == nil || len(list) != 0 {
		t.Fatalf("commands %v, %v; want empty and not nil", list, err)
	}
	if err := s.DeleteCommands(ctx, id); err != nil {
		t.Fatal(err)
	}
}
