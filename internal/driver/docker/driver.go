// Package docker is the driver that isolates with containers of a container
// engine: any image, under runc, gVisor or another OCI runtime. It is a
// sandboxd.Driver, sandboxd.Images, sandboxd.ImagePuller, sandboxd.Bridges, sandboxd.MemoryKills,
// sandboxd.ProcessRefusals and, where it can put a sandbox's files into a container that
// runs, sandboxd.EnvironmentPool. It speaks to the engine by its API alone,
// never runs anything in a container through it, and passes no path or process of
// the machine but the directories of a sandbox: process 1 of each container is the
// init, bound in read-only, and the guest protocol runs over the container's own
// stdin and stdout.
package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/initbin"
	"sandboxd/internal/driver/names"
	"sandboxd/internal/driver/pool"
	"sandboxd/internal/driver/queue"
	"sandboxd/internal/isolate"
)

// Config says which engine to use and with what. Only DataDir is required.
type Config struct {
	Host       string // address of the engine, as DOCKER_HOST; empty for the default socket
	DataDir    string // holds bin/; names the driver's containers among those of other servers
	Scratch    string // where workspaces are, to see whether the engine sees it; empty for DataDir
	RunDir     string // files bound into containers; private to root; empty for run/docker of DataDir
	Image      string // of environments that name none
	OCIRuntime string // of environments that name none; empty for the engine's default
	// Bridge offers environments a bridge, and Closed are the IPv4 prefixes that nobody
	// on one reaches.
	Bridge bool
	Closed []netip.Prefix
	// Patience bounds one call to the engine, 30 s by default. A pull is not bounded.
	Patience time.Duration
	Log      *slog.Logger
}

func (c Config) patience() time.Duration {
	if c.Patience <= 0 {
		return 30 * time.Second
	}
	return c.Patience
}

// The labels of a container. The first one's key is the product's name, so that
// an operator finds every container of ours by it.
const (
	labelID         = "sandboxd"
	labelData       = "sandboxd.data" // which data directory, as a hash
	labelGeneration = "sandboxd.generation"
	labelImage      = "sandboxd.image"   // of an imported image: its name
	labelNetwork    = "sandboxd.network" // name of the network, of one that has a bridge
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
	ready    *pool.Pool[kind, *member]
	names    names.Dir // of containers, in the run directory
	own      string    // begins the names of this server's members
	sweeping sync.Once
	bridges  *bridges
	seeding  chan struct{} // holds a token while a seed is being made

	mu       sync.Mutex
	closed   bool
	envs     map[string]*environment
	unpooled map[world]bool // whose containers take no mounts of ours
}

var (
	_ sandboxd.Driver      = (*Driver)(nil)
	_ sandboxd.Images      = (*Driver)(nil)
	_ sandboxd.ImagePuller = (*Driver)(nil)
	_ sandboxd.Bridges     = (*Driver)(nil)
	_ sandboxd.MemoryKills = (*Driver)(nil)

	_ sandboxd.ProcessRefusals = (*Driver)(nil)
	_ sandboxd.EnvironmentPool = (*Driver)(nil)
)

