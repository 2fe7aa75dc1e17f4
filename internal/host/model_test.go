package host

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/api"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/pressure"
	"sandboxd/internal/store"
)

// The model of one key's life: what a sequence of operations must lead to. It
// knows nothing of how the host works.
type model struct {
	exists bool
	state  sandboxd.State // cold, running or lost
	gen    int64
	asked  bool // the last environment ended because a caller asked, or there was none
	file   string
	// kept says that a stopped environment keeps what was installed.
	kept  bool
	shelf shelfState // not of the key, and known from the world before each step
}

// shelfState is what becomes of a sandbox that needs the image of its runtime.
type shelfState struct {
	there  bool // nothing is to be prepared
	broken bool // preparing fails
}

// over is m after its environment ended.
func (m model) over(asked bool) model {
	if m.state == sandboxd.StateRunning {
		m.state, m.asked = without(m.kept), asked
	}
	return m
}

func (m model) rests() bool { return m.state == sandboxd.StateCold || m.state == sandboxd.StateStopped }

type opResult struct {
	sb  sandboxd.Sandbox
	err error
}

// modelOps are the operations, each as what the model does and what the host is
// asked. expect answers the classes that op may fail with; "" is success.
type modelOp struct {
	name   string
	apply  func(m model) (model, sandboxd.Class)
	invoke func(w *modelWorld) opResult
	solo   bool // changes the world itself; not run at the same time as another
}

func fails(c sandboxd.Class) func(model) (model, sandboxd.Class) {
	return func(m model) (model, sandboxd.Class) { return m, c }
}

func started(m model) (model, sandboxd.Class) {
	switch m.state {
	case sandboxd.StateLost:
		return m, sandboxd.ClassUnavailable
	case sandboxd.StateCold, sandboxd.StateStopped:
		if m.asked = true; m.state == sandboxd.StateCold && m.shelf.broken && !m.shelf.there {
			return m, sandboxd.ClassUnavailable
		}
		m.state, m.gen = sandboxd.StateRunning, m.gen+1
	}
	return m, ""
}

// present is op for a key that exists; without one it is not found.
func present(op func(m model) (model, sandboxd.Class)) func(m model) (model, sandboxd.Class) {
	return func(m model) (model, sandboxd.Class) {
		if !m.exists {
			return m, sandboxd.ClassNotFound
		}
		return op(m)
	}
}

