// Package docker is the driver that isolates with containers of a container
// engine: any image, under runc, gVisor or another OCI runtime. It is a
// sandboxd.Driver, sandboxd.Images and sandboxd.MemoryKills. It speaks to the engine by its API alone,
// never runs anything in a container through it, and passes no path or process of
// the machine but the directories of a sandbox: process 1 of each container is the
// init, bound in read-only, and the guest protocol runs over the container's own
// stdin and stdout.
package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/initbin"
	"sandboxd/internal/driver/queue"
	"sandboxd/internal/isolate"
)

// Config says which engine to use and with what. Only DataDir is required.
type Config struct {
	Host       string // address of the engine, as DOCKER_HOST; empty for the default socket
	DataDir    string // holds bin/; names the driver's containers among those of other servers
	RunDir     string // files bound into containers; private to root; empty for run/docker of DataDir
	Image      string // of environments that name none
	OCIRuntime string // of environments that name none; empty for the engine's default
	// Patience bounds one call to the engine, 30 s by default. A pull is not bounded.
	Patience time.Duration
	Log      *slog.Logger
}

// The labels of a container. The first one's key is the product's name, so that
// an operator finds every container of ours by it.
const (
	labelID         = "sandboxd"
	labelData       = "sandboxd.data" // which data directory, as a hash
	labelGeneration = "sandboxd.generation"
)

// Driver runs environments as containers. Make it with New.
type Driver struct {
	cfg     Config
	engine  *engine
	init    *initbin.Place
	events  *queue.Queue
	data    string // value of labelData
	bootID  string
	seccomp []byte // program that the init loads
	profile string // the engine's form of it

	ctx      context.Context // of what outlives calls; ends with Close
	cancel   context.CancelFunc
	work     sync.WaitGroup
	watching watching

	mu     sync.Mutex
	closed bool
	envs   map[string]*environment
}

var (
	_ sandboxd.Driver      = (*Driver)(nil)
	_ sandboxd.Images      = (*Driver)(nil)
	_ sandboxd.MemoryKills = (*Driver)(nil)
)

// environment is one that this driver started or adopted, or the place of one that
// is being started, adopted or stopped. Of those three one goes on at a time.
type environment struct {
	id         string
	generation int64
	limits     sandboxd.Limits
	container  string        // under Driver.mu; empty until there is one
	made       string        // the container's label of its generation, if it was kept from an earlier one
	live       bool          // under Driver.mu: started or adopted, also when it has ended since
	died       bool          // under Driver.mu: ended before it was live
	environ    []string      // under Driver.mu
	started    time.Time     // by our clock; zero when adopted. Under Driver.mu until there is a container
	stopping   bool          // under Driver.mu
	busy       chan struct{} // under Driver.mu: not nil while one goes on, closed after it
	ended      chan struct{}
	ending     *sandboxd.Ending // once ended is closed and it ended by itself

	// Under Driver.mu: what the engine told of it.
	outOfMemory int64 // kills for memory
	signal      string
	conn        *attached // the newest
	fresh       bool      // conn was made by Start and is nobody's yet
}

// New makes a driver. It talks to nobody yet; what is missing is said by
// Fingerprint and Start.
func New(cfg Config) (*Driver, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Patience <= 0 {
		cfg.Patience = 30 * time.Second
	}
	var err error
	if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
		return nil, err
	}
	if cfg.RunDir == "" {
		cfg.RunDir = filepath.Join(cfg.DataDir, "run", "docker")
	}
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	d := &Driver{cfg: cfg, init: initbin.ReadableIn(filepath.Join(cfg.DataDir, "bin")), events: queue.New(),
		envs: map[string]*environment{}}
	if d.engine, err = newEngine(cfg.Host, cfg.Patience); err != nil {
		return nil, err
	}
	if d.seccomp, err = isolate.Seccomp(); err != nil {
		return nil, err
	}
	profile, err := isolate.Profile()
	if err != nil {
		return nil, err
	}
	d.profile = string(profile)
	sum := sha256.Sum256([]byte(cfg.DataDir))
	d.data = hex.EncodeToString(sum[:8])
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil && len(boot) >= 36 {
		d.bootID = string(boot[:36])
	}
	d.watching.retry, d.watching.news = make(chan struct{}, 1), make(chan struct{})
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// Name is "docker".
func (d *Driver) Name() string { return "docker" }

// Events is sandboxd.Driver's.
func (d *Driver) Events() <-chan sandboxd.DriverEvent { return d.events.Out() }

// Close lets go of every environment; they live on.
func (d *Driver) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	envs := d.envs
	d.envs = map[string]*environment{}
	var conns []*attached
	for _, e := range envs {
		if e.conn != nil {
			conns = append(conns, e.conn)
		}
	}
	d.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	d.cancel()
	d.work.Wait()
	d.events.Close()
	return d.engine.close()
}

