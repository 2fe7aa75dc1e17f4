package host

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/store"
)

func doubtful(t *testing.T, d sandboxd.Driver) (*Host, sandboxd.Sandbox) {
	t.Helper()
	h, err := New(t.Context(), Config{DataDir: t.TempDir(), Store: store.NewMemory(), Drivers: []sandboxd.Driver{d}, UIDs: testUIDs()})
	if err != nil {
		t.Fatal(err)
	}
	sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return h, sb
}

// An init that says a command has ended, and then says no more, keeps it from nobody.
func TestInitsWordKeepsNoCommandRunning(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	defer world.Close()
	d := fake.New(world)
	defer d.Close()
	h, sb := doubtful(t, d)
	defer h.Close()
	if _, _, err := h.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{ID: "c", Argv: []string{"sleep", "600"}, Background: true}); err != nil {
		t.Fatal(err)
	}
	_, env := h.up(sb.ID)
	env.command("c").over.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 3*knowTime)
	defer cancel()
	cmd, err := h.StopCommand(ctx, sb.ID, "c", 0)
	if err != nil || cmd.Ending == nil || cmd.Ending.Cause != sandboxd.CauseStopped {
		t.Fatalf("stop: %+v, %v", cmd, err)
	}
}

// breaking is a driver whose environments end while a command is being started.
type breaking struct {
	sandboxd.Driver
	world *fake.World

	mu    sync.Mutex
	calls []string
}

func (d *breaking) note(call string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
	return nil
}

func (d *breaking) CreateGroup(_ context.Context, id, _ string, _ sandboxd.CommandLimits) ([]*os.File, error) {
	d.world.Kill(id)
	return nil, nil
}

func (d *breaking) KillGroup(context.Context, string, string) error   { return d.note("kill") }
func (d *breaking) RemoveGroup(context.Context, string, string) error { return d.note("remove") }
func (d *breaking) GroupUsage(context.Context, string, string) (sandboxd.GroupUsage, error) {
	return sandboxd.GroupUsage{}, nil
}

// A command of which nobody knows whether its init started it is ended, and by that
// its group serves no other.
func TestDoubtfulStartIsEnded(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	defer world.Close()
	d := &breaking{Driver: fake.New(world), world: world}
	defer d.Close()
	h, sb := doubtful(t, d)
	defer h.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if cmd, _, err := h.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{Argv: []string{"true"}}); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Fatalf("started in an environment that ended: %+v, %v", cmd, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	kill, remove := slices.Index(d.calls, "kill"), slices.Index(d.calls, "remove")
	if kill < 0 || remove < kill {
		t.Fatalf("of its group: %v", d.calls)
	}
}

// The files of a sandbox that is being deleted are not those of the next life of its key.
func TestFilesOfADeletedAreNotThoseOfTheNext(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	defer world.Close()
	d := fake.New(world)
	defer d.Close()
	h, sb := doubtful(t, d)
	defer h.Close()
	b, _ := h.up(sb.ID)
	if err := h.acceptDelete(t.Context(), b, func(*sandboxd.SandboxRecord) error { return nil }); err != nil {
		t.Fatal(err)
	}
	next, created, err := h.Open(t.Context(), sandboxd.OpenRequest{Key: sb.Key})
	if err != nil || !created || next.ID == sb.ID {
		t.Fatalf("open: %+v %v %v", next, created, err)
	}
	// Here Delete has yet to end what runs.
	if _, err := h.Files(t.Context(), sb.ID); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Errorf("files of the deleted: %v", err)
	}
	if _, err := h.Files(t.Context(), next.ID); err != nil {
		t.Errorf("files of the next: %v", err)
	}
}

// What a host that died over a stop had in its sandbox is told as stopped, not as lost.
func TestStopThatANextHostFinishes(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	defer world.Close()
	d := fake.New(world)
	defer d.Close()
	cfg := Config{DataDir: t.TempDir(), Store: store.NewMemory(), Drivers: []sandboxd.Driver{d}, UIDs: testUIDs()}
	h, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{})
	if err == nil {
		_, _, err = h.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{ID: "c", Argv: []string{"sleep", "600"}, Background: true})
	}
	h.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.Store.Update(t.Context(), sb.ID, func(r *sandboxd.SandboxRecord) error {
		r.State = sandboxd.StateStopping
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if h, err = New(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	cmd, err := h.GetCommand(t.Context(), sb.ID, "c")
	if err != nil || cmd.Ending == nil || cmd.Ending.Cause != sandboxd.CauseStopped {
		t.Fatalf("%+v, %v", cmd.Ending, err)
	}
}

// A sandbox whose record was made anew from its files has lost its variables, takes those
// of the next opening that names some, and keeps them.
func TestVariablesThatWereLost(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	defer world.Close()
	d := fake.New(world)
	defer d.Close()
	cfg := Config{DataDir: t.TempDir(), Drivers: []sandboxd.Driver{d}, UIDs: testUIDs()}
	for _, face := range []string{sandboxd.FaceNative, sandboxd.FaceSessions} {
		req := sandboxd.OpenRequest{Key: "of-" + face, Face: face, Env: map[string]string{"A": "1"}}
		for life := range 2 {
			cfg.Store = store.NewMemory()
			h, err := New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			sb, created, err := h.Open(t.Context(), req)
			if err != nil || created != (life == 0) {
				t.Fatalf("%s: %+v %v %v", face, sb, created, err)
			}
			if rec, err := cfg.Store.Get(t.Context(), sb.ID); err != nil || rec.Env["A"] != "1" {
				t.Errorf("%s, life %d: %v, %v", face, life, rec.Env, err)
			}
			if _, env := h.up(sb.ID); (*env.vars.Load())["A"] != "1" {
				t.Errorf("%s, life %d: commands get %v", face, life, *env.vars.Load())
			}
			other := sandboxd.OpenRequest{Key: req.Key, Env: map[string]string{"A": "2"}}
			if _, _, err := h.Open(t.Context(), other); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
				t.Errorf("%s, life %d: other variables: %v", face, life, err)
			}
			if _, err := h.Stop(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
			h.Close()
		}
	}
}
