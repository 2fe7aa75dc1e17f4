package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/driver/names"
	"sandboxd/internal/failpoint"
	"sandboxd/internal/isolate"
	"sandboxd/internal/isolate/setup"
)

// The places between the steps by which a member of the pool becomes a sandbox's.
var (
	fpMemberMade   = failpoint.New("docker.pool.made")
	fpMemberTaken  = failpoint.New("docker.pool.taken")
	fpMemberLinked = failpoint.New("docker.pool.linked")
	fpMemberPlaced = failpoint.New("docker.pool.placed")
	fpMemberOrders = failpoint.New("docker.pool.orders")
	fpMemberHanded = failpoint.New("docker.pool.handed")
)

const (
	// endTime bounds the end of a member, and of its making when the driver is closed.
	endTime = 5 * time.Second
	// sweepPause is between two tries to remove what a dead server left.
	sweepPause = 10 * time.Second
)

// kind is what of an environment is settled before its sandbox is known: the init's
// program, the image by its id, since a reference may come to mean another, and the
// specification without what differs from one sandbox to the next.
type kind struct {
	program string
	image   string
	spec    sandboxd.EnvironmentSpec
}

func kindOf(program string, img image, spec sandboxd.EnvironmentSpec) kind {
	spec.ID, spec.Generation, spec.Workspace, spec.Home, spec.Seed, spec.UID, spec.Nonce, spec.Tenant = "", 0, "", "", nil, 0, "", ""
	spec.Limits.HomeBytes = 0 // the host's to enforce
	spec.Limits.OpenFiles = 0 // told at the hand-over
	return kind{program: program, image: img.id, spec: spec}
}

// member is a container that runs and waits to learn whose it is. In the places of
// the workspace and the home it has empty directories, and its init may become any
// user. A container that stopped would get the empty directories again: none of ours is
// ever started twice.
type member struct {
	name      string
	container string
	conn      *attached
	pidfd     int // of its process 1
	places    []place
	seen      container.InspectResponse // once it ran
}

// world is what decides whether a container takes mounts once it runs: its OCI runtime,
// which may run it on another kernel, and its image, by its id, in which a place may lead
// to another one.
type world struct{ runtime, image string }

// pools says whether containers may be kept ready: only root can attach a mount to one
// that runs.
func (d *Driver) pools(w world) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return os.Geteuid() == 0 && !d.unpooled[w]
}

// giveUp keeps no container of a world ready any more, unless what failed did so because
// it had ended.
func (d *Driver) giveUp(ctx context.Context, m *member, w world) {
	seen, err := d.engine.inspect(ctx, m.container)
	if err != nil || !seen.State.Running || seen.State.Pid != m.seen.State.Pid {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unpooled[w] = true
}

// KeepReady is sandboxd.EnvironmentPool's.
func (d *Driver) KeepReady(n int) {
	d.mu.Lock()
	if !d.closed {
		d.sweeping.Do(func() { d.work.Go(d.sweepMembers) })
	}
	d.mu.Unlock()
	d.ready.Limit(n)
}

// take answers a ready container that suits.
func (d *Driver) take(ctx context.Context, spec sandboxd.EnvironmentSpec, img image) (*member, bool) {
	if spec.Bridge || spec.WritableRoot || spec.Kept || strings.HasPrefix(spec.Image, probeImage+":") || !d.pools(world{spec.OCIRuntime, img.id}) {
		return nil, false // a network is joined at the start, what is kept is started twice, and what is only tried is not asked for
	}
	program, err := d.init.Install(ctx)
	if err != nil {
		return nil, false
	}
	k := kindOf(program, img, spec)
	d.ready.Forget(func(old kind) bool { return old.spec.Image == k.spec.Image && old.image != k.image })
	return d.ready.Take(k)
}

// makeReady is the pool's.
func (d *Driver) makeReady(ctx context.Context, k kind) (*member, error) {
	m, err := d.makeMember(ctx, k)
	if err == nil {
		fpMemberMade.Hit()
	}
	return m, err
}

// makeMember makes one. What an engine has begun to make is waited for, so that it
// can be removed.
func (d *Driver) makeMember(ctx context.Context, k kind) (*member, error) {
	if !d.pools(world{k.spec.OCIRuntime, k.image}) {
		return nil, errNoMounts
	}
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(endTime, cancel) })()
	m := &member{name: d.own + sandboxd.NewID(), pidfd: -1}
	if err := d.build(patient, m, k); err != nil {
		if errors.Is(err, errNoMounts) {
			d.giveUp(patient, m, world{k.spec.OCIRuntime, k.image})
		}
		d.endMember(m)
		return nil, err
	}
	return m, nil
}

func (d *Driver) memberFailed(err error) {
	d.cfg.Log.Warn("no container can be kept ready", "err", err)
}

