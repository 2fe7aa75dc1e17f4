// Package host is the embedded implementation of sandboxd.Host: admission,
// lifecycle, commands, files and journals of one machine, over drivers that only
// make environments. It decides nothing about tenants or callers and speaks no
// HTTP.
//
// One box stands for one id and serialises its lifecycle; one environment stands
// for one generation of it and owns the link to the init and the commands that
// run there. Every intent is in the store before a driver is asked, and confirmed
// after, so that reconcile can tell at start what was half done.
package host

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/admission"
	"sandboxd/internal/clock"
	"sandboxd/internal/egress"
	"sandboxd/internal/pace"
	"sandboxd/internal/policy"
	"sandboxd/internal/pressure"
	"sandboxd/internal/workspace"
)

// Config is what a host is made of. DataDir, Store and Drivers are required.
type Config struct {
	DataDir string
	Store   sandboxd.HostStore
	// Drivers that work here; the first one is the default.
	Drivers []sandboxd.Driver
	// Workspaces is where the files of sandboxes are, as workspace.Places has it; empty
	// for the data directory.
	Workspaces string
	// UIDs are given to workspaces, one each.
	UIDs sandboxd.UIDPool
	// Policy is what the host begins with; nil means sandboxd.DefaultPolicy. What
	// callers changed holds above it, and the fields of the file Overrides above that.
	Policy    *sandboxd.Policy
	Overrides string
	// OverrideWords is policy.Config.Words.
	OverrideWords func(text []byte) ([]byte, error)
	// MaxSandboxes, if not 0, is Policy.MaxRunning.
	MaxSandboxes int
	// Tick is how often the host looks whether sandboxes work. 0 follows the policy.
	Tick time.Duration
	// Ready is how many environments each driver that has a pool may keep ready, as
	// long as there are places for them. 0 means none.
	Ready int
	// Images lets callers name an image and an OCI runtime, where a driver has them, and
	// bring images.
	Images bool
	// Runtimes is the catalogue; nil means the runtime machine alone.
	Runtimes sandboxd.Runtimes
	// Capabilities are what the drivers can do, by their names; what is not said of a
	// driver it cannot do for a runtime of the catalogue.
	Capabilities map[string]sandboxd.Capabilities
	// Bridge lets callers have the network bridge, where a driver has it.
	Bridge bool
	// OrphanGrace is how long an environment that no record explains is left alone
	// after start. 0 means 30 s.
	OrphanGrace time.Duration
	// Egress connects what sandboxes with a proxy ask for. Nil means one that lets
	// public addresses through and no others; the host closes only that.
	Egress *egress.Proxy
	// CABundle is a file of certificates that every sandbox is shown; "" for none.
	// With Trust its commands are told to use it, instead of what they know.
	CABundle string
	Trust    bool
	// Pressure, if not nil, reads the machine's memory; sandboxes are ended while it
	// runs short.
	Pressure func() (pressure.Reading, error)
	// Clock tells the moments that are kept. nil means this machine's.
	Clock clock.Clock
	Log   *slog.Logger
}

// Host implements sandboxd.Host. Methods are safe for concurrent use.
type Host struct {
	cfg     Config
	store   sandboxd.HostStore
	root    *workspace.Root
	drivers map[string]sandboxd.Driver
	log     *slog.Logger
	clock   clock.Clock
	began   time.Time
	looking chan struct{} // holds one token while a home is measured
	late    chan struct{} // holds one token while what is overdue by a clock.Leap is ended

	ctx    context.Context // ends with Close; work already begun runs on it
	cancel context.CancelFunc
	work   sync.WaitGroup

	policy *policy.Kept
	gate   *admission.Gate
	left   clock.Moment  // when the former host looked at its sandboxes for the last time
	retick chan struct{} // has a token when the policy changed

	naming      keyLocks
	flow        flow
	opening     turns           // one open of a key at a time
	former      map[string]bool // ids that were there when the host began; set once
	closeEgress func() error

	mu      sync.Mutex
	boxes   map[string]*box
	adapted *sandboxd.Policy // whose limits environments were given last; nil before the first time
	ready   map[string]int   // what each driver was told last that it may keep ready
	// pooling is set when every sandbox has its true state: before that nobody knows
	// how many places are free.
	pooling bool
}