var modelOps = []modelOp{
	{name: "open", apply: func(m model) (model, sandboxd.Class) {
		if !m.exists {
			m = model{exists: true, state: sandboxd.StateCold, asked: true, kept: m.kept, shelf: m.shelf}
		}
		return started(m)
	}, invoke: func(w *modelWorld) opResult {
		sb, _, err := w.host.Open(w.ctx, sandboxd.OpenRequest{Key: "k"})
		return opResult{sb: sb, err: err}
	}},
	{name: "open-cold", apply: func(m model) (model, sandboxd.Class) {
		if !m.exists {
			m = model{exists: true, state: sandboxd.StateCold, asked: true, kept: m.kept, shelf: m.shelf}
		}
		return m, ""
	}, invoke: func(w *modelWorld) opResult {
		no := false
		sb, _, err := w.host.Open(w.ctx, sandboxd.OpenRequest{Key: "k", Start: &no})
		return opResult{sb: sb, err: err}
	}},
	{name: "start", apply: present(started), invoke: func(w *modelWorld) opResult {
		return w.on(func(id string) opResult { sb, err := w.host.Start(w.ctx, id); return opResult{sb: sb, err: err} })
	}},
	{name: "stop", apply: present(func(m model) (model, sandboxd.Class) { return m.over(true), "" }), invoke: func(w *modelWorld) opResult {
		return w.on(func(id string) opResult { sb, err := w.host.Stop(w.ctx, id); return opResult{sb: sb, err: err} })
	}},
	{name: "close", apply: present(func(m model) (model, sandboxd.Class) {
		return m.over(true), ""
	}), invoke: func(w *modelWorld) opResult {
		return w.on(func(id string) opResult {
			sb, err := w.host.(sandboxd.Lifetimes).CloseSandbox(w.ctx, id)
			return opResult{sb: sb, err: err}
		})
	}},
	{name: "idle-close", solo: true, apply: func(m model) (model, sandboxd.Class) {
		return m.over(true), "" // a command starts it again
	}, invoke: func(w *modelWorld) opResult {
		if sb, ok := w.present(); ok && sb.Open {
			b, env := w.embedded.up(sb.ID)
			w.until("its commands have ended", func() bool { return env == nil || len(env.commandList()) == 0 })
			zero := sandboxd.DefaultPolicy()
			zero.IdleTimeoutS = new(sandboxd.Seconds)
			w.until("it is closed", func() bool {
				b.closeIdle(zero)
				now, err := w.host.Get(w.ctx, sb.ID)
				return err == nil && !now.Open
			})
		}
		return opResult{}
	}},
	{name: "evict", solo: true, apply: func(m model) (model, sandboxd.Class) {
		return m.over(false), "" // a command is told
	}, invoke: func(w *modelWorld) opResult {
		if sb, ok := w.present(); ok && sb.State == sandboxd.StateRunning {
			w.until("it is evicted", func() bool { return w.embedded.evictForMemory(pressure.Reading{Total: 1 << 30}) })
		}
		return opResult{}
	}},
	{name: "delete", apply: present(func(m model) (model, sandboxd.Class) { return model{kept: m.kept, shelf: m.shelf}, "" }), invoke: func(w *modelWorld) opResult {
		return w.on(func(id string) opResult { return opResult{err: w.host.Delete(w.ctx, id)} })
	}},
	{name: "exec", apply: present(func(m model) (model, sandboxd.Class) {
		if m.rests() && !m.asked {
			return m, sandboxd.ClassGone
		}
		return started(m)
	}), invoke: func(w *modelWorld) opResult {
		return w.on(func(id string) opResult {
			_, _, err := w.host.StartCommand(w.ctx, id, sandboxd.CommandSpec{Argv: []string{"echo", "hello"}})
			return opResult{err: err}
		})
	}},
	{name: "write", apply: present(func(m model) (model, sandboxd.Class) {
		if m.state == sandboxd.StateLost {
			return m, sandboxd.ClassUnavailable
		}
		m.file = "written"
		return m, ""
	}), invoke: func(w *modelWorld) opResult {
		return w.on(func(id string) opResult {
			f, err := w.host.Files(w.ctx, id)
			if err == nil {
				_, err = f.Write(w.ctx, "f", strings.NewReader("written"), sandboxd.WriteOptions{Size: -1})
			}
			return opResult{err: err}
		})
	}},
	{name: "lose-image", apply: func(m model) (model, sandboxd.Class) {
		m.shelf.there = false
		return m, ""
	}, invoke: func(w *modelWorld) opResult {
		w.shelf.change(func(s *shelfState) { s.there = false })
		return opResult{}
	}},
	{name: "break-recipe", apply: func(m model) (model, sandboxd.Class) {
		m.shelf.broken = true
		return m, ""
	}, invoke: func(w *modelWorld) opResult {
		w.shelf.change(func(s *shelfState) { s.broken = true })
		return opResult{}
	}},
	{name: "mend-recipe", apply: func(m model) (model, sandboxd.Class) {
		m.shelf.broken = false
		return m, ""
	}, invoke: func(w *modelWorld) opResult {
		w.shelf.change(func(s *shelfState) { s.broken = false })
		return opResult{}
	}},
	{name: "list", apply: fails(""), invoke: func(w *modelWorld) opResult {
		_, err := w.host.List(w.ctx, "")
		return opResult{err: err}
	}},
	{name: "kill", solo: true, apply: func(m model) (model, sandboxd.Class) {
		return m.over(false), ""
	}, invoke: func(w *modelWorld) opResult {
		if sb, ok := w.present(); ok && sb.State == sandboxd.StateRunning {
			w.world.Kill(sb.ID)
			w.until("the death is noticed", func() bool {
				now, err := w.host.Get(w.ctx, sb.ID)
				return err == nil && !now.State.HasEnvironment()
			})
		}
		return opResult{}
	}},
	{name: "restart", solo: true, apply: fails(""), invoke: func(w *modelWorld) opResult {
		w.restart()
		return opResult{}
	}},
	{name: "lose-files", solo: true, apply: func(m model) (model, sandboxd.Class) {
		if m.exists && m.rests() && m.gen > 0 {
			m.state, m.file = sandboxd.StateLost, ""
		}
		return m, ""
	}, invoke: func(w *modelWorld) opResult {
		if sb, ok := w.present(); ok && !sb.State.HasEnvironment() && sb.State != sandboxd.StateLost && sb.Generation > 0 {
			if err := os.RemoveAll(filepath.Join(w.dir, "workspaces", "k")); err != nil {
				w.t.Fatal(err)
			}
			w.restart()
		}
		return opResult{}
	}},
}

