package process

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/driver/names"
	"sandboxd/internal/failpoint"
	"sandboxd/internal/isolate"
	"sandboxd/internal/isolate/setup"
)

// The places between the steps by which a member of the pool becomes a sandbox's.
var (
	fpMemberMade   = failpoint.New("pool.made")
	fpMemberTaken  = failpoint.New("pool.taken")
	fpMemberLinked = failpoint.New("pool.linked")
	fpMemberOrders = failpoint.New("pool.orders")
	fpMemberHanded = failpoint.New("pool.handed")
)

// kind is what of an environment is settled before its sandbox is known: the init's
// program, and the specification without what differs from one sandbox to the next.
// What a driver fixes when it is made, its root and its seccomp program, is the same
// for all of its members, and they end with it.
type kind struct {
	program string
	spec    sandboxd.EnvironmentSpec
}

func kindOf(program string, spec sandboxd.EnvironmentSpec) kind {
	spec.ID, spec.Generation, spec.Workspace, spec.Home, spec.Seed, spec.UID, spec.Nonce, spec.Tenant = "", 0, "", "", nil, 0, "", ""
	spec.Limits.HomeBytes = 0 // the host's to enforce
	spec.Limits.OpenFiles = 0 // in the orders
	return kind{program: program, spec: spec}
}

// member is an environment that is built and waits to learn whose it is. It has no
// user, no directories, no secret and no process 1 yet, only its set-up stage, which
// ends when the orders socket is closed.
type member struct {
	*launch
	groups *commandGroups // with a spare for the first command, nothing open
}

// makeMember is the pool's.
func (d *Driver) makeMember(ctx context.Context, k kind) (*member, error) {
	l := &launch{driver: d, spec: k.spec, name: names.MemberPrefix + sandboxd.NewID(), pooled: true, program: k.program}
	m := &member{launch: l, groups: newCommandGroups(d.groups)}
	err := l.holdImage()
	if err == nil {
		err = l.run(ctx)
	}
	if err == nil {
		if err = m.groups.prepare(l.name, k.spec.Limits.PIDs); err != nil {
			l.kill()
		}
	}
	if err != nil {
		d.cleanMember(l.name)
		l.close()
		return nil, err
	}
	for _, f := range l.files {
		if f != l.orders && f != l.ready {
			f.Close()
		}
	}
	l.files = []*os.File{l.orders, l.ready}
	fpMemberMade.Hit()
	return m, nil
}

// endMember is the pool's.
func (d *Driver) endMember(m *member) {
	m.kill()
	d.cleanMember(m.name)
	m.close()
}

func (d *Driver) cleanMember(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if err := d.clean(ctx, name); err != nil {
		d.cfg.Log.Error("an environment that was kept ready left something behind", "name", name, "err", err)
	}
}

// pools says whether environments may be kept ready. The mounts that come with the
// orders are made by the server, which only root can; and what a test made weak is no
// other sandbox's.
func (d *Driver) pools() bool { return d.groups != nil && !d.rootless && !d.weak.any() }

// KeepReady is sandboxd.EnvironmentPool's.
func (d *Driver) KeepReady(n int) {
	if !d.pools() {
		return
	}
	d.sweeping.Do(d.sweepMembers)
	d.ready.Limit(n)
}

// sweepMembers removes what members of a dead server left. They ended with it; one
// that was being handed over is its sandbox's.
func (d *Driver) sweepMembers() {
	found, err := d.groups.list()
	linked, lerr := d.names.IDs()
	entries, derr := os.ReadDir(d.cfg.RunDir)
	if err := errors.Join(err, lerr, derr); err != nil {
		d.cfg.Log.Error("environments that were kept ready cannot be looked for", "err", err)
		return
	}
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		found = append(found, name)
	}
	slices.Sort(found)
	for _, name := range slices.Compact(found) {
		if names.IsMember(name) && linked[name] == "" {
			d.cleanMember(name)
		}
	}
}

// handOver gives a member to the sandbox of spec, or ends it. When it fails, nothing
// of it is left, and e is as before.
func (d *Driver) handOver(ctx context.Context, e *environment, m *member, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	fpMemberTaken.Hit()
	defer m.close()
	handle, err := m.handle(spec)
	if err == nil {
		err = d.give(ctx, m, spec)
	}
	if err == nil {
		d.rename(e, m.name)
		if err = d.commit(e, m.pid, m.pidfd); err == nil {
			m.pidfd = -1
			e.release, m.release = m.release, nil
			d.mu.Lock()
			e.groups = m.groups // those that it had are none
			d.mu.Unlock()
			return handle, nil
		}
	}
	m.kill()
	d.cleanMember(m.name)
	d.rename(e, e.id)
	return nil, errors.Join(err, d.names.Unlink(spec.ID))
}

func (d *Driver) rename(e *environment, name string) {
	d.mu.Lock()
	e.name = name
	d.mu.Unlock()
}

// give does what the member cannot do itself, sends it its orders and waits until it
// has followed them.
func (d *Driver) give(ctx context.Context, m *member, spec sandboxd.EnvironmentSpec) error {
	var trees []int
	defer func() { closeAll(trees) }()
	for _, dir := range []string{spec.Workspace, spec.Home} {
		tree, err := isolate.Detached(dir)
		if err != nil {
			return err
		}
		trees = append(trees, tree)
	}
	body, err := json.Marshal(setup.Orders{UID: spec.UID, OpenFiles: spec.Limits.OpenFiles, Nonce: spec.Nonce})
	if err != nil {
		return err
	}
	if err := d.names.Link(spec.ID, m.name); err != nil {
		return err
	}
	fpMemberLinked.Hit()
	_, err = retryInterrupted(func() (int, error) {
		return 0, unix.Sendmsg(int(m.orders.Fd()), body, unix.UnixRights(trees...), nil, unix.MSG_NOSIGNAL)
	})
	if err != nil {
		return err
	}
	fpMemberOrders.Hit()
	if err := m.await(ctx); err != nil {
		return err
	}
	fpMemberHanded.Hit()
	return nil
}

// built waits until the set-up stage of a member has come to where it waits for
// orders.
func (l *launch) built(ctx context.Context) error {
	fd := int(l.orders.Fd())
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		unix.Shutdown(fd, unix.SHUT_RDWR)
		close(over)
	})
	defer func() {
		if !stop() {
			<-over // before the number may be another file's
		}
	}()
	var word [1 << 10]byte
	n, err := retryInterrupted(func() (int, error) { return unix.Read(fd, word[:]) })
	if err == nil && n == 0 {
		// It says why where process 1 would.
		err = cmp.Or(l.await(ctx), errors.New("it ended"))
	}
	return err
}
