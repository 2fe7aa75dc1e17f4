package host

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd"
	"sandboxd/internal/builder"
	"sandboxd/internal/catalogue"
	"sandboxd/internal/catalogue/recipe"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/runtimes"
	"sandboxd/internal/store"
)

// workshop is a host with a catalogue over the fake driver. What it builds is decided by
// the test: a build goes on until it is told how it ends.
type workshop struct {
	t      *testing.T
	dir    string
	store  sandboxd.HostStore
	world  *fake.World
	images *fake.Images
	built  chan error // what each build ends with
	began  chan struct{}
	ended  chan error // why a build's context ended

	set     *runtimes.Set
	builder *builder.Builder
	driver  *fake.Driver
	h       *Host
}

// tools is an entry with everything that an entry decides.
func tools() catalogue.Entry {
	return catalogue.Entry{Alias: "tools", Description: "Tools", BaseImage: "base:1", Packages: []string{"duckdb"}, NPMPackages: []string{"tsx"},
		Env: map[string]string{"MPLBACKEND": "Agg", "SHADE": "entry"}, Tools: []string{"sh", "no-such-tool"}, NeedsNetwork: true,
		Ceilings: catalogue.Ceilings{MemoryBytes: 2 << 30}, Root: catalogue.RootWritable}
}

func newWorkshop(t *testing.T) *workshop {
	w := &workshop{t: t, dir: t.TempDir(), store: store.NewMemory(), world: fake.NewWorld(fake.Config{}),
		built: make(chan error, 8), began: make(chan struct{}, 8), ended: make(chan error, 8)}
	w.images = &fake.Images{Build: func(ctx context.Context, said func(string)) error {
		said("Step 1/7 : FROM base:1")
		said("Collecting duckdb")
		w.began <- struct{}{}
		select {
		case err := <-w.built:
			return err
		case <-ctx.Done():
			w.ended <- context.Cause(ctx)
			return ctx.Err()
		}
	}}
	return w
}

func (w *workshop) open(entries ...catalogue.Entry) {
	w.t.Helper()
	w.builder = builder.New(builder.Config{Images: w.images, Dir: w.dir + "/runtimes", Pause: time.Millisecond})
	var err error
	if w.set, err = runtimes.New(runtimes.Config{Entries: entries, Options: recipe.Options{UID: 10001, Owner: "me"}, Builder: w.builder}); err != nil {
		w.t.Fatal(err)
	}
	w.driver = fake.New(w.world)
	w.h, err = New(context.Background(), Config{DataDir: w.dir, Store: w.store, Drivers: []sandboxd.Driver{fake.Imaging{Driver: w.driver, Images: w.images}},
		UIDs: testUIDs(), MaxSandboxes: 1, Runtimes: w.set, Images: true,
		Capabilities: map[string]sandboxd.Capabilities{"fake": {WritableRoot: true}}})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *workshop) close() {
	for _, fn := range []func() error{w.h.Close, w.set.Close, w.builder.Close, w.driver.Close} {
		if err := fn(); err != nil {
			w.t.Error(err)
		}
	}
}

// quiet is tools without the network, whose listener no clock of a test waits for.
func quiet() catalogue.Entry {
	e := tools()
	e.NeedsNetwork = false
	return e
}

// inBubble runs a test with a workshop on a clock of its own.
func inBubble(t *testing.T, test func(t *testing.T, w *workshop)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkshop(t)
		w.open(quiet())
		test(t, w)
		w.close()
		w.world.Close()
	})
}

// opening is an open under way, and what came of it.
type opening struct {
	sb  sandboxd.Sandbox
	err error
}

func (w *workshop) opening(ctx context.Context, req sandboxd.OpenRequest) <-chan opening {
	done := make(chan opening, 1)
	go func() {
		var o opening
		o.sb, _, o.err = w.h.Open(ctx, req)
		done <- o
	}()
	return done
}