// modelWorld is a host over the fake driver that can be restarted. What it is asked,
// it is asked through host.
type modelWorld struct {
	t        *rapid.T
	ctx      context.Context
	dir      string
	store    sandboxd.HostStore
	world    *fake.World
	shelf    *shelf
	driver   sandboxd.Driver
	embedded *Host
	host     sandboxd.Host
	// reach answers what asks an embedded host, which may be the host itself.
	reach func(*Host) sandboxd.Host
}

func (w *modelWorld) start() {
	w.driver = fake.Imaging{Driver: fake.New(w.world)}
	h, err := New(w.ctx, Config{DataDir: w.dir, Store: w.store, Drivers: []sandboxd.Driver{w.driver}, UIDs: testUIDs(), Runtimes: w.shelf})
	if err != nil {
		w.t.Fatalf("host: %v", err)
	}
	w.embedded, w.host = h, w.reach(h)
}

func (w *modelWorld) stop() {
	if err := w.embedded.Close(); err != nil {
		w.t.Fatalf("close: %v", err)
	}
	if err := w.driver.Close(); err != nil {
		w.t.Fatalf("driver close: %v", err)
	}
}

func (w *modelWorld) restart() { w.stop(); w.start() }

func (w *modelWorld) present() (sandboxd.Sandbox, bool) {
	list, err := w.host.List(w.ctx, "k")
	if err != nil {
		w.t.Fatalf("list: %v", err)
	}
	if len(list) == 0 {
		return sandboxd.Sandbox{}, false
	}
	return list[0], true
}

func (w *modelWorld) on(fn func(id string) opResult) opResult {
	sb, ok := w.present()
	if !ok {
		return opResult{err: sandboxd.Errorf(sandboxd.ClassNotFound, "no such sandbox")}
	}
	return fn(sb.ID)
}

func (w *modelWorld) until(what string, cond func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("timed out: %s", what)
		}
	}
}

// shelf is a catalogue of one runtime, whose image is lost, made and not made.
type shelf struct {
	mu  sync.Mutex
	now shelfState
}

func (s *shelf) change(fn func(*shelfState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(&s.now)
}

func (s *shelf) look() shelfState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *shelf) Entries() []sandboxd.RuntimeEntry {
	return []sandboxd.RuntimeEntry{{Name: "tools", Builds: true, Image: "tools:1"}}
}

func (s *shelf) Ready(context.Context, string) (bool, error) { return s.look().there, nil }

func (s *shelf) Prepare(ctx context.Context, _ string) error {
	moment := time.NewTimer(100 * time.Microsecond)
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.broken {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "the image cannot be made")
	}
	s.now.there = true
	return nil
}

func (s *shelf) Preparation(string) sandboxd.Preparation {
	return sandboxd.Preparation{State: sandboxd.PreparationWorking}
}

func (s *shelf) Missing(string) []string { return nil }

// matches says whether the host shows what m says.
func (w *modelWorld) matches(m model) bool {
	sb, ok := w.present()
	if ok != m.exists {
		return false
	}
	if !ok {
		return true
	}
	if sb.State != m.state || sb.Generation != m.gen {
		return false
	}
	if m.state == sandboxd.StateLost {
		return true
	}
	f, err := w.host.Files(w.ctx, sb.ID)
	if err != nil {
		return false
	}
	_, err = f.Stat(w.ctx, "f")
	if class := classOf(err); class != "" && class != sandboxd.ClassNotFound {
		w.t.Fatalf("whether there is a file: %v, on a host that shows %s", err, w.describe())
	}
	return (err == nil) == (m.file != "")
}

func (w *modelWorld) describe() string {
	sb, ok := w.present()
	text := fmt.Sprintf("present=%v state=%s generation=%d open=%v ending=%+v", ok, sb.State, sb.Generation, sb.Open, sb.LastEnding)
	if ok {
		f, err := w.host.Files(w.ctx, sb.ID)
		if err == nil {
			_, err = f.Stat(w.ctx, "f")
		}
		text += fmt.Sprintf(" file: %v", err)
	}
	return text
}

func classOf(err error) sandboxd.Class {
	if err == nil {
		return ""
	}
	return sandboxd.ClassOf(err)
}

// concurrentClasses are what an operation may answer when another overtakes it.
var concurrentClasses = []sandboxd.Class{"", sandboxd.ClassNotFound, sandboxd.ClassGone, sandboxd.ClassBusy, sandboxd.ClassConflict, sandboxd.ClassUnavailable}

// reached counts what the sequences touched.
type reached struct {
	mu     sync.Mutex
	states map[sandboxd.State]int
	ops    map[string]int
	pairs  map[string]int
	steps  int
}