var (
	_ sandboxd.Host      = (*Host)(nil)
	_ sandboxd.ImageHost = (*Host)(nil)
)

// New opens the host and reconciles: what a former process left running is
// adopted, what it left half-made is finished or cleaned up. It returns when
// every sandbox has its true state.
func New(ctx context.Context, cfg Config) (*Host, error) {
	if len(cfg.Drivers) == 0 {
		return nil, sandboxd.Errorf(sandboxd.ClassUnavailable, "no driver works here")
	}
	if cfg.OrphanGrace == 0 {
		cfg.OrphanGrace = 30 * time.Second
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Machine
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	root, err := workspace.OpenRoot(workspace.Places(cfg.DataDir, cfg.Workspaces))
	if err != nil {
		return nil, fmt.Errorf("workspaces: %w", err)
	}
	closeEgress := func() error { return nil }
	if cfg.Egress == nil {
		cfg.Egress = egress.New(egress.Config{})
		closeEgress = cfg.Egress.Close
	}
	proven := make(chan error, 1)
	go func() { proven <- root.ProveOwners(cfg.UIDs) }()
	h := &Host{
		closeEgress: closeEgress,
		cfg:         cfg, store: cfg.Store, root: root, log: cfg.Log, clock: cfg.Clock, began: time.Now(), late: make(chan struct{}, 1), looking: make(chan struct{}, 1),
		drivers: map[string]sandboxd.Driver{},
		boxes:   map[string]*box{}, ready: map[string]int{}, retick: make(chan struct{}, 1),
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	for _, d := range cfg.Drivers {
		h.drivers[d.Name()] = d
	}
	err = errors.Join(h.openPolicy(ctx), h.readLeft(ctx))
	if err == nil {
		err = h.reconcile(ctx)
	}
	if err := errors.Join(err, <-proven); err != nil {
		h.Close()
		return nil, err
	}
	for _, d := range cfg.Drivers {
		h.spawn(func() { h.watch(d) })
	}
	h.mu.Lock()
	h.pooling = true
	h.mu.Unlock()
	h.shareRoom()
	h.adapt() // the policy that it was configured with may be another
	h.spawn(h.keepTime)
	if cfg.Pressure != nil {
		h.spawn(h.keepMemory)
	}
	return h, nil
}

// Close lets go of every sandbox without ending any, and waits for what is under
// way. The store and the drivers stay open; they are the caller's.
func (h *Host) Close() error {
	h.cancel()
	for _, b := range h.allBoxes() {
		if env := b.environment(); env != nil {
			env.detach()
		}
		b.closeGate()
	}
	h.work.Wait()
	return h.closeEgress()
}

// StopAll ends every environment; files stay.
func (h *Host) StopAll(ctx context.Context) error {
	recs, err := h.store.List(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(recs))
	var wg sync.WaitGroup
	for i, rec := range recs {
		if !rec.State.HasEnvironment() && rec.State != sandboxd.StatePreparing {
			continue
		}
		wg.Go(func() { _, errs[i] = h.Stop(ctx, rec.ID) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// uptime is the time since the host began, in nanoseconds that nobody can set.
func (h *Host) uptime() int64 { return int64(time.Since(h.began)) }

// spawn runs fn as work that Close waits for.
func (h *Host) spawn(fn func()) { h.work.Go(fn) }

// watch turns a driver's events into endings, until the driver or the host closes.
func (h *Host) watch(d sandboxd.Driver) {
	for {
		select {
		case ev, ok := <-d.Events():
			if !ok {
				return
			}
			h.spawn(func() { h.environmentEnded(ev.ID, ev.Generation, ev.Ending) })
		case <-h.ctx.Done():
			return
		}
	}
}

func (h *Host) allBoxes() []*box {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*box, 0, len(h.boxes))
	for _, b := range h.boxes {
		all = append(all, b)
	}
	return all
}

// boxOf answers the box of a record, making it on first use.
func (h *Host) boxOf(rec sandboxd.SandboxRecord) *box {
	h.mu.Lock()
	defer h.mu.Unlock()
	if b := h.boxes[rec.ID]; b != nil {
		return b
	}
	d := h.drivers[rec.Driver]
	if d == nil {
		d = absent{name: rec.Driver, running: rec.State.HasEnvironment()}
	}
	b := newBox(h, rec, d)
	h.boxes[rec.ID] = b
	return b
}

// up answers the environment of a sandbox that runs and is not being deleted,
// without asking the store: what most commands need.
func (h *Host) up(id string) (*box, *environment) {
	h.mu.Lock()
	b := h.boxes[id]
	h.mu.Unlock()
	if b == nil || b.ctx.Err() != nil {
		return nil, nil
	}
	pace.Serve(b.key)
	return b, b.environment()
}

// lookup finds a living sandbox by id.
func (h *Host) lookup(ctx context.Context, id string) (sandboxd.SandboxRecord, *box, error) {
	rec, err := h.record(ctx, id)
	if err != nil {
		return rec, nil, err
	}
	return rec, h.boxOf(rec), nil
}

// record answers the record of a living sandbox; a deleted one is gone.
func (h *Host) record(ctx context.Context, id string) (sandboxd.SandboxRecord, error) {
	if !sandboxd.ValidID(id) {
		return sandboxd.SandboxRecord{}, sandboxd.Errorf(sandboxd.ClassNotFound, "no such sandbox")
	}
	rec, err := h.store.Get(ctx, id)
	if err != nil {
		return rec, err
	}
	pace.Serve(rec.Key)
	if rec.State == sandboxd.StateDeleting || rec.State == sandboxd.StateDeleted {
		return rec, sandboxd.Errorf(sandboxd.ClassGone, "the sandbox was deleted")
	}
	return rec, nil
}

// Get implements sandboxd.Host.
func (h *Host) Get(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	rec, err := h.record(ctx, id)
	return h.seen(rec), err
}

// List implements sandboxd.Host.
func (h *Host) List(ctx context.Context, key string) ([]sandboxd.Sandbox, error) {
	list := []sandboxd.Sandbox{}
	if key != "" {
		rec, err := h.store.ByKey(ctx, key)
		if sandboxd.ClassOf(err) == sandboxd.ClassNotFound && err != nil {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		return append(list, h.seen(rec)), nil
	}
	pace.Serve("")
	recs, err := h.store.List(ctx)
	if err != nil {
		return nil, err
	}
	p := h.policy.Now()
	for _, rec := range recs {
		if rec.State != sandboxd.StateDeleting {
			list = append(list, h.seenBy(p, rec))
		}
	}
	return list, nil
}

// Files implements sandboxd.Host. It starts nothing.
func (h *Host) Files(ctx context.Context, id string) (sandboxd.Files, error) {
	// Of one that runs the store can say nothing else, at a sixth of a small write's time.
	if b, env := h.up(id); env != nil {
		b.pulse.use(h)
		return b.openFiles()
	}
	rec, b, err := h.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	b.pulse.use(h)
	if rec.State == sandboxd.StateLost {
		return nil, sandboxd.Errorf(sandboxd.ClassUnavailable, "the files of this sandbox are lost")
	}
	return b.openFiles()
}

// keyLocks serialises what happens to the name of a key. Keys share locks; that
// costs a little waiting and nothing else.
type keyLocks [64]sync.Mutex

// lock takes the lock of a key and returns its unlock.
func (k *keyLocks) lock(key string) func() {
	sum := fnv.New32a()
	sum.Write([]byte(key))
	l := &k[sum.Sum32()%uint32(len(k))]
	l.Lock()
	return l.Unlock
}