// environment is one that this driver started or adopted, or the place of one that
// is being started, adopted or stopped. Of those three one goes on at a time.
type environment struct {
	id         string
	name       string // of its container and files: the id, or that of the member it was
	generation int64
	limits     sandboxd.Limits
	container  string        // under Driver.mu; empty until there is one
	made       string        // the container's label of its generation, if it was kept from an earlier one
	live       bool          // under Driver.mu: started or adopted, also when it has ended since
	died       bool          // under Driver.mu: ended before it was live
	environ    []string      // under Driver.mu
	looked     chan struct{} // closed when refusals is what it will be
	refusals   refusals      // once looked is closed
	process1   int           // its number on this machine, 0 where it has none; once looked is closed
	kernel     int           // of gVisor, likewise
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
	cfg.Patience = cfg.patience()
	var err error
	if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err != nil {
		return nil, err
	}
	if cfg.RunDir == "" {
		cfg.RunDir = filepath.Join(cfg.DataDir, "run", "docker")
	}
	if err := errors.Join(os.MkdirAll(cfg.DataDir, 0o700), os.MkdirAll(cfg.RunDir, 0o700)); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	d := &Driver{cfg: cfg, init: initbin.ReadableIn(filepath.Join(cfg.DataDir, "bin")), events: queue.New(),
		envs: map[string]*environment{}, unpooled: map[world]bool{}, seeding: make(chan struct{}, 1), names: names.Dir(cfg.RunDir), own: names.MemberPrefix + sandboxd.NewID()[:8] + "-"}
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
	if d.data, err = DataID(cfg.DataDir); err != nil {
		return nil, err
	}
	d.bridges = newBridges(cfg.Closed, d.data)
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil && len(boot) >= 36 {
		d.bootID = string(boot[:36])
	}
	d.watching.retry, d.watching.news = make(chan struct{}, 1), make(chan struct{})
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.ready = pool.New(pool.Options[kind, *member]{Make: d.makeReady, End: d.endMember, Busy: pool.MachineBusy, Failed: d.memberFailed})
	return d, nil
}

// DataID is what everything is labelled with that the server of a data directory has on
// an engine, so that servers can share one. The directory need not be there yet.
func DataID(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// Without links: the directory by another name has the same containers.
	real, err := filepath.EvalSymlinks(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		real = dir
	case err != nil:
		return "", err
	}
	sum := sha256.Sum256([]byte(real))
	return hex.EncodeToString(sum[:8]), nil
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
	d.ready.Close()
	d.cancel()
	d.work.Wait()
	d.events.Close()
	return d.engine.close()
}

var errClosed = sandboxd.Errorf(sandboxd.ClassUnavailable, "the driver is closed")

// containerName tells a person whose a container is. Nothing is found by it: a copy of
// the data directory has the same ids.
func (d *Driver) containerName(id string) string { return "sandboxd-" + id + "-" + d.data[:8] }

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
	found, err := d.engine.list(ctx, labelData+"="+d.data)
	if err != nil {
		return nil, err
	}
	linked, err := d.names.IDs()
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "read the run directory")
	}
	ids := make([]string, 0, len(found))
	for _, c := range found {
		id := c.Labels[labelID]
		if names.IsMember(id) {
			id = linked[id]
		}
		if sandboxd.ValidID(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// ChooseImage is sandboxd.Images'. An image that is not here may be pulled by a start,
// and which OCI runtimes there are the engine says then.
func (d *Driver) ChooseImage(image, _ string) (string, error) {
	if image = cmp.Or(image, d.cfg.Image); image == "" {
		return "", sandboxd.Invalid("image", "the docker driver needs an image").
			WithHint("name one in the request, or start the server with --default-image")
	}
	return image, nil
}

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
	err = d.clear(context.WithoutCancel(ctx), id)
	if err == nil {
		d.finish(e, nil)
	}
	d.release(e, err != nil && e.live)
	return err
}

// clear removes all that there is of an id.
func (d *Driver) clear(ctx context.Context, id string) error {
	return d.names.Clear(id, func(name string) error { return d.clean(ctx, name) })
}

// hold takes the place of an id for Stop, when nothing else has it.
func (d *Driver) hold(ctx context.Context, id string) (*environment, error) {
	for {
		d.mu.Lock()
		e := d.envs[id]
		if e == nil {
			e = &environment{id: id, name: d.names.Of(id), ended: make(chan struct{})}
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

// clean removes the container of an id, running or not, and our files of it. Which
// one is ours, the labels say: a server on a copy of the data directory has the same
// ids and other containers.
func (d *Driver) clean(ctx context.Context, id string) error {
	found, err := d.engine.list(ctx, labelData+"="+d.data, labelID+"="+id)
	if err != nil {
		return err
	}
	networked := false
	for _, c := range found {
		if err := d.engine.remove(ctx, c.ID); err != nil {
			return err
		}
		networked = networked || c.Labels[labelNetwork] != ""
	}
	if err := d.leave(ctx, id, networked); err != nil {
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
