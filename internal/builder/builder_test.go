package builder

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandboxd"
	"sandboxd/internal/catalogue/recipe"
)

// bench is an engine in memory. Its images are by name.
type bench struct {
	mu      sync.Mutex
	images  map[string]sandboxd.HeldImage
	busy    map[string]bool // used by a container
	pulls   []string
	builds  []string // tags, in the order in which they began
	files   []string // of the last build's context
	now     int      // builds that go on
	most    int
	build   func(ctx context.Context, said func(string)) error
	pullErr error
}

func newBench(images ...string) *bench {
	e := &bench{images: map[string]sandboxd.HeldImage{}, busy: map[string]bool{}}
	for _, name := range images {
		e.images[name] = sandboxd.HeldImage{ID: "id of " + name, Tags: []string{name}}
	}
	return e
}

func (e *bench) FindImage(_ context.Context, ref string) (sandboxd.HeldImage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if held, ok := e.images[ref]; ok {
		return held, nil
	}
	return sandboxd.HeldImage{}, sandboxd.Errorf(sandboxd.ClassNotFound, "no such image")
}

func (e *bench) PullImage(_ context.Context, ref string, said func(string)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pulls = append(e.pulls, ref)
	said("pulled a layer")
	if e.pullErr == nil {
		e.images[ref] = sandboxd.HeldImage{ID: "id of " + ref, Tags: []string{ref}}
	}
	return e.pullErr
}

func (e *bench) BuildImage(ctx context.Context, b sandboxd.ImageBuild) error {
	e.mu.Lock()
	e.builds = append(e.builds, b.Tag)
	e.now++
	e.most = max(e.most, e.now)
	e.files = nil
	archive := tar.NewReader(b.Context)
	for h, err := archive.Next(); err == nil; h, err = archive.Next() {
		e.files = append(e.files, h.Name)
	}
	build := e.build
	e.mu.Unlock()
	var err error
	if build != nil {
		err = build(ctx, b.Said)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now--
	if err == nil {
		e.images[b.Tag] = sandboxd.HeldImage{ID: "id of " + b.Tag, Tags: []string{b.Tag}, Labels: b.Labels}
	}
	return err
}

func (e *bench) TagImage(_ context.Context, ref, tag string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, held := range e.images {
		if held.ID == ref {
			held.Tags = []string{tag}
			e.images[tag] = held
			return nil
		}
	}
	return sandboxd.Errorf(sandboxd.ClassNotFound, "no such image")
}

func (e *bench) ListImages(_ context.Context, label string) (held []sandboxd.HeldImage, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range e.images {
		if i.Labels[label] != "" {
			held = append(held, i)
		}
	}
	return held, nil
}

func (e *bench) RemoveImage(_ context.Context, ref string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy[ref] {
		return sandboxd.Errorf(sandboxd.ClassConflict, "a container uses it")
	}
	delete(e.images, ref)
	return nil
}

func (e *bench) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.builds)
}

func (e *bench) behave(build func(ctx context.Context, said func(string)) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.build = build
}

const base = "base:1"

// specOf is a recipe of a runtime in one of its versions.
func specOf(runtime, version string) recipe.Spec {
	digest := "sha256:" + strings.Repeat(runtime+version, 32)[:32]
	return recipe.Spec{Base: base, Dockerfile: []byte("# A runtime.\nFROM " + base + "\nRUN pip install x\nRUN [\"/bin/sh\",\"-euc\",\"pip install nothing\"]\n"), Digest: digest,
		Files:  []recipe.File{{Name: "ca.pem", Content: []byte("certificates")}},
		Tag:    "sandboxd-runtime:" + runtime + "-" + version + "-me",
		Labels: map[string]string{recipe.LabelRuntime: runtime, recipe.LabelDigest: digest, recipe.LabelOwner: "me"}}
}

// label is what an engine prints of the step that marks the image of the runtime tools.
const label = `Step 2/5 : LABEL ` + recipe.LabelRuntime + `="tools" ` + recipe.LabelOwner + `="me"`

func newBuilder(t *testing.T, e *bench) *Builder {
	b := New(Config{Images: e, Dir: t.TempDir(), TimeLimit: time.Hour})
	t.Cleanup(func() { b.Close() })
	return b
}

// steps is what an engine prints of a build.
func steps(said func(string), lines ...string) {
	for _, l := range lines {
		said(l)
	}
}

func TestManyCallersOneBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base)
		release := make(chan struct{})
		e.behave(func(ctx context.Context, said func(string)) error {
			steps(said, "Step 1/5 : FROM base:1", " ---> 0123456789ab", label, "Step 3/5 : RUN pip install x", " ---> Running in 0123",
				// Not the builder's.
				"Step 1/5 : FROM base:1", "Step 5/5 : RUN pip install x", "Step 4/5 : RUN a lie", "Step 4/5 : LABEL a lie", "Step 99999999999999999999/5 : RUN x", "Step 0/0 : x", "Collecting\u202e x")
			<-release
			return nil
		})
		b := newBuilder(t, e)
		spec := specOf("tools", "a")
		var callers sync.WaitGroup
		for range 10 {
			callers.Go(func() {
				if made, err := b.Ensure(t.Context(), spec, 1); !made || err != nil {
					t.Errorf("made %v: %v", made, err)
				}
			})
		}
		synctest.Wait()
		p := b.Preparation(spec)
		if p.State != sandboxd.PreparationWorking || p.Step != 3 || p.Steps != 5 || p.Doing != "RUN pip install x" || p.Line != "Collecting  x" || p.Try != 1 {
			t.Errorf("meanwhile: %+v", p)
		}
		close(release)
		callers.Wait()
		if e.count() != 1 {
			t.Errorf("%d builds", e.count())
		}
		if !slices.Equal(e.files, []string{"Dockerfile", "ca.pem"}) {
			t.Errorf("the context had %q", e.files)
		}
		if made, err := b.Ensure(t.Context(), spec, 1); made || err != nil {
			t.Errorf("one that is there: made %v, %v", made, err)
		}
		if p := b.Preparation(spec); p.State != sandboxd.PreparationPrepared {
			t.Errorf("afterwards: %+v", p)
		}
		other := newBuilder(t, e)
		if ready, err := other.Ready(t.Context(), spec); !ready || err != nil || other.Preparation(spec).State != sandboxd.PreparationPrepared {
			t.Errorf("another one: %v, %v, %+v", ready, err, other.Preparation(spec))
		}
		delete(e.images, spec.Tag)
		if ready, err := other.Ready(t.Context(), spec); ready || err != nil || other.Preparation(spec).State != sandboxd.PreparationAbsent {
			t.Errorf("when it is gone: %v, %v, %+v", ready, err, other.Preparation(spec))
		}
	})
}

// A caller that leaves ends nothing as long as somebody waits; the last one does.
func TestCallersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base)
		ended := make(chan error, 1)
		e.behave(func(ctx context.Context, said func(string)) error {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		})
		b := newBuilder(t, e)
		spec := specOf("tools", "a")
		gone := errors.New("gone")
		results := make(chan error, 2)
		var leave []context.CancelCauseFunc
		for range 2 {
			ctx, cancel := context.WithCancelCause(t.Context())
			leave = append(leave, cancel)
			go func() {
				_, err := b.Ensure(ctx, spec, 3)
				results <- err
			}()
		}
		synctest.Wait()
		leave[0](gone)
		if err := <-results; !errors.Is(err, gone) {
			t.Errorf("who left was told %v", err)
		}
		synctest.Wait()
		if p := b.Preparation(spec); p.State != sandboxd.PreparationWorking || len(ended) != 0 {
			t.Errorf("one still waits: %+v", p)
		}
		leave[1](gone)
		<-results
		if err := <-ended; !errors.Is(err, errNobodyWaits) {
			t.Errorf("the build was ended by %v", err)
		}
		// Somebody who comes now gets a build of their own.
		e.behave(nil)
		if made, err := b.Ensure(t.Context(), spec, 1); !made || err != nil {
			t.Errorf("made %v: %v", made, err)
		}
		if e.count() != 2 {
			t.Errorf("%d builds", e.count())
		}
	})
}

func TestTries(t *testing.T) {
	for _, test := range []struct {
		tries, fails, builds int
		class                sandboxd.Class
		fine                 bool
	}{
		{tries: TriesAhead, fails: 3, builds: 4, class: sandboxd.ClassUnavailable, fine: true},
		{tries: TriesAhead, fails: 9, builds: 4, class: sandboxd.ClassUnavailable},
		{tries: TriesAtOnce, fails: 9, builds: 3, class: sandboxd.ClassUnavailable},
		{tries: TriesToOpen, fails: 1, builds: 2, class: sandboxd.ClassUnavailable, fine: true},
		{tries: 0, fails: 9, builds: 1, class: sandboxd.ClassUnavailable},
		{tries: TriesAhead, fails: 9, builds: 1, class: sandboxd.ClassInvalid},
	} {
		t.Run(fmt.Sprintf("%d tries, %d fail as %s", test.tries, test.fails, test.class), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newBench(base)
				failed := 0
				e.behave(func(context.Context, func(string)) error {
					if failed++; failed <= test.fails {
						return sandboxd.Errorf(test.class, "exit code 1")
					}
					return nil
				})
				b := newBuilder(t, e)
				began := time.Now()
				_, err := b.Ensure(t.Context(), specOf("tools", "a"), test.tries)
				if (err == nil) != test.fine || e.count() != test.builds {
					t.Errorf("%d builds: %v", e.count(), err)
				}
				if took, want := time.Since(began), time.Duration(1<<(test.builds-1)-1)*2*time.Second; took != want {
					t.Errorf("it took %s, want %s of pauses", took, want)
				}
			})
		})
	}
}