// TestModel asks the embedded host.
func TestModel(t *testing.T) {
	m := newModelRun(t, func(h *Host) sandboxd.Host { return h })
	m.check()
	m.finish()
}

// TestModelOverHTTP asks the same host through the client and the API, for a thousand
// sequences or as many as half a minute allows.
func TestModelOverHTTP(t *testing.T) {
	var now atomic.Pointer[Host]
	srv := httptest.NewServer(api.Control(api.Config{Token: "sk_of-the-model", OtherToken: "of-the-host",
		HostFor: func(*http.Request) (sandboxd.Host, error) { return now.Load(), nil }}))
	defer srv.Close()
	c, err := client.New(srv.URL, "sk_of-the-model")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := newModelRun(t, func(h *Host) sandboxd.Host { now.Store(h); return c })
	for began := time.Now(); m.sequences == 0 || !testing.Short() && m.sequences < 1000 && time.Since(began) < 30*time.Second && !t.Failed(); {
		m.check()
	}
	m.finish()
}

// modelRun is one test of the model and what its sequences reached.
type modelRun struct {
	t         *testing.T
	base      string
	reach     func(*Host) sandboxd.Host
	seen      *reached
	sequences int
}

func newModelRun(t *testing.T, reach func(*Host) sandboxd.Host) *modelRun {
	return &modelRun{t: t, base: t.TempDir(), reach: reach,
		seen: &reached{states: map[sandboxd.State]int{}, ops: map[string]int{}, pairs: map[string]int{}}}
}

// check runs as many sequences as rapid is told, of at least 20 steps, single
// operations and concurrent pairs.
func (m *modelRun) check() {
	t, seen := m.t, m.seen
	rapid.Check(t, func(rt *rapid.T) {
		m.sequences++
		dir := filepath.Join(m.base, fmt.Sprint(m.sequences))
		if err := os.Mkdir(dir, 0o700); err != nil {
			rt.Fatal(err)
		}
		kept := rapid.Bool().Draw(rt, "kept")
		w := &modelWorld{
			t: rt, ctx: t.Context(), dir: dir, world: fake.NewWorld(fake.Config{}), shelf: &shelf{}, reach: m.reach,
			store: recordingStore{store.NewMemory(), seen, kept},
		}
		w.start()
		defer func() {
			if err := w.embedded.StopAll(w.ctx); err != nil {
				rt.Errorf("stop all: %v", err)
			}
			w.stop()
			os.RemoveAll(dir)
		}()
		m := model{kept: kept}
		steps := rapid.IntRange(20, 30).Draw(rt, "steps")
		for range steps {
			seen.steps++
			if rapid.IntRange(0, 3).Draw(rt, "kind") == 0 {
				m = concurrentStep(rt, w, m, seen)
			} else {
				m = singleStep(rt, w, m, seen)
			}
		}
	})
}

// finish prints the counts: every state, operation and pair is to be reached.
func (m *modelRun) finish() {
	t, seen := m.t, m.seen
	t.Logf("%d sequences, %d steps, %d states, %d operations, %d pairs", m.sequences, seen.steps, len(seen.states), len(seen.ops), len(seen.pairs))
	t.Logf("states %v", seen.states)
	t.Logf("operations %v", seen.ops)
	t.Logf("pairs %v", seen.pairs)
	if t.Failed() || m.sequences < 50 {
		return
	}
	for _, s := range sandboxd.States() {
		if seen.states[s] == 0 {
			t.Errorf("state %s was never reached", s)
		}
	}
	for _, op := range modelOps {
		if seen.ops[op.name] == 0 {
			t.Errorf("operation %s was never run", op.name)
		}
	}
	// There are many: a short run may miss one.
	if want := len(concurrentOps()) * (len(concurrentOps()) + 1) / 2; m.sequences >= 1000 && len(seen.pairs) != want {
		t.Errorf("%d of %d concurrent pairs were run", len(seen.pairs), want)
	}
}

func singleStep(rt *rapid.T, w *modelWorld, m model, seen *reached) model {
	op := rapid.SampledFrom(modelOps).Draw(rt, "op")
	seen.ops[op.name]++
	m.shelf = w.shelf.look()
	next, want := op.apply(m)
	got := op.invoke(w)
	if classOf(got.err) != want {
		rt.Fatalf("%s on %+v: %v, want class %q", op.name, m, got.err, want)
	}
	if !w.matches(next) {
		rt.Fatalf("%s on %+v: want %+v, host shows %s", op.name, m, next, w.describe())
	}
	return next
}

