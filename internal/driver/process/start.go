package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/image"
	"sandboxd/internal/isolate/setup"
)

const (
	// readyTime bounds the set-up stage; it takes some milliseconds.
	readyTime = 15 * time.Second
	// rootMount is where in the run directory each set-up stage, in a mount
	// namespace of its own, builds its root.
	rootMount = "root"
	// oomScore makes the kernel prefer sandboxes to the machine's own programs when
	// the machine itself is out of memory.
	oomScore = 300

	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET
)

func logName(name string) string { return name + ".err" }

// Start is sandboxd.Driver's.
func (d *Driver) Start(ctx context.Context, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	if err := d.check(spec); err != nil {
		return nil, err
	}
	spec.Image = image.Canonical(spec.Image)
	e := &environment{id: spec.ID, name: spec.ID, generation: spec.Generation, limits: spec.Limits, groups: newCommandGroups(d.groups), busy: make(chan struct{}), ended: make(chan struct{})}
	if err := d.reserve(e); err != nil {
		return nil, err
	}
	handle, err := d.start(ctx, e, spec)
	if err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		if cerr := d.clean(cctx, spec.ID); cerr != nil {
			d.cfg.Log.Error("a failed start left something behind", "sandbox", spec.ID, "error", cerr)
		}
	}
	d.release(e, err == nil)
	return handle, err
}

func (d *Driver) check(spec sandboxd.EnvironmentSpec) error {
	switch {
	case !sandboxd.ValidID(spec.ID):
		return sandboxd.Invalid("id", "no sandbox has this id")
	case spec.UID == 0:
		return sandboxd.Invalid("uid", "a sandbox may not be root")
	case spec.OCIRuntime != "" || spec.WritableRoot || spec.Bridge:
		return sandboxd.Errorf(sandboxd.ClassUnsupported, "the process driver has no OCI runtime, no bridge and no root that takes writes").
			WithHint("open the sandbox with the docker driver")
	case d.rootless && spec.UID != uint32(os.Geteuid()):
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "the sandbox's files belong to user %d and the server is user %d", spec.UID, os.Geteuid()).
			WithHint("without root a server runs the sandboxes of its own user only; run it as root")
	case d.groups == nil && !d.rootless:
		return sandboxd.Wrap(sandboxd.ClassUnavailable, d.groupErr, "the machine has no cgroups that the process driver can use")
	case spec.Image != "":
		// Before the pool learns of a kind that cannot be made.
		_, err := d.images.Get(spec.Image)
		return err
	}
	return nil
}

// reserve takes the id's place, also from an environment that ended by itself.
func (d *Driver) reserve(e *environment) error {
	conflict := sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox has an environment already")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	old := d.envs[e.id]
	if old == nil {
		if d.left(e.id) {
			return conflict // of an earlier server, not adopted
		}
	} else {
		if old.busy != nil {
			return conflict
		}
		select {
		case <-old.ended:
		default:
			return conflict
		}
		old.letGo()
	}
	d.envs[e.id] = e
	return nil
}

func (d *Driver) start(ctx context.Context, e *environment, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	// What an environment that ended by itself left is kept until now.
	if err := d.clear(ctx, spec.ID); err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "remove what the last environment left")
	}
	program, err := d.init.Install(ctx)
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the init cannot be installed")
	}
	if err := d.seed(ctx, spec); err != nil {
		return nil, err
	}
	e.started = time.Now()
	if d.pools() {
		if m, ok := d.ready.Take(kindOf(program, spec)); ok {
			handle, err := d.handOver(ctx, e, m, spec)
			if err == nil || ctx.Err() != nil {
				return handle, err
			}
			// What is wrong with the sandbox the cold path says better.
			d.cfg.Log.Warn("a ready environment was of no use", "sandbox", spec.ID, "err", err)
		}
	}
	l := &launch{driver: d, spec: spec, name: spec.ID, program: program}
	defer l.close()
	if err := l.holdImage(); err != nil {
		return nil, err
	}
	if err := l.run(ctx); err != nil {
		return nil, err
	}
	handle, err := l.handle(spec)
	if err == nil {
		err = d.commit(e, l.pid, l.pidfd)
	}
	if err != nil {
		l.kill()
		return nil, err
	}
	l.pidfd = -1
	e.release, l.release = l.release, nil
	return handle, nil
}