func (w *workshop) get(key string) sandboxd.Sandbox {
	w.t.Helper()
	list, err := w.h.List(context.Background(), key)
	if err != nil || len(list) != 1 {
		w.t.Fatalf("%v, %v", list, err)
	}
	sb, err := w.h.Get(context.Background(), list[0].ID)
	if err != nil || !reflect.DeepEqual(sb, list[0]) {
		w.t.Errorf("listed as %+v, shown as %+v, %v", list[0], sb, err)
	}
	return sb
}

func TestOpeningWaitsForTheImage(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		done := w.opening(t.Context(), sandboxd.OpenRequest{Key: "k", Env: map[string]string{"SHADE": "own"}})
		<-w.began
		sb := w.get("k")
		if p := sb.Preparing; sb.State != sandboxd.StatePreparing || p == nil || p.State != sandboxd.PreparationWorking || p.Step != 1 || p.Steps != 7 || p.Line != "Collecting duckdb" {
			t.Errorf("meanwhile: %+v, %+v", sb, p)
		}
		files, err := w.h.Files(t.Context(), sb.ID)
		if err == nil {
			_, err = files.Write(t.Context(), "f", strings.NewReader("x"), sandboxd.WriteOptions{Size: 1})
		}
		if err != nil {
			t.Errorf("files are not served meanwhile: %v", err)
		}
		w.built <- nil
		o := <-done
		if sb = o.sb; o.err != nil || sb.State != sandboxd.StateRunning || sb.Generation != 1 || sb.Preparing != nil {
			t.Fatalf("%+v, %v", sb, o.err)
		}
		if sb.Runtime != "tools" || !strings.HasPrefix(sb.Image, "sandboxd-runtime:tools-") || sb.Root != sandboxd.RootWritable ||
			sb.Limits.MemoryBytes != 2<<30 || sb.Limits.PIDs != 512 || sb.Network.Mode != sandboxd.NetworkNone {
			t.Errorf("the entry decided nothing: %+v", sb)
		}
		rec, err := w.store.Get(t.Context(), sb.ID)
		if want := uint32(10001); err != nil || rec.UID != want && !w.h.cfg.UIDs.Shared {
			t.Errorf("the user is %d, %v", rec.UID, err)
		}
		cmd, _, err := w.h.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{ID: "c", Argv: []string{"env"}})
		if err != nil {
			t.Fatal(err)
		}
		vars := strings.Join(w.h.boxOf(rec).environment().environ(sandboxd.CommandSpec{}), "\n")
		if !strings.Contains(vars, "MPLBACKEND=Agg") || !strings.Contains(vars, "SHADE=own") {
			t.Errorf("%s has %s", cmd.ID, vars)
		}
		// Nothing is built for the next one.
		if _, err := w.h.Stop(t.Context(), sb.ID); err != nil {
			t.Fatal(err)
		}
		if sb, err = w.h.Start(t.Context(), sb.ID); err != nil || sb.Generation != 2 || len(w.began) != 0 {
			t.Errorf("%+v, %v", sb, err)
		}
	})
}

func TestStopEndsThePreparation(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		done := w.opening(t.Context(), sandboxd.OpenRequest{Key: "k"})
		<-w.began
		sb, err := w.h.Stop(t.Context(), w.get("k").ID)
		if err != nil || sb.State != sandboxd.StateCold || sb.LastEnding == nil || sb.LastEnding.Cause != sandboxd.CauseStopped {
			t.Errorf("%+v, %v", sb, err)
		}
		if o := <-done; sandboxd.ClassOf(o.err) != sandboxd.ClassConflict || !strings.Contains(o.err.Error(), "stopped") {
			t.Errorf("who opened was told %v", o.err)
		}
		if err := <-w.ended; err == nil {
			t.Error("the build goes on")
		}
		if len(w.h.gate.Places()) != 0 {
			t.Errorf("places held: %v", w.h.gate.Places())
		}
		// It can be started again.
		w.built <- nil
		if sb, err = w.h.Start(t.Context(), sb.ID); err != nil || sb.State != sandboxd.StateRunning {
			t.Errorf("%+v, %v", sb, err)
		}
	})
}

