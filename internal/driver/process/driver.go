// Package process is the driver that isolates with what the kernel has: its own
// namespaces, cgroups, a user of its own, Landlock and seccomp, and no daemon.
// It is a sandboxd.Driver, sandboxd.Images and, where the machine has cgroups for it,
// sandboxd.CommandGroups. Without root it isolates as well as an ordinary user can;
// see rootless.go. What happens inside the new namespaces is in internal/isolate/setup.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/driver/initbin"
	"sandboxd/internal/driver/names"
	"sandboxd/internal/driver/pool"
	"sandboxd/internal/driver/queue"
	"sandboxd/internal/image"
	"sandboxd/internal/isolate"
)

// Config says where a driver keeps what.
type Config struct {
	DataDir string // names the driver's cgroups; holds bin/ and images/
	RunDir  string // sockets of running environments; private to root
	Log     *slog.Logger
}

// Driver runs environments as trees of processes. Make it with New.
type Driver struct {
	cfg      Config
	groups   *groups // nil when the machine has none
	groupErr error
	names    names.Dir // of environments, in the run directory
	roll     roll      // in place of the groups where there are none
	rootless bool
	seccomp  []byte
	landlock int
	bootID   string
	events   *queue.Queue
	init     *initbin.Place
	images   *image.Store
	weak     weakness
	ready    *pool.Pool[kind, *member]
	sweeping sync.Once

	mu     sync.Mutex
	closed bool
	envs   map[string]*environment
}

// weakness is what sandboxes are started without. It is for the tests that show
// that the selftest finds each missing protection; nothing but a test of this
// package can set it, and so no setting and no variable.
type weakness struct {
	namespaces uintptr  // flags of clone
	steps      []string // of setup.Spec.Without
}

func (w weakness) any() bool { return w.namespaces != 0 || len(w.steps) > 0 }

var (
	_ sandboxd.Driver        = (*Driver)(nil)
	_ sandboxd.CommandGroups = (*Driver)(nil)
	_ sandboxd.Images        = (*Driver)(nil)

	_ sandboxd.EnvironmentPool = (*Driver)(nil)
)

// environment is one that this driver started or adopted, or the place of one that
// is being started, adopted or stopped. Of those three one goes on at a time.
type environment struct {
	id         string
	name       string // of its cgroups, socket and log: the id, or that of the member it was
	generation int64
	limits     sandboxd.Limits // under Driver.mu
	groups     *commandGroups  // nil in the place of one that is only being stopped
	release    func()          // of its image; nil without one
	pid        int
	pidfd      *os.File      // nil until it is started or adopted
	started    time.Time     // by our clock; zero when adopted
	stopping   bool          // under Driver.mu
	busy       chan struct{} // under Driver.mu: not nil while one goes on, closed after it
	ended      chan struct{}
	ending     *sandboxd.Ending // once ended is closed and it ended by itself
}

// New makes a driver. It touches nothing on the machine but its run directory;
// what is missing is said by Fingerprint and Start.
func New(cfg Config) (*Driver, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for _, dir := range []*string{&cfg.DataDir, &cfg.RunDir} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return nil, err
		}
		*dir = abs
	}
	program, err := isolate.Seccomp()
	if err != nil {
		return nil, err
	}
	boot, err := thisBoot()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(cfg.RunDir, rootMount), 0o700); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	d := &Driver{cfg: cfg, seccomp: program, landlock: isolate.LandlockABI(), bootID: boot,
		events: queue.New(), init: initbin.In(filepath.Join(cfg.DataDir, "bin")), images: image.In(filepath.Join(cfg.DataDir, "images"), "process"),
		envs: map[string]*environment{}, rootless: os.Geteuid() != 0, names: names.Dir(cfg.RunDir)}
	d.roll = roll{dir: cfg.RunDir, boot: d.bootID}
	d.groups, d.groupErr = findGroups(cfg.DataDir)
	d.ready = pool.New(pool.Options[kind, *member]{Make: d.makeMember, End: d.endMember, Busy: pool.MachineBusy,
		Failed: func(err error) { cfg.Log.Warn("no environment can be kept ready", "err", err) }})
	return d, nil
}

// Name is "process".
func (d *Driver) Name() string { return "process" }

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
	d.mu.Unlock()
	for _, e := range envs {
		e.letGo()
	}
	d.ready.Close()
	d.events.Close()
	if d.groups != nil {
		d.groups.removeBase() // stays while a sandbox is in it
	}
	return nil
}

// letGo closes what is open of an environment, which lives on or has ended.
func (e *environment) letGo() {
	if e.pidfd != nil {
		e.pidfd.Close()
	}
	if e.groups != nil {
		e.groups.close()
	}
	if e.release != nil {
		e.release()
		e.release = nil
	}
}