// commit makes a living process the environment's and watches it. It takes pidfd
// over unless it fails.
func (d *Driver) commit(e *environment, pid, pidfd int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		return err
	}
	e.pid = pid
	e.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	d.envs[e.id] = e
	go d.watch(e)
	return nil
}

// makeGroups makes a sandbox's cgroups with its limits.
func (d *Driver) makeGroups(name string, lim sandboxd.Limits) error {
	g := d.groups
	if g == nil {
		return nil
	}
	leaf := filepath.Join(name, initLeaf)
	for _, sub := range []string{leaf, filepath.Join(name, commandsDir, otherLeaf)} {
		if err := g.create(sub); err != nil {
			return err
		}
	}
	return errors.Join(
		g.limit(name, lim),
		g.limitMemory(leaf, initMemory, 0), g.limitPIDs(leaf, initPIDs),
	)
}

// launch is one start of an init: its descriptors and what it said.
type launch struct {
	driver  *Driver
	spec    sandboxd.EnvironmentSpec
	name    string // of its cgroups, socket and log
	pooled  bool   // spec does not know the sandbox
	program string
	root    string // of its image; empty for the machine's /usr
	release func() // of its image; nil without one
	files   []*os.File
	orders  *os.File // takes the specification
	ready   *os.File // has the report
	pid     int
	pidfd   int
	start   uint64 // of the process, as in a handle
}

func (l *launch) close() {
	closeFiles(l.files)
	if l.pidfd > 0 {
		unix.Close(l.pidfd)
	}
	if l.release != nil {
		l.release()
	}
}

// holdImage finds the image and keeps it from being removed.
func (l *launch) holdImage() (err error) {
	if l.spec.Image != "" {
		l.root, l.release, err = l.driver.images.Hold(l.spec.Image)
	}
	return err
}

// kill ends the process and waits for it.
func (l *launch) kill() {
	unix.PidfdSendSignal(l.pidfd, unix.SIGKILL, nil, 0)
	waitPID(l.pid, 0)
}

func waitPID(pid, options int) (unix.WaitStatus, bool) {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(pid, &status, options, nil)
		if err == unix.EINTR {
			continue
		}
		return status, err == nil && got == pid
	}
}

// keep closes a file with the launch.
func (l *launch) keep(f *os.File) *os.File {
	l.files = append(l.files, f)
	return f
}

// run starts the process and waits until it is ready; afterwards pid and pidfd
// are those of process 1. The cgroups are made while the process comes up: it
// gets them with its specification, and joins them first.
func (l *launch) run(ctx context.Context) error {
	d := l.driver
	fail := func(err error) error {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the sandbox's init cannot be started")
	}
	made := make(chan error, 1)
	go func() { made <- d.makeGroups(l.name, l.spec.Limits) }()
	err := l.fork()
	gerr := <-made
	if err != nil {
		return fail(err)
	}
	if gerr != nil {
		l.kill()
		return sandboxd.Wrap(sandboxd.ClassUnavailable, gerr, "the sandbox's cgroups cannot be made")
	}
	if err = l.identify(); err == nil {
		err = l.instruct()
	}
	if err == nil && l.pooled {
		err = l.built(ctx)
	}
	if err != nil {
		l.kill()
		return fail(err)
	}
	if l.pooled {
		return nil // what is built waits for its orders
	}
	if err := l.await(ctx); err != nil {
		l.kill()
		return err
	}
	return nil
}

// identify notes which process it is. Where no cgroup does it, the roll tells of the
// environment from here on.
func (l *launch) identify() (err error) {
	d := l.driver
	if l.start, err = startTime(l.pid); err != nil || d.groups != nil {
		return err
	}
	raw, err := l.handle(l.spec)
	if err != nil {
		return err
	}
	return d.roll.enter(l.name, raw)
}

// handle is that of the sandbox of spec, which l.spec is unless it is pooled.
func (l *launch) handle(spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	return json.Marshal(handle{PID: l.pid, Start: l.start, Boot: l.driver.bootID, Init: filepath.Base(l.program),
		Generation: spec.Generation, Limits: spec.Limits, Image: spec.Image})
}