func TestDeleteEndsThePreparation(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		done := w.opening(t.Context(), sandboxd.OpenRequest{Key: "k"})
		<-w.began
		if err := w.h.Delete(t.Context(), w.get("k").ID); err != nil {
			t.Fatal(err)
		}
		if o := <-done; sandboxd.ClassOf(o.err) != sandboxd.ClassGone {
			t.Errorf("who opened was told %v", o.err)
		}
		<-w.ended
		if len(w.h.gate.Places()) != 0 {
			t.Errorf("places held: %v", w.h.gate.Places())
		}
	})
}

// A caller that goes away, or waits no longer, ends nothing.
func TestThePreparationOutlivesItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		ctx, cancel := context.WithCancel(t.Context())
		done := w.opening(ctx, sandboxd.OpenRequest{Key: "k"})
		<-w.began
		cancel()
		if o := <-done; o.err == nil {
			t.Error("it was opened")
		}
		if _, _, err := w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "other"}); sandboxd.ClassOf(err) != sandboxd.ClassCapacity {
			t.Errorf("its place is free: %v", err)
		}
		began := time.Now()
		_, _, err := w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "k"})
		if sandboxd.ClassOf(err) != sandboxd.ClassBusy || time.Since(began) != openWait {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if _, _, err := w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "other"}); sandboxd.ClassOf(err) != sandboxd.ClassCapacity {
			t.Errorf("its place is free: %v", err)
		}
		w.built <- nil
		synctest.Wait()
		if sb := w.get("k"); sb.State != sandboxd.StateRunning || sb.Generation != 1 {
			t.Errorf("%+v", sb)
		}
	})
}

func TestAFailedPreparationIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		for range 2 * builder.TriesToOpen {
			w.built <- sandboxd.Errorf(sandboxd.ClassUnavailable, "exit code 1")
		}
		for range 2 {
			_, _, err := w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "k"})
			if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(err.Error(), "step 1 of 7, FROM base:1") {
				t.Errorf("%v", err)
			}
			sb := w.get("k")
			if sb.State != sandboxd.StateCold || sb.Generation != 0 || sb.LastEnding == nil || sb.LastEnding.Cause != sandboxd.CauseStartFailed ||
				!strings.Contains(sb.LastEnding.Message, "Collecting duckdb") || len(w.h.gate.Places()) != 0 {
				t.Errorf("%+v, %+v", sb, sb.LastEnding)
			}
			all, err := w.h.Runtimes(t.Context())
			if err != nil || all[0].Preparation.State != sandboxd.PreparationFailed || all[0].Preparation.Error == "" {
				t.Errorf("%+v, %v", all, err)
			}
		}
		if n := len(w.began); n != 2*builder.TriesToOpen {
			t.Errorf("%d tries", n)
		}
		// The first command tries again, as after any failed start.
		w.built <- nil
		if _, _, err := w.h.StartCommand(t.Context(), w.get("k").ID, sandboxd.CommandSpec{Argv: []string{"true"}}); err != nil {
			t.Error(err)
		}
	})
}

// An opening may want the image and nothing more.
func TestPrepareOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		no := false
		if sb, _, err := w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "k", Start: &no}); err != nil || sb.State != sandboxd.StateCold || len(w.began) != 0 {
			t.Errorf("%+v, %v", sb, err)
		}
		w.built <- nil
		sb, _, err := w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "k", Start: &no, Prepare: true})
		if err != nil || sb.State != sandboxd.StateCold || sb.Generation != 0 || sb.LastEnding != nil || len(w.began) != 1 {
			t.Errorf("%+v, %v", sb, err)
		}
		if ready, err := w.set.Ready(t.Context(), "tools"); !ready || err != nil {
			t.Errorf("ready %v, %v", ready, err)
		}
		if sb, _, err = w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "k", Start: &no, Prepare: true}); err != nil || sb.State != sandboxd.StateCold {
			t.Errorf("once it is there: %+v, %v", sb, err)
		}
	})
}

