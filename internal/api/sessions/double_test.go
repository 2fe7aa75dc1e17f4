package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/host"
	"sandboxd/internal/leaktest"
	"sandboxd/internal/store"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// textOfPDF stands for what parses one in a process of its own.
func textOfPDF(_ context.Context, file []byte) (string, error) {
	text, ok := strings.CutPrefix(string(file), "%PDF-1.7\n")
	if !ok {
		return "", sandboxd.Errorf(sandboxd.ClassInvalid, "it is damaged")
	}
	return text, nil
}

// lifetimes is a host whose lifetimes are what a test says. It counts openings as a host
// does and has no clocks.
type lifetimes struct {
	sandboxd.Host
	mu     sync.Mutex
	closed map[string]bool
	asleep map[string]bool
	policy sandboxd.Policy
	used   sandboxd.SandboxUsage
	opens  func()            // before an opening is done
	refuse error             // what an opening fails with
	wakes  error             // what a start, and a command that needs one, fails with
	root   string            // of the runtime python
	names  map[string]string // runtimes of sandboxes, by id
}

func (l *lifetimes) seen(sb sandboxd.Sandbox) sandboxd.Sandbox {
	l.mu.Lock()
	defer l.mu.Unlock()
	sb.Open, sb.Asleep = !l.closed[sb.ID], l.asleep[sb.ID]
	if name := l.names[sb.ID]; name != "" {
		sb.Runtime = name
	}
	return sb
}

func (l *lifetimes) set(id string, closed, asleep bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed[id], l.asleep[id] = closed, asleep
}

func (l *lifetimes) Open(ctx context.Context, req sandboxd.OpenRequest) (sandboxd.Sandbox, bool, error) {
	l.mu.Lock()
	opens, refused := l.opens, l.refuse
	l.mu.Unlock()
	if opens != nil {
		opens()
	}
	if refused != nil {
		return sandboxd.Sandbox{}, false, refused
	}
	list, err := l.List(ctx, "")
	if err != nil {
		return sandboxd.Sandbox{}, false, err
	}
	held, open := 0, 0
	for _, sb := range list {
		if sb.Open && sb.Key != req.Key {
			open++
			if sb.Tenant == req.Tenant {
				held++
			}
		}
	}
	if most := l.policy.MaxPerTenant; most != nil && req.Tenant != "" && held >= *most {
		return sandboxd.Sandbox{}, false, &sandboxd.Error{Class: sandboxd.ClassCapacity, Message: "tenant", Ceiling: &sandboxd.Ceiling{Name: sandboxd.CeilingTenant, Held: held, Limit: *most}}
	}
	if most := l.policy.MaxRunning; most != nil && open >= *most {
		return sandboxd.Sandbox{}, false, &sandboxd.Error{Class: sandboxd.ClassCapacity, RetryS: 3, Message: "full", Ceiling: &sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Held: open, Limit: *most}}
	}
	name := req.Runtime
	req.Runtime = ""
	sb, created, err := l.Host.Open(ctx, req)
	if err == nil {
		l.set(sb.ID, false, false)
	}
	if created {
		l.mu.Lock()
		l.names[sb.ID] = name
		l.mu.Unlock()
	}
	return l.seen(sb), created, err
}

// Runtimes are two, of which one is called as the fake driver's own.
func (l *lifetimes) Runtimes(ctx context.Context) ([]sandboxd.Runtime, error) {
	list, err := l.Host.Runtimes(ctx)
	if err == nil {
		other := list[0]
		other.Name, other.Root = "python", l.root
		list = append([]sandboxd.Runtime{other}, list...)
	}
	p, perr := l.Policy(ctx)
	for i := range list { // with what the policy changed, as a host has it
		limits, change := &list[i].Limits, p.Runtimes[list[i].Name]
		limits.MemoryBytes, limits.SwapBytes = either(change.MemoryBytes, limits.MemoryBytes), either(change.SwapBytes, limits.SwapBytes)
		limits.CPUs, limits.CPUShares = either(change.CPUs, limits.CPUs), either(change.CPUShares, limits.CPUShares)
		limits.PIDs = either(change.PIDs, limits.PIDs)
	}
	return list, errors.Join(err, perr)
}

func (l *lifetimes) Get(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	sb, err := l.Host.Get(ctx, id)
	return l.seen(sb), err
}

func (l *lifetimes) List(ctx context.Context, key string) ([]sandboxd.Sandbox, error) {
	list, err := l.Host.List(ctx, key)
	for i := range list {
		list[i] = l.seen(list[i])
	}
	return list, err
}

func (l *lifetimes) Start(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	if err := l.unwoken(); err != nil {
		return sandboxd.Sandbox{}, err
	}
	sb, err := l.Host.Start(ctx, id)
	if err == nil {
		l.set(id, false, false)
	}
	return l.seen(sb), err
}

func (l *lifetimes) StartCommand(ctx context.Context, id string, spec sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
	if err := l.unwoken(); err != nil {
		return sandboxd.Command{}, false, err
	}
	cmd, started, err := l.Host.StartCommand(ctx, id, spec)
	if err == nil {
		l.set(id, false, false)
	}
	return cmd, started, err
}

func (l *lifetimes) unwoken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wakes
}

// sleep puts a sandbox to sleep, as a host does that needs its place.
func (l *lifetimes) sleep(t *testing.T, id string) {
	t.Helper()
	if _, err := l.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	l.set(id, false, true)
}

func (l *lifetimes) Attach(ctx context.Context, key string) (sandboxd.Sandbox, error) {
	return sandboxd.Sandbox{}, sandboxd.Errorf(sandboxd.ClassUnsupported, "not asked for here")
}