var errClosed = sandboxd.Errorf(sandboxd.ClassUnavailable, "the driver is closed")

func containerName(id string) string { return "sandboxd-" + id }

// release ends what holds an environment's place; without keep the place is free.
func (d *Driver) release(e *environment, keep bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !keep && d.envs[e.id] == e {
		delete(d.envs, e.id)
	}
	close(e.busy)
	e.busy = nil
}

// running answers an environment that this driver holds, started and not ended.
func (d *Driver) running(id string) (*environment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.envs[id]
	if e == nil || !e.live || e.stopping {
		return nil, gone(id)
	}
	select {
	case <-e.ended:
		return nil, gone(id)
	default:
		return e, nil
	}
}

func gone(id string) error {
	return sandboxd.Errorf(sandboxd.ClassGone, "sandbox %s has no environment here", id)
}

// Connect is sandboxd.Driver's. The connection that Start made is the first one's.
func (d *Driver) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	e, err := d.running(id)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	older := e.conn
	if older != nil && e.fresh {
		e.fresh = false
		d.mu.Unlock()
		return older, nil
	}
	e.conn = nil
	d.mu.Unlock()
	if older != nil {
		older.Close() // of several attached, one that does not read would stall all
	}
	conn, err := d.engine.attach(ctx, e.container)
	if err != nil {
		if d.look(ctx, e) {
			return nil, gone(id)
		}
		return nil, err
	}
	conn.continued = true
	d.mu.Lock()
	defer d.mu.Unlock()
	newer := e.conn
	select {
	case <-e.ended:
		conn.Close()
		return nil, gone(id)
	default:
	}
	if d.closed || e.stopping {
		conn.Close()
		return nil, gone(id)
	}
	if newer != nil {
		newer.Close()
	}
	e.conn = conn
	return conn, nil
}

// Inspect is sandboxd.Driver's.
func (d *Driver) Inspect(_ context.Context, id string) (sandboxd.EnvironmentStatus, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.envs[id]
	if e == nil || !e.live {
		return sandboxd.EnvironmentStatus{}, sandboxd.Errorf(sandboxd.ClassNotFound, "the docker driver knows no sandbox %s", id)
	}
	select {
	case <-e.ended:
		return sandboxd.EnvironmentStatus{Ending: e.ending}, nil
	default:
		return sandboxd.EnvironmentStatus{Running: true}, nil
	}
}

// List is sandboxd.Driver's: what has our labels.
func (d *Driver) List(ctx context.Context) ([]string, error) {
	found, err := d.engine.list(ctx, d.data)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(found))
	for _, c := range found {
		if id := c.Labels[labelID]; sandboxd.ValidID(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// DefaultImage is sandboxd.Images'.
func (d *Driver) DefaultImage() string { return d.cfg.Image }

// Environ is sandboxd.Images'.
func (d *Driver) Environ(id string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.envs[id]; e != nil {
		return e.environ
	}
	return nil
}

// MemoryKills is sandboxd.MemoryKills'.
func (d *Driver) MemoryKills(id string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.envs[id]; e != nil {
		return e.outOfMemory
	}
	return 0
}

// Stop is sandboxd.Driver's. It waits for a start that goes on; once begun it is
// not interrupted by ctx: half an environment is no state.
func (d *Driver) Stop(ctx context.Context, id string) error {
	if !sandboxd.ValidID(id) {
		return sandboxd.Invalid("id", "no sandbox has this id")
	}
	e, err := d.hold(ctx, id)
	if err != nil {
		return err
	}
	err = d.clean(context.WithoutCancel(ctx), id)
	if err == nil {
		d.finish(e, nil)
	}
	d.release(e, err != nil && e.live)
	return err
}

// hold takes the place of an id for Stop, when nothing else has it.
func (d *Driver) hold(ctx context.Context, id string) (*environment, error) {
	for {
		d.mu.Lock()
		e := d.envs[id]
		if e == nil {
			e = &environment{id: id, ended: make(chan struct{})}
			d.envs[id] = e
		}
		busy := e.busy
		if busy == nil {
			e.busy, e.stopping = make(chan struct{}), true
		}
		d.mu.Unlock()
		if busy == nil {
			return e, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the sandbox is just being started or stopped")
		}
	}
}

// clean removes the container of an id, running or not, and our files of it.
func (d *Driver) clean(ctx context.Context, id string) error {
	if err := d.engine.remove(ctx, containerName(id)); err != nil {
		return err
	}
	return os.RemoveAll(d.filesOf(id))
}

// finish ends an environment here. ending is nil when it was asked for. It says
// whether this call was the one.
func (d *Driver) finish(e *environment, ending *sandboxd.Ending) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-e.ended:
		return false
	default:
	}
	if ending != nil && (e.stopping || d.closed) {
		return false
	}
	e.ending = ending
	close(e.ended)
	if e.conn != nil {
		e.conn.Close()
		e.conn = nil
	}
	return true
}