// Whatever a host did while it ended, the next one finds a sandbox that can be started.
func TestPreparationsOfADeadHost(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		done := w.opening(t.Context(), sandboxd.OpenRequest{Key: "k"})
		<-w.began
		w.close() // a host that leaves
		if o := <-done; o.err == nil {
			t.Error("it was opened")
		}
		w.open(quiet())
		sb := w.get("k")
		if sb.State != sandboxd.StateCold || sb.LastEnding == nil || !strings.Contains(sb.LastEnding.Message, "the host ended") {
			t.Errorf("%+v, %+v", sb, sb.LastEnding)
		}
		w.close()
		// One that was killed leaves the record as it was.
		if _, err := w.store.Update(t.Context(), sb.ID, func(r *sandboxd.SandboxRecord) error {
			r.State, r.LastEnding = sandboxd.StatePreparing, nil
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		w.open(quiet())
		if sb = w.get("k"); sb.State != sandboxd.StateCold || sb.LastEnding == nil || sb.LastEnding.Cause != sandboxd.CauseStartFailed {
			t.Errorf("%+v, %+v", sb, sb.LastEnding)
		}
		w.built <- nil
		if sb, err := w.h.Start(t.Context(), sb.ID); err != nil || sb.State != sandboxd.StateRunning {
			t.Errorf("%+v, %v", sb, err)
		}
	})
}

// A sandbox starts with what the catalogue means now. What runs, and what nothing can be
// built for any more, keeps its image.
func TestAnotherCatalogue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		w.built <- nil
		before, _, err := w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		w.close()
		other := quiet()
		other.Packages = []string{"polars"}
		w.open(other)
		if used, err := w.h.ImagesInUse(t.Context()); err != nil || !slices.Equal(used, []string{before.Image}) {
			t.Errorf("while it runs %q are in use, %v", used, err)
		}
		stop := func() {
			t.Helper()
			if sb, err := w.h.Stop(t.Context(), before.ID); err != nil || sb.State != sandboxd.StateStopped {
				t.Fatalf("%+v, %v", sb, err)
			}
		}
		stop()
		// What was installed is on top of the image that it has.
		if used, err := w.h.ImagesInUse(t.Context()); err != nil || !slices.Equal(used, []string{before.Image}) {
			t.Errorf("while it is kept %q are in use, %v", used, err)
		}
		if kept, err := w.h.Start(t.Context(), before.ID); err != nil || kept.Image != before.Image || kept.Generation != 2 {
			t.Errorf("%+v, %v", kept, err)
		}
		stop()
		rec, err := w.h.record(t.Context(), before.ID)
		if err == nil {
			_, err = w.h.boxOf(rec).discardKept(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if used, err := w.h.ImagesInUse(t.Context()); err != nil || len(used) != 0 {
			t.Errorf("in use are %q, %v", used, err)
		}
		w.built <- nil
		after, err := w.h.Start(t.Context(), before.ID)
		if err != nil || after.Image == before.Image || after.Generation != 3 {
			t.Errorf("%+v, %v", after, err)
		}
		if _, err := w.h.Stop(t.Context(), before.ID); err != nil {
			t.Fatal(err)
		}
		w.close()
		third := quiet()
		third.Alias = "others"
		w.open(third)
		if used, err := w.h.ImagesInUse(t.Context()); err != nil || !slices.Equal(used, []string{after.Image}) {
			t.Errorf("without its runtime %q are in use, %v", used, err)
		}
		if sb, err := w.h.Start(t.Context(), before.ID); err != nil || sb.Image != after.Image {
			t.Errorf("%+v, %v", sb, err)
		}
	})
}