// fork starts the set-up stage.
func (l *launch) fork() error {
	d := l.driver
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	l.keep(null)
	flags := unix.O_CREAT | unix.O_TRUNC | unix.O_WRONLY | unix.O_APPEND | unix.O_CLOEXEC
	fd, err := unix.Open(filepath.Join(d.cfg.RunDir, logName(l.name)), flags, 0o600)
	if err != nil {
		return err
	}
	log := l.keep(os.NewFile(uintptr(fd), "log"))
	socket, err := l.bind()
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	l.orders = l.keep(os.NewFile(uintptr(pair[0]), "orders"))
	theirs := os.NewFile(uintptr(pair[1]), "spec")
	defer theirs.Close()
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer readyW.Close()
	l.ready = l.keep(readyR)
	l.pidfd = -1
	l.pid, err = syscall.ForkExec(l.program, []string{"init", "setup"}, &syscall.ProcAttr{
		Dir: "/", Env: setup.Environment, Files: []uintptr{null.Fd(), null.Fd(), log.Fd(), socket.Fd(), theirs.Fd(), readyW.Fd()},
		Sys: d.cloneInto(&l.pidfd),
	})
	if err != nil {
		return err
	}
	if l.pidfd < 0 {
		unix.Kill(l.pid, unix.SIGKILL)
		waitPID(l.pid, 0)
		return errors.New("the kernel gave no pidfd")
	}
	return nil
}

// bind makes the socket's name without listening: the init does that, and so it
// is the peer that a dialler sees.
func (l *launch) bind() (*os.File, error) {
	dir, err := unix.Open(l.driver.cfg.RunDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	name := socketName(l.name)
	if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := l.keep(os.NewFile(uintptr(fd), "listener"))
	return f, unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)})
}

// instruct sends what is to be built, with the descriptors of where commands go
// and of the init's own groups.
func (l *launch) instruct() error {
	d := l.driver
	fds, commands, err := d.joinFiles(l.name)
	if err != nil {
		return err
	}
	defer closeAll(fds)
	second := setup.Second{Nonce: l.spec.Nonce, OpenFiles: l.spec.Limits.OpenFiles, Groups: commands}
	if d.groups == nil {
		second.Alone, second.DataBytes, second.Processes = true, l.spec.Limits.MemoryBytes, l.spec.Limits.PIDs
	}
	body, err := json.Marshal(setup.Spec{
		Base: filepath.Join(d.cfg.RunDir, rootMount), Root: l.root,
		Workspace: l.spec.Workspace, Home: l.spec.Home, CABundle: l.spec.CABundle, UID: l.spec.UID, Hostname: l.spec.Hostname,
		TmpBytes: l.spec.Limits.TmpBytes, Seccomp: d.seccomp, Landlock: d.landlock, OOMScore: oomScore,
		Rootless: d.rootless, InitGroups: len(fds) - commands, Pooled: l.pooled, Second: second, Without: d.weak.steps,
	})
	if err != nil {
		return err
	}
	if len(body) > setup.MaxSpec {
		return errors.New("the specification is too long")
	}
	_, err = retryInterrupted(func() (int, error) {
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		return 0, unix.Sendmsg(int(l.orders.Fd()), body, rights, nil, unix.MSG_NOSIGNAL)
	})
	return err
}

// joinFiles answers the files by which the groups of a sandbox are joined: first those
// of where commands go, so many, then those of the init's own.
func (d *Driver) joinFiles(name string) (fds []int, commands int, err error) {
	if d.groups == nil {
		return nil, 0, nil
	}
	fds, err = d.groups.open(filepath.Join(name, commandsDir, otherLeaf), false)
	if err != nil {
		return nil, 0, err
	}
	own, err := d.groups.openIn(filepath.Join(name, initLeaf), func(root) bool { return true })
	if err != nil {
		closeAll(fds)
		return nil, 0, err
	}
	return append(fds, own...), len(fds), nil
}

// await reads the init's one report, and not up to the end of what it could say: who
// wrote it may not run again before who reads it.
func (l *launch) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.ready.SetReadDeadline(time.Unix(1, 0)) })()
	var report setup.Report
	err := json.NewDecoder(io.LimitReader(l.ready, 64<<10)).Decode(&report)
	if ctx.Err() != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the sandbox's init was not ready in time")
	}
	if err != nil {
		said := l.driver.said(l.name)
		return sandboxd.Wrap(sandboxd.ClassUnavailable, fmt.Errorf("%w: %s", err, said), "the sandbox's init ended without a word")
	}
	if report.Step != "" {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, errors.New(report.Error), "the sandbox cannot be set up, step %q", report.Step)
	}
	return nil
}

// said is the end of what an init wrote before it died.
func (d *Driver) said(name string) string {
	text, err := os.ReadFile(filepath.Join(d.cfg.RunDir, logName(name)))
	if err != nil {
		return ""
	}
	const most = 2048
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}
