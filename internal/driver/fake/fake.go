// Package fake is a sandboxd.Driver without isolation and without processes: each
// environment is an init of package inside over built-in programs, reached by an
// in-memory pipe that speaks the real guest protocol.
//
// It is for tests, and for trying the product where nothing may be isolated; it
// never runs a host process and touches no file. Environments live in a World,
// which outlives a Driver as real environments outlive a server.
package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"sandboxd"
	"sandboxd/internal/guest/builtin"
	"sandboxd/internal/guest/inside"
)

// Config says how a world behaves; the zero value is a healthy one.
type Config struct {
	StartDelay   time.Duration // before Start answers
	StartError   error         // what Start fails with
	DiesAfter    time.Duration // an environment ends by itself so long after its start; 0 never
	SlowStop     time.Duration // before Stop answers
	Lost         bool          // Adopt fails with ClassGone
	NoSharedDisk bool          // Capabilities.WorkspaceBind is false
	// Homes are what images have at sandboxd.HomeDir, by their names, as tars.
	Homes map[string][]byte
	// After is the clock; nil is time.After.
	After func(time.Duration) <-chan time.Time
}

// homeOf is what an image has at sandboxd.HomeDir; nil for nothing.
func (c Config) homeOf(image string) io.Reader {
	if home, ok := c.Homes[image]; ok {
		return bytes.NewReader(home)
	}
	return nil
}

// World holds environments. Its methods are safe for concurrent use.
type World struct {
	cfg Config

	mu     sync.Mutex
	envs   map[string]*environment
	driver *Driver // the newest; it hears the events

	samples int
	kept    map[string]bool // ids of which Keep kept the root
}

type environment struct {
	spec   sandboxd.EnvironmentSpec
	serial string // proves that a handle is of this one
	server *inside.Server
	ready  bool
	gone   chan struct{} // closed when it ended
	ending *sandboxd.Ending
	used   sandboxd.Sample // under World.mu
}

// handle is the persisted form.
type handle struct {
	Serial     string `json:"serial"`
	Generation int64  `json:"generation"`
}

// NewWorld makes an empty world.
func NewWorld(cfg Config) *World {
	if cfg.After == nil {
		cfg.After = time.After
	}
	return &World{cfg: cfg, envs: map[string]*environment{}, kept: map[string]bool{}}
}

// Configure changes how the world behaves from now on.
func (w *World) Configure(change func(*Config)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.cfg)
}

// Kill ends an environment as if it died by SIGKILL; the driver reports it. It
// answers false when there is none.
func (w *World) Kill(id string) bool {
	w.mu.Lock()
	env := w.envs[id]
	w.mu.Unlock()
	return env != nil && w.die(env)
}

// Close ends every environment without an event.
func (w *World) Close() {
	w.mu.Lock()
	envs := w.envs
	w.envs = map[string]*environment{}
	w.mu.Unlock()
	for _, env := range envs {
		w.end(env, nil)
	}
}

// die ends env by itself, once, and tells the driver.
func (w *World) die(env *environment) bool {
	code := 128 + int(syscall.SIGKILL)
	ending := sandboxd.Ending{Cause: sandboxd.CauseSignal, Signal: "SIGKILL", ExitCode: &code, At: time.Now().UTC()}
	if !w.end(env, &ending) {
		return false
	}
	w.mu.Lock()
	d := w.driver
	w.mu.Unlock()
	if d != nil {
		d.report(sandboxd.DriverEvent{ID: env.spec.ID, Generation: env.spec.Generation, Ending: ending})
	}
	return true
}

// end ends env; false when it had ended.
func (w *World) end(env *environment, ending *sandboxd.Ending) bool {
	w.mu.Lock()
	select {
	case <-env.gone:
		w.mu.Unlock()
		return false
	default:
	}
	env.ending = ending
	close(env.gone)
	w.mu.Unlock()
	env.server.Close()
	return true
}

// Driver implements sandboxd.Driver over a World.
type Driver struct {
	world *World

	mu      sync.Mutex
	held    map[string]*environment // started or adopted here
	ready   int                     // how many may be, and so are, ready
	queue   []sandboxd.DriverEvent
	wake    chan struct{}
	closed  bool
	closing chan struct{}
	events  chan sandboxd.DriverEvent
}