// Who is more patient makes it tried more often for all.
func TestTheMostPatientCallerDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base)
		hold := make(chan struct{})
		e.behave(func(context.Context, func(string)) error {
			<-hold
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "no")
		})
		b := newBuilder(t, e)
		var callers sync.WaitGroup
		for _, tries := range []int{1, 3} {
			callers.Go(func() { _, _ = b.Ensure(t.Context(), specOf("tools", "a"), tries) })
		}
		synctest.Wait()
		close(hold)
		callers.Wait()
		if e.count() != 3 {
			t.Errorf("%d builds", e.count())
		}
	})
}

func TestAFailureNamesItsStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base)
		e.behave(func(_ context.Context, said func(string)) error {
			steps(said, "Step 1/5 : FROM base:1", label, "Step 3/5 : RUN pip install x", "all is well", `Step 4/5 : RUN ["/bin/sh","-euc","pip install nothing"]`)
			said("\x1b]0;title\x07\u009b2J\xff")
			for i := range 20 {
				said(fmt.Sprintf("line %d", i))
			}
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "The command returned a non-zero code: 1")
		})
		b := newBuilder(t, e)
		spec := specOf("tools", "a")
		_, err := b.Ensure(t.Context(), spec, 1)
		for _, part := range []string{"step 4 of 5, RUN pip install nothing", "non-zero code: 1", "line 8 | line 9", "line 19"} {
			if !strings.Contains(shown(err), part) {
				t.Errorf("%q is not in %q", part, shown(err))
			}
		}
		if log, err := os.ReadFile(b.logFile(spec)); err != nil || !strings.Contains(string(log), " ]0;title  2J?\n") {
			t.Errorf("a terminal would act on what it printed: %v: %q", err, log)
		}
		for _, part := range []string{"all is well", "line 7 "} {
			if strings.Contains(shown(err), part) {
				t.Errorf("%q is in %q", part, shown(err))
			}
		}
		if p := b.Preparation(spec); p.State != sandboxd.PreparationFailed || p.Step != 4 || p.Error != shown(err) {
			t.Errorf("%+v", p)
		}
		log, err := os.ReadFile(b.logFile(spec))
		if err != nil || !strings.Contains(string(log), "all is well\n") || !strings.Contains(string(log), "== failed: ") {
			t.Errorf("the log: %v: %s", err, log)
		}
		// The next time is a new story.
		e.behave(nil)
		if _, err := b.Ensure(t.Context(), spec, 1); err != nil || b.Preparation(spec).Error != "" {
			t.Errorf("%v, %+v", err, b.Preparation(spec))
		}
	})
}

func TestABuildHasATimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base)
		e.behave(func(ctx context.Context, said func(string)) error {
			steps(said, "Step 1/5 : FROM base:1", label, "Step 3/5 : RUN pip install x")
			<-ctx.Done()
			return ctx.Err()
		})
		b := newBuilder(t, e)
		began := time.Now()
		_, err := b.Ensure(t.Context(), specOf("tools", "a"), 1)
		if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(shown(err), "RUN pip install x: it took longer than 1h0m0s") {
			t.Errorf("%v", err)
		}
		if time.Since(began) != time.Hour {
			t.Errorf("after %s", time.Since(began))
		}
	})
}

// Different images are built one after the other: each has the machine for itself.
func TestBuildsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base)
		e.behave(func(context.Context, func(string)) error {
			timer := time.NewTimer(time.Minute)
			<-timer.C
			return nil
		})
		b := newBuilder(t, e)
		var callers sync.WaitGroup
		for _, version := range []string{"a", "b", "c"} {
			callers.Go(func() {
				if _, err := b.Ensure(t.Context(), specOf("tools", version), 1); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if e.most != 1 || e.count() != 3 {
			t.Errorf("%d builds, %d at once", e.count(), e.most)
		}
	})
}

func TestBasesAndFinishedImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench()
		b := newBuilder(t, e)
		finished := recipe.Spec{Base: "team/tools:1", Tag: "team/tools:1", Digest: "sha256:f"}
		for range 2 {
			if _, err := b.Ensure(t.Context(), finished, 1); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Ensure(t.Context(), specOf("tools", "a"), 1); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(e.pulls, []string{"team/tools:1", base}) || e.count() != 1 {
			t.Errorf("pulled %q, built %q", e.pulls, e.builds)
		}
		e.pullErr = sandboxd.Invalid("image", "there is no such image")
		_, err := b.Ensure(t.Context(), recipe.Spec{Base: "nowhere:1", Tag: "nowhere:1", Digest: "sha256:0"}, 3)
		if sandboxd.ClassOf(err) != sandboxd.ClassInvalid || len(e.pulls) != 3 {
			t.Errorf("an image that is nowhere: %v after %d pulls", err, len(e.pulls))
		}
	})
}

// A name that somebody else gave to an image of theirs is taken from it.
func TestAnotherImageOfTheNameIsNotTheOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := specOf("tools", "a")
		e := newBench(base, spec.Tag)
		b := newBuilder(t, e)
		if made, err := b.Ensure(t.Context(), spec, 1); !made || err != nil || e.count() != 1 {
			t.Errorf("made %v, %v", made, err)
		}
	})
}

func TestPrune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base, "somebody/elses:1")
		b := newBuilder(t, e)
		for _, version := range []string{"old", "used", "named", "now"} {
			if _, err := b.Ensure(t.Context(), specOf("tools", version), 1); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Ensure(t.Context(), specOf("theirs", "old"), 1); err != nil {
			t.Fatal(err)
		}
		e.busy[specOf("tools", "used").Tag] = true
		for _, owner := range []string{"me", "other"} {
			id := "half of " + owner
			e.images[id] = sandboxd.HeldImage{ID: id, Labels: map[string]string{recipe.LabelRuntime: "tools", recipe.LabelOwner: owner}}
		}
		const others = "sandboxd-runtime:tools-old-other"
		e.images[others] = sandboxd.HeldImage{ID: "id of " + others, Tags: []string{others}, Labels: map[string]string{recipe.LabelRuntime: "tools", recipe.LabelOwner: "other"}}
		gone, err := b.Prune(t.Context(), "me", []string{"tools"}, []string{specOf("tools", "now").Tag, specOf("tools", "named").Tag})
		slices.Sort(gone)
		if err != nil || !slices.Equal(gone, []string{"half of me", specOf("tools", "old").Tag}) {
			t.Errorf("gone are %q, %v", gone, err)
		}
	})
}

// What another server built by the same recipe is not built again, and stays when that
// one removes its name.
func TestAnImageOfAnotherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base)
		b := newBuilder(t, e)
		theirs, mine := specOf("tools", "a"), specOf("tools", "a")
		theirs.Tag, theirs.Labels[recipe.LabelOwner] = "sandboxd-runtime:tools-a-other", "other"
		for _, spec := range []recipe.Spec{theirs, mine} {
			if _, err := b.Ensure(t.Context(), spec, 1); err != nil {
				t.Fatal(err)
			}
		}
		if n := e.count(); n != 1 {
			t.Errorf("%d builds", n)
		}
		if gone, err := b.Prune(t.Context(), "other", []string{"tools"}, nil); err != nil || !slices.Equal(gone, []string{theirs.Tag}) {
			t.Errorf("gone are %q, %v", gone, err)
		}
		if ready, err := b.Ready(t.Context(), mine); !ready || err != nil || e.count() != 1 {
			t.Errorf("ready is %v, %v", ready, err)
		}
	})
}

func TestCloseEndsBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBench(base)
		e.behave(func(ctx context.Context, _ func(string)) error { <-ctx.Done(); return ctx.Err() })
		b := New(Config{Images: e, Dir: t.TempDir()})
		failed := make(chan error, 1)
		go func() {
			_, err := b.Ensure(context.Background(), specOf("tools", "a"), 3)
			failed <- err
		}()
		synctest.Wait()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := <-failed; err == nil {
			t.Error("it was built")
		}
		if _, err := b.Ensure(context.Background(), specOf("tools", "b"), 1); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestALogIsBounded(t *testing.T) {
	name := t.TempDir() + "/log"
	l, err := openLog(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1000)
	l.line("first")
	for range 3000 {
		l.line(long)
	}
	l.line("last")
	l.close(nil)
	text, err := os.ReadFile(name)
	if err != nil || len(text) > 2*logBytes+4096 {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	for _, part := range []string{"first\n", "bytes are left out here\n", "last\n== done\n"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%q is missing", part)
		}
	}
	if l, err = openLog(name, 2); err != nil {
		t.Fatal(err)
	}
	l.close(io.ErrUnexpectedEOF)
	if again, _ := os.ReadFile(name); !strings.HasPrefix(string(again), string(text)) || !strings.Contains(string(again), "== try 2") {
		t.Error("the log of the second try does not follow that of the first")
	}
}