func (d *Driver) build(ctx context.Context, m *member, k kind) error {
	img, err := d.image(ctx, k.image)
	if err != nil {
		return err
	}
	spec, files := k.spec, d.filesOf(m.name)
	spec.ID, spec.Workspace, spec.Home = m.name, filepath.Join(files, "workspace"), filepath.Join(files, "home")
	for dir, target := range map[string]string{spec.Workspace: sandboxd.WorkDir, spec.Home: sandboxd.HomeDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		p, err := placeOf(dir, target)
		if err != nil {
			return err
		}
		m.places = append(m.places, p)
	}
	if m.container, err = d.create(ctx, spec, img, "none"); err != nil {
		return err
	}
	if m.conn, err = d.engine.attach(ctx, m.container); err != nil {
		return err
	}
	if err := d.engine.start(ctx, m.container); err != nil {
		return d.explainStart(err, spec)
	}
	if err := speak(ctx, m.conn, func() error { return nil }); err != nil {
		return err
	}
	if m.seen, err = d.engine.inspect(ctx, m.container); err != nil {
		return err
	}
	if m.pidfd, err = unix.PidfdOpen(m.seen.State.Pid, 0); err != nil {
		m.pidfd = -1
		return fmt.Errorf("%w: its process is not on this machine", errNoMounts)
	}
	return m.attach(nil)
}

// waiting makes a container one whose init waits: as root, with the right to become
// another user, whose files nobody may change.
func waiting(opts *client.ContainerCreateOptions) {
	opts.Config.Entrypoint = []string{initPath, setup.ArgWaiting}
	opts.HostConfig.CapAdd = []string{"SETUID", "SETGID", "SETPCAP"}
	for i := range opts.HostConfig.Mounts {
		opts.HostConfig.Mounts[i].ReadOnly = true
	}
}

// endMember is the pool's.
func (d *Driver) endMember(m *member) {
	m.letGo()
	if m.conn != nil {
		m.conn.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	if err := d.clean(ctx, m.name); err != nil {
		d.cfg.Log.Error("a container that was kept ready is left", "name", m.name, "err", err)
	}
}

func (m *member) letGo() {
	if m.pidfd >= 0 {
		unix.Close(m.pidfd)
		m.pidfd = -1
	}
}

// handOver gives a member to the sandbox of spec, or ends it. When it fails, nothing
// of it is left, and e is as before.
func (d *Driver) handOver(ctx context.Context, e *environment, m *member, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	fpMemberTaken.Hit()
	d.mu.Lock()
	e.name, e.container = m.name, m.container // what happens to it from here on is the sandbox's
	d.mu.Unlock()
	err := d.give(ctx, m, spec)
	if err == nil {
		err = d.commit(e, m.conn)
	}
	if err == nil {
		d.findRefusals(e, m.seen, false)
		close(e.looked)
		m.letGo()
		fpMemberHanded.Hit()
		return d.handleOf(e, spec)
	}
	d.endMember(m)
	d.mu.Lock()
	e.name, e.container = e.id, ""
	e.died, e.outOfMemory, e.signal = false, 0, ""
	d.mu.Unlock()
	return nil, errors.Join(err, d.names.Unlink(spec.ID))
}

// give attaches the sandbox's files, says who it is and hears that the init has become
// its process 1.
func (d *Driver) give(ctx context.Context, m *member, spec sandboxd.EnvironmentSpec) error {
	trees := make([]int, 0, len(m.places))
	defer func() {
		for _, tree := range trees {
			unix.Close(tree)
		}
	}()
	for _, p := range m.places {
		dir := spec.Workspace
		if p.target == sandboxd.HomeDir {
			dir = spec.Home
		}
		tree, err := isolate.Detached(dir)
		if err != nil {
			return err
		}
		trees = append(trees, tree)
	}
	if err := writeFiles(d.filesOf(m.name), spec.UID); err != nil {
		return err
	}
	if err := d.names.Link(spec.ID, m.name); err != nil {
		return err
	}
	fpMemberLinked.Hit()
	if err := m.attach(trees); err != nil {
		return err
	}
	fpMemberPlaced.Hit()
	if err := setup.WriteMessage(m.conn, setup.Orders{UID: spec.UID}); err != nil {
		return err
	}
	fpMemberOrders.Hit()
	return d.greet(ctx, m.conn, spec)
}

// sweepMembers removes what members of a dead server left: those end only when nobody
// came for long. One that was being handed over is its sandbox's. Without an engine it
// is tried again.
func (d *Driver) sweepMembers() {
	for {
		err := d.sweepOnce()
		if err == nil || d.ctx.Err() != nil {
			return
		}
		d.cfg.Log.Warn("containers that were kept ready cannot be looked for", "err", err)
		select {
		case <-time.After(sweepPause):
		case <-d.ctx.Done():
			return
		}
	}
}

func (d *Driver) sweepOnce() error {
	found, err := d.engine.list(d.ctx, labelData+"="+d.data)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(d.cfg.RunDir)
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, c := range found {
		left[c.Labels[labelID]] = true
	}
	for _, e := range entries {
		left[e.Name()] = true
	}
	linked, err := d.names.IDs()
	if err != nil {
		return err
	}
	var errs []error
	for name := range left {
		if names.IsMember(name) && linked[name] == "" && !strings.HasPrefix(name, d.own) {
			errs = append(errs, d.clean(d.ctx, name))
		}
	}
	return errors.Join(errs...)
}