var (
	_ sandboxd.Driver          = (*Driver)(nil)
	_ sandboxd.EnvironmentPool = (*Driver)(nil)
	_ sandboxd.Keeper          = (*Driver)(nil)
)

// New makes a driver for a world; it takes the events over from an older one.
func New(world *World) *Driver {
	d := &Driver{world: world, held: map[string]*environment{}, wake: make(chan struct{}, 1), closing: make(chan struct{}), events: make(chan sandboxd.DriverEvent)}
	world.mu.Lock()
	world.driver = d
	world.mu.Unlock()
	go d.deliver()
	return d
}

// report queues an event, so that a slow reader loses nothing and stalls nobody.
func (d *Driver) report(ev sandboxd.DriverEvent) {
	d.mu.Lock()
	d.queue = append(d.queue, ev)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *Driver) deliver() {
	defer close(d.events)
	for {
		d.mu.Lock()
		queue := d.queue
		d.queue = nil
		d.mu.Unlock()
		for _, ev := range queue {
			select {
			case d.events <- ev:
			case <-d.closing:
				return
			}
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-d.wake:
		case <-d.closing:
			return
		}
	}
}

// Name implements sandboxd.Driver.
func (d *Driver) Name() string { return "fake" }

// Fingerprint implements sandboxd.Driver.
func (d *Driver) Fingerprint(context.Context) sandboxd.Fingerprint {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	return sandboxd.Fingerprint{
		Works: true,
		Level: []sandboxd.LevelLine{{Name: "isolation", Detail: "none: programs are built in", Why: "the fake driver runs no untrusted code"}},
		Capabilities: sandboxd.Capabilities{
			SurvivesHostRestart: true, Networks: []string{"none", "proxy"}, WorkspaceBind: !d.world.cfg.NoSharedDisk, Pool: true,
		},
	}
}

// pause waits for the world's clock.
func (w *World) pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-w.config().After(d):
		return nil
	case <-ctx.Done():
		return sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the environment was not ready in time")
	}
}

func (w *World) config() Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cfg
}

// Start implements sandboxd.Driver.
func (d *Driver) Start(ctx context.Context, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	if !sandboxd.ValidID(spec.ID) {
		return nil, sandboxd.Invalid("id", "no sandbox has this id")
	}
	w := d.world
	cfg := w.config()
	loopback := builtin.NewLoopback()
	env := &environment{
		spec: spec, used: sandboxd.Sample{MemoryLimit: &spec.Limits.MemoryBytes}, serial: sandboxd.NewID(), gone: make(chan struct{}),
		server: inside.New(builtin.Spawner{Loopback: loopback}, inside.Options{Nonce: spec.Nonce, Dial: loopback.Dial, Ports: loopback.Ports, Listen: loopback.Listen}),
	}
	w.mu.Lock()
	if old := w.envs[spec.ID]; old != nil && !old.over() {
		w.mu.Unlock()
		return nil, sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox has an environment")
	}
	if spec.Kept && !w.kept[spec.ID] {
		w.mu.Unlock()
		return nil, sandboxd.Errorf(sandboxd.ClassGone, "what was kept of the environment is gone")
	}
	w.envs[spec.ID], w.kept[spec.ID] = env, spec.Kept
	w.mu.Unlock()
	delay := cfg.StartDelay
	if d.pooled() {
		delay = 0
	}
	err := w.pause(ctx, delay)
	if err == nil && spec.Seed != nil {
		err = spec.Seed.SeedHome(ctx, cfg.homeOf(spec.Image))
	}
	if err == nil && cfg.StartError != nil {
		err = sandboxd.Wrap(sandboxd.ClassUnavailable, cfg.StartError, "the environment did not start")
	}
	if err == nil && env.over() {
		err = sandboxd.Errorf(sandboxd.ClassUnavailable, "the environment was stopped while it started")
	}
	if err != nil {
		w.end(env, nil)
		w.remove(env)
		return nil, err
	}
	if err := d.hold(env); err != nil {
		w.end(env, nil)
		w.remove(env)
		return nil, err
	}
	w.mu.Lock()
	env.ready = true
	w.mu.Unlock()
	if cfg.DiesAfter > 0 {
		die := cfg.After(cfg.DiesAfter)
		go func() {
			select {
			case <-die:
				w.die(env)
			case <-env.gone:
			}
		}()
	}
	return json.Marshal(handle{Serial: env.serial, Generation: spec.Generation})
}