func concurrentOps() []modelOp {
	return slices.DeleteFunc(slices.Clone(modelOps), func(op modelOp) bool { return op.solo })
}

// concurrentStep runs two operations at once; the host must end in what one of
// the two orders leads to.
func concurrentStep(rt *rapid.T, w *modelWorld, m model, seen *reached) model {
	a := rapid.SampledFrom(concurrentOps()).Draw(rt, "a")
	b := rapid.SampledFrom(concurrentOps()).Draw(rt, "b")
	m.shelf = w.shelf.look()
	pair := []string{a.name, b.name}
	sort.Strings(pair)
	seen.pairs[strings.Join(pair, "+")]++
	var ra, rb opResult
	var wg sync.WaitGroup
	wg.Go(func() { ra = a.invoke(w) })
	wg.Go(func() { rb = b.invoke(w) })
	wg.Wait()
	for _, r := range []opResult{ra, rb} {
		if !slices.Contains(concurrentClasses, classOf(r.err)) {
			rt.Fatalf("%s and %s at once: class %q: %v", a.name, b.name, classOf(r.err), r.err)
		}
	}
	for _, next := range outcomes(m, a, b, ra, rb) {
		if w.matches(next) {
			return next
		}
	}
	rt.Fatalf("%s (%v) and %s (%v) at once on %+v: host shows %s", a.name, ra.err, b.name, rb.err, m, w.describe())
	return m
}

// begun is what an operation that starts a sandbox leaves when the start was stopped.
func begun(m model, op modelOp) model {
	if !m.exists && op.name == "open" {
		m = model{exists: true, state: sandboxd.StateCold, kept: m.kept, shelf: m.shelf}
	}
	m.asked = m.asked || m.state == sandboxd.StateCold
	return m
}

// outcomes are the models that a and b in either order lead to. An operation that
// was overtaken (it answered busy, gone or unavailable) may have done nothing.
func outcomes(m model, a, b modelOp, ra, rb opResult) []model {
	var all []model
	// A start that was stopped while it waited for its image says so.
	for _, order := range []struct {
		stopped, other modelOp
		err            error
	}{{a, b, ra.err}, {b, a, rb.err}} {
		if classOf(order.err) == sandboxd.ClassConflict {
			one, _ := order.other.apply(begun(m, order.stopped))
			two, _ := order.other.apply(m)
			all = append(all, one, begun(two, order.stopped))
		}
	}
	for _, order := range [][2]modelOp{{a, b}, {b, a}} {
		one, _ := order[0].apply(m)
		two, _ := order[1].apply(one)
		all = append(all, two)
	}
	// A command that came too late for the environment it has started starts the next one.
	for _, order := range []struct {
		late, other modelOp
		err         error
	}{{a, b, ra.err}, {b, a, rb.err}} {
		if order.late.name == "exec" && order.err == nil {
			one, _ := order.late.apply(m)
			two, _ := order.other.apply(one)
			if three, class := order.late.apply(two); class == "" {
				all = append(all, three)
			}
		}
	}
	if ra.err != nil {
		one, _ := b.apply(m)
		all = append(all, one)
	}
	if rb.err != nil {
		one, _ := a.apply(m)
		all = append(all, one)
	}
	return all
}

// recordingStore notes which states are ever stored.
type recordingStore struct {
	sandboxd.HostStore
	seen     *reached
	writable bool // its sandboxes have a root that takes writes
}

func (s recordingStore) note(state sandboxd.State) {
	if state == "" {
		return // of a change that was refused
	}
	s.seen.mu.Lock()
	s.seen.states[state]++
	s.seen.mu.Unlock()
}

func (s recordingStore) Create(ctx context.Context, rec sandboxd.SandboxRecord, pool sandboxd.UIDPool) (sandboxd.SandboxRecord, bool, error) {
	if s.writable {
		rec.Root = sandboxd.RootWritable
	}
	rec, created, err := s.HostStore.Create(ctx, rec, pool)
	s.note(rec.State)
	return rec, created, err
}

func (s recordingStore) Update(ctx context.Context, id string, fn func(*sandboxd.SandboxRecord) error) (sandboxd.SandboxRecord, error) {
	rec, err := s.HostStore.Update(ctx, id, fn)
	s.note(rec.State)
	return rec, err
}

// testUIDs is a pool that works for whoever runs the tests.
func testUIDs() sandboxd.UIDPool {
	if os.Geteuid() == 0 {
		return sandboxd.UIDPool{First: 200000, Last: 200063}
	}
	return sandboxd.UIDPool{First: uint32(os.Geteuid()), Last: uint32(os.Geteuid())}
}