func (l *lifetimes) CloseSandbox(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	sb, err := l.Stop(ctx, id)
	if err == nil {
		l.set(id, true, false)
	}
	return l.seen(sb), err
}

func (l *lifetimes) Awake(context.Context, string) (sandboxd.Awake, error) {
	return sandboxd.Awake{}, nil
}
func (l *lifetimes) Renew(context.Context, string) error { return nil }
func (l *lifetimes) Hold(_ context.Context, _ string, h sandboxd.Hold) (sandboxd.Hold, error) {
	return h, nil
}
func (l *lifetimes) Holds(context.Context, string) ([]sandboxd.Hold, error) { return nil, nil }
func (l *lifetimes) Release(context.Context, string, string) error          { return nil }
func (l *lifetimes) Usage(context.Context, string) (sandboxd.SandboxUsage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used, nil
}

func (l *lifetimes) Policy(context.Context) (sandboxd.Policy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.policy, nil
}

func (l *lifetimes) ChangePolicy(_ context.Context, change func(*sandboxd.Policy) error) (sandboxd.Policy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.policy
	if err := change(&next); err != nil {
		return l.policy, err
	}
	if next.MaxOpen != nil && next.MaxRunning != nil && *next.MaxOpen < *next.MaxRunning {
		return l.policy, sandboxd.Invalid("max_open", "less than max_running")
	}
	l.policy = next
	return next, nil
}

// world is a host over the fake driver, and faces over it.
type world struct {
	*lifetimes
	fake  *fake.World
	store store.Store
	data  string
	now   time.Time
	clock sync.Mutex
}

const (
	serviceToken = "a-service-token-of-the-test"
	testKey      = "the key of tokens"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{data: t.TempDir(), fake: fake.NewWorld(fake.Config{}), store: store.NewMemory(), now: time.Unix(1_790_000_000, 0)}
	t.Cleanup(w.fake.Close)
	d := fake.New(w.fake)
	h, err := host.New(t.Context(), host.Config{DataDir: w.data, Store: w.store, Drivers: []sandboxd.Driver{d},
		UIDs: sandboxd.UIDPool{First: uint32(os.Geteuid()), Last: uint32(os.Geteuid()), Shared: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		d.Close()
	})
	w.lifetimes = &lifetimes{Host: h, closed: map[string]bool{}, asleep: map[string]bool{}, names: map[string]string{}, policy: sandboxd.DefaultPolicy()}
	return w
}

func (w *world) time() time.Time {
	w.clock.Lock()
	defer w.clock.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.clock.Lock()
	defer w.clock.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) face(change ...func(*Config)) *Face {
	cfg := Config{PDF: textOfPDF, Host: w.lifetimes, Lifetimes: w.lifetimes, Sessions: w.store, Token: serviceToken, Key: []byte(testKey), Version: "test",
		Routes: []string{"/readyz"}, Clock: w.time}
	for _, c := range change {
		c(&cfg)
	}
	return New(cfg)
}

// rig is a face that is asked over HTTP.
type rig struct {
	*world
	t    *testing.T
	face *Face
	srv  *httptest.Server
}

func newRig(t *testing.T) *rig {
	w := newWorld(t)
	r := &rig{world: w, t: t, face: w.face()}
	r.srv = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) { r.face.ServeHTTP(rw, req) }))
	t.Cleanup(r.srv.Close)
	return r
}

// restart replaces the face, as a new process would.
func (r *rig) restart(change ...func(*Config)) { r.face = r.world.face(change...) }

type reply struct {
	status int
	header http.Header
	body   string
}

// json decodes the body into v.
func (p reply) json(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(p.body), v); err != nil {
		t.Fatalf("%d %q: %v", p.status, p.body, err)
	}
}

// detail is the text of an error.
func (p reply) detail(t *testing.T) string {
	t.Helper()
	var d struct{ Detail any }
	p.json(t, &d)
	if s, ok := d.Detail.(string); ok {
		return s
	}
	text, _ := json.Marshal(d.Detail)
	return string(text)
}

func (r *rig) do(method, path, token string, body any) reply {
	r.t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	case []byte:
		in = bytes.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			r.t.Fatal(err)
		}
		in = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.srv.URL+path, in)
	if err != nil {
		r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("X-Sandbox-Token", token)
	}
	client := *r.srv.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := client.Do(req)
	if err != nil {
		r.t.Errorf("%s %s: %v", method, path, err)
		return reply{}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Errorf("%s %s: %v", method, path, err)
	}
	return reply{res.StatusCode, res.Header, string(data)}
}

type m = map[string]any

// open opens a session, which must succeed.
func (r *rig) open(body m) (info, string) {
	r.t.Helper()
	got := r.do("POST", "/sessions", serviceToken, body)
	if got.status != 200 {
		r.t.Fatalf("open %v: %d %s", body, got.status, got.body)
	}
	var c created
	got.json(r.t, &c)
	return c.Session, c.Token
}

var runCount int
var runMu sync.Mutex

func runID() string {
	runMu.Lock()
	defer runMu.Unlock()
	runCount++
	return fmt.Sprintf("%032x", runCount)
}

// runs runs argv, which must have a result.
func (r *rig) runs(id, token string, argv ...string) result {
	r.t.Helper()
	got := r.do("POST", "/sessions/"+id+"/run", token, m{"argv": argv, "env": m{}, "timeout_seconds": nil, "run_id": runID()})
	if got.status != 200 {
		r.t.Fatalf("run %q: %d %s", argv, got.status, got.body)
	}
	var res result
	got.json(r.t, &res)
	return res
}

// until polls a condition.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("never: %s", what)
		}
	}
}