// Old images go when a new one has come, and not before the host says which it needs.
func TestOldImagesArePruned(t *testing.T) {
	inBubble(t, func(t *testing.T, w *workshop) {
		w.built <- nil
		sb, _, err := w.h.Open(t.Context(), sandboxd.OpenRequest{Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		w.close()
		second, third := quiet(), quiet()
		second.Packages, third.Packages = []string{"polars"}, []string{"numpy"}
		there := func() (names []string) {
			all, err := w.images.ListImages(t.Context(), recipe.LabelDigest)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range all {
				names = append(names, i.Tags...)
			}
			return names
		}
		for i, e := range []catalogue.Entry{second, third} {
			w.open(e)
			if i == 1 {
				w.set.PruneBeside(w.h.ImagesInUse)
			}
			w.built <- nil
			w.set.Prewarm()
			synctest.Wait()
			if i == 0 {
				if names := there(); len(names) != 2 {
					t.Errorf("there are %q", names)
				}
				w.close()
			}
		}
		// That of the sandbox, which runs, and the newest.
		if names := there(); len(names) != 2 || !slices.Contains(names, sb.Image) || !slices.Contains(names, w.set.Entries()[0].Image) {
			t.Errorf("there are %q", names)
		}
	})
}

func TestRuntimesOfAHost(t *testing.T) {
	w := newWorkshop(t)
	defer w.world.Close()
	finished := catalogue.Entry{Alias: "finished", Image: "python:3.12-slim", Root: catalogue.RootReadonly}
	w.open(tools(), finished)
	defer w.close()
	all, err := w.h.Runtimes(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	limits := sandboxd.DefaultLimits()
	want := sandboxd.Runtime{Name: "finished", Drivers: []string{"fake"}, Installed: "python:3.12-slim", Image: "python:3.12-slim", Limits: limits,
		Network: "none", Root: "readonly", Preparation: &sandboxd.Preparation{State: sandboxd.PreparationAbsent}}
	if !reflect.DeepEqual(all[1], want) {
		t.Errorf("%+v", all[1])
	}
	if r := all[0]; !r.Default || !r.Builds || r.Installed != "base:1 + 2 packages" || r.Limits.MemoryBytes != 2<<30 || r.Network != "proxy" || r.Missing != nil {
		t.Errorf("%+v", r)
	}
	no := false
	for i, test := range []struct {
		req   sandboxd.OpenRequest
		class sandboxd.Class
		says  string
	}{
		{sandboxd.OpenRequest{Runtime: "other"}, sandboxd.ClassInvalid, "no such runtime"},
		{sandboxd.OpenRequest{Runtime: "machine"}, sandboxd.ClassInvalid, "no such runtime"},
		{sandboxd.OpenRequest{Runtime: "tools", Image: "busybox"}, sandboxd.ClassInvalid, "decides"},
		{sandboxd.OpenRequest{Runtime: "tools", Driver: "other"}, sandboxd.ClassInvalid, "no such driver"},
		{sandboxd.OpenRequest{Runtime: "tools", Network: sandboxd.Network{Mode: sandboxd.NetworkNone}}, "", "none"},
		{sandboxd.OpenRequest{Runtime: "finished"}, "", "none"},
		{sandboxd.OpenRequest{Runtime: "tools", Limits: sandboxd.Limits{MemoryBytes: 1 << 29}}, "", "proxy"},
	} {
		test.req.Key, test.req.Start = fmt.Sprint("k", i), &no
		sb, _, err := w.h.Open(t.Context(), test.req)
		if classOf(err) != test.class || err != nil && !strings.Contains(err.Error(), test.says) || err == nil && string(sb.Network.Mode) != test.says {
			t.Errorf("%d: %+v, %v", i, sb, err)
		}
	}
	if sb := w.get("k5"); sb.Image != "python:3.12-slim" || sb.Root != sandboxd.RootReadonly || sb.Limits != limits {
		t.Errorf("%+v", sb)
	}
	if sb := w.get("k6"); sb.Limits.MemoryBytes != 1<<29 || !slices.Equal(sb.Network.Allow, []string{"*"}) {
		t.Errorf("%+v", sb)
	}
}

// containers is a driver of another name that has images built, and bridges.
type containers struct{ fake.Imaging }

func (containers) Name() string             { return "containers" }
func (containers) BridgeWorks(string) error { return nil }

// A runtime takes the driver that has its image, where there is one.
func TestTheDriverOfARuntime(t *testing.T) {
	w := newWorkshop(t)
	defer w.world.Close()
	b := builder.New(builder.Config{Images: w.images, Dir: w.dir + "/runtimes"})
	defer b.Close()
	var err error
	if w.set, err = runtimes.New(runtimes.Config{Entries: []catalogue.Entry{tools()}, Builder: b}); err != nil {
		t.Fatal(err)
	}
	other := fake.NewWorld(fake.Config{})
	defer other.Close()
	bare, built := fake.New(w.world), containers{fake.Imaging{Driver: fake.New(other), Images: w.images}}
	defer bare.Close()
	defer built.Close()
	h, err := New(t.Context(), Config{DataDir: w.dir, Store: w.store, Drivers: []sandboxd.Driver{bare, built}, UIDs: testUIDs(), Runtimes: w.set, Bridge: true})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	all, err := h.Runtimes(t.Context())
	if err != nil || !slices.Equal(all[0].Drivers, []string{"containers", "fake"}) || all[0].Network != "bridge" || all[0].Missing == nil || all[0].Preparation == nil {
		t.Errorf("%+v, %v", all, err)
	}
	no := false
	for driver, image := range map[string]bool{"": true, "containers": true, "fake": false} {
		sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Driver: driver, Start: &no, Network: sandboxd.Network{Mode: sandboxd.NetworkNone}})
		if err != nil || (sb.Image != "") != image || sb.Driver != "fake" && !image {
			t.Errorf("driver %q: %+v, %v", driver, sb, err)
		}
	}
}

// On a driver without images every entry is there at once, with what the machine has.
func TestEntriesOnADriverWithoutImages(t *testing.T) {
	w := newWorkshop(t)
	defer w.world.Close()
	var err error
	if w.set, err = runtimes.New(runtimes.Config{Entries: []catalogue.Entry{tools()}}); err != nil {
		t.Fatal(err)
	}
	d := fake.New(w.world)
	defer d.Close()
	h, err := New(t.Context(), Config{DataDir: w.dir, Store: w.store, Drivers: []sandboxd.Driver{d}, UIDs: testUIDs(), Runtimes: w.set})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	all, err := h.Runtimes(t.Context())
	if err != nil || !slices.Equal(all[0].Missing, []string{"no-such-tool"}) || all[0].Image != "" || all[0].Preparation != nil {
		t.Errorf("%+v, %v", all, err)
	}
	sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Key: "k"})
	if err != nil || sb.State != sandboxd.StateRunning || sb.Runtime != "tools" || sb.Image != "" || sb.Root != sandboxd.RootReadonly {
		t.Errorf("%+v, %v", sb, err)
	}
	if rec, err := w.store.Get(t.Context(), sb.ID); err != nil || rec.UID < h.cfg.UIDs.First || rec.UID > h.cfg.UIDs.Last {
		t.Errorf("user %d, %v", rec.UID, err)
	}
	// Its own variables apply there, too.
	rec, _ := w.store.Get(t.Context(), sb.ID)
	if vars := h.boxOf(rec).environment().environ(sandboxd.CommandSpec{}); !slices.Contains(vars, "MPLBACKEND=Agg") {
		t.Errorf("%q", vars)
	}
	if _, err := h.Stop(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
}