var errClosed = sandboxd.Errorf(sandboxd.ClassUnavailable, "the driver is closed")

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
	if e == nil || e.pidfd == nil || e.stopping {
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

// Connect is sandboxd.Driver's.
func (d *Driver) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	e, err := d.running(id)
	if err != nil {
		return nil, err
	}
	conn, err := d.dial(ctx, e.name)
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassGone, err, "the sandbox's init does not answer")
	}
	if pid, err := peer(conn); err != nil || pid != e.pid {
		conn.Close()
		return nil, sandboxd.Wrap(sandboxd.ClassGone, err, "somebody else answers in the init's place")
	}
	return conn, nil
}

// dial goes through a descriptor of the run directory: the path of a socket may
// have 107 bytes only.
func (d *Driver) dial(ctx context.Context, name string) (*net.UnixConn, error) {
	dir, err := unix.Open(d.cfg.RunDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir, socketName(name)))
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

func socketName(name string) string { return name + ".sock" }

// peer is the process that listens on the other side.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) { cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if serr != nil {
		return 0, serr
	}
	return int(cred.Pid), nil
}

// Inspect is sandboxd.Driver's.
func (d *Driver) Inspect(_ context.Context, id string) (sandboxd.EnvironmentStatus, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.envs[id]
	if e == nil || e.pidfd == nil {
		return sandboxd.EnvironmentStatus{}, sandboxd.Errorf(sandboxd.ClassNotFound, "the process driver knows no sandbox %s", id)
	}
	select {
	case <-e.ended:
		return sandboxd.EnvironmentStatus{Ending: e.ending}, nil
	default:
		return sandboxd.EnvironmentStatus{Running: true}, nil
	}
}

// List is sandboxd.Driver's: what has cgroups of this data directory.
func (d *Driver) List(context.Context) ([]string, error) {
	list := d.roll.list
	if d.groups != nil {
		list = d.groups.list
	}
	found, err := list()
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "read what environments there are")
	}
	linked, err := d.names.IDs()
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "read the run directory")
	}
	ids := found[:0]
	for _, name := range found {
		if id := linked[name]; id != "" {
			name = id
		}
		if sandboxd.ValidID(name) {
			ids = append(ids, name)
		}
	}
	return ids, nil
}

// stopTime bounds the wait for processes that were sent SIGKILL.
const stopTime = 5 * time.Second

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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	err = d.stop(ctx, e)
	keep := err != nil && e.pidfd != nil
	d.release(e, keep)
	if !keep {
		e.letGo()
	}
	return err
}

// hold takes the place of an id for Stop, when nothing else has it.
func (d *Driver) hold(ctx context.Context, id string) (*environment, error) {
	for {
		d.mu.Lock()
		e := d.envs[id]
		if e == nil {
			e = &environment{id: id, name: d.names.Of(id)}
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

func (d *Driver) stop(ctx context.Context, e *environment) error {
	if e.pidfd != nil {
		signalPidfd(e.pidfd, unix.SIGKILL)
		select {
		case <-e.ended:
		case <-ctx.Done():
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "the sandbox's processes do not end")
		}
	}
	if err := d.clear(ctx, e.id); err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "remove what the sandbox left")
	}
	return nil
}

// nameOf answers the name of an environment that may be held here.
func (d *Driver) nameOf(id string) string {
	d.mu.Lock()
	e := d.envs[id]
	name := ""
	if e != nil {
		name = e.name
	}
	d.mu.Unlock()
	if name == "" {
		name = d.names.Of(id)
	}
	return name
}

// clear removes all that there is of an id.
func (d *Driver) clear(ctx context.Context, id string) error {
	return d.names.Clear(id, func(name string) error { return d.clean(ctx, name) })
}

// clean ends what is left of an environment and removes its cgroups and files.
// All mounts went with the last process.
func (d *Driver) clean(ctx context.Context, name string) error {
	var errs []error
	kill, remove := d.roll.kill, d.roll.remove
	if d.groups != nil {
		kill, remove = d.groups.kill, d.groups.remove
	}
	if err := kill(ctx, name); err != nil {
		errs = append(errs, err)
	} else if err := remove(ctx, name); err != nil {
		errs = append(errs, err)
	}
	for _, file := range []string{socketName(name), logName(name)} {
		if err := os.Remove(filepath.Join(d.cfg.RunDir, file)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func signalPidfd(f *os.File, sig unix.Signal) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { unix.PidfdSendSignal(int(fd), sig, nil, 0) })
}