// KeepReady implements sandboxd.EnvironmentPool. What is ready costs nothing here, so
// there always are as many as there may be; a start that has one does without delay.
func (d *Driver) KeepReady(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready = n
}

func (d *Driver) pooled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ready > 0
}

func (env *environment) over() bool {
	select {
	case <-env.gone:
		return true
	default:
		return false
	}
}

// hold makes env this driver's, which a closed one cannot have.
func (d *Driver) hold(env *environment) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "the driver is closed")
	}
	d.held[env.spec.ID] = env
	return nil
}

// find answers the environment that this driver holds, ended or not; nil if none.
func (d *Driver) find(id string) *environment {
	env := d.world.find(id)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held[id] != env {
		return nil
	}
	return env
}

// remove takes env off the table, if it is still the one of its id.
func (w *World) remove(env *environment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.envs[env.spec.ID] == env {
		delete(w.envs, env.spec.ID)
	}
}

// find answers the environment of an id, ended or not; nil if there is none.
func (w *World) find(id string) *environment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.envs[id]
}

// Adopt implements sandboxd.Driver.
func (d *Driver) Adopt(ctx context.Context, id string, raw sandboxd.Handle) error {
	w := d.world
	if held := d.find(id); held != nil && !held.over() {
		return sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox's environment is held already")
	}
	env := w.find(id)
	var h handle
	if err := json.Unmarshal(raw, &h); err != nil || env == nil || env.over() || w.config().Lost ||
		h != (handle{Serial: env.serial, Generation: env.spec.Generation}) {
		if env != nil {
			w.end(env, nil)
			w.remove(env)
		}
		return sandboxd.Errorf(sandboxd.ClassGone, "the environment is gone")
	}
	return d.hold(env)
}

// Connect implements sandboxd.Driver.
func (d *Driver) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	env := d.find(id)
	if env == nil || env.over() {
		return nil, sandboxd.Errorf(sandboxd.ClassGone, "there is no environment")
	}
	host, guest := net.Pipe()
	go env.server.Serve(guest) // its error is the connection's end, which the host sees
	return host, nil
}

// Stop implements sandboxd.Driver.
func (d *Driver) Stop(ctx context.Context, id string) error {
	w := d.world
	if env := w.find(id); env != nil {
		if err := w.pause(ctx, w.config().SlowStop); err != nil {
			return err
		}
		w.end(env, nil)
		w.remove(env)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.kept, id)
	return nil
}

// Keep implements sandboxd.Keeper.
func (d *Driver) Keep(ctx context.Context, id string) error {
	w := d.world
	env := w.find(id)
	w.mu.Lock()
	kept := w.kept[id]
	w.mu.Unlock()
	if env == nil && !kept {
		return sandboxd.Errorf(sandboxd.ClassGone, "there is no environment")
	}
	if err := d.Stop(ctx, id); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept[id] = true
	return nil
}

// Inspect implements sandboxd.Driver.
func (d *Driver) Inspect(ctx context.Context, id string) (sandboxd.EnvironmentStatus, error) {
	env := d.find(id)
	w := d.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if env == nil {
		return sandboxd.EnvironmentStatus{}, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no environment")
	}
	return sandboxd.EnvironmentStatus{Running: env.ready && !env.over(), Ending: env.ending}, nil
}

// List implements sandboxd.Driver.
func (d *Driver) List(context.Context) ([]string, error) {
	w := d.world
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := []string{}
	for id, env := range w.envs {
		if !env.over() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Events implements sandboxd.Driver.
func (d *Driver) Events() <-chan sandboxd.DriverEvent { return d.events }

// Close implements sandboxd.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	close(d.closing)
	d.world.mu.Lock()
	if d.world.driver == d {
		d.world.driver = nil
	}
	d.world.mu.Unlock()
	return nil
}
