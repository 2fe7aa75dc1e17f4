package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/names"
	"sandboxd/internal/isolate/setup"
)

const (
	// initPath is where a container has its process 1.
	initPath = "/.sandboxd-init"
	// initProcesses are the threads of the init, beside the limit of the commands. It makes
	// most of them before the first command (spawn.HaveThreads).
	initProcesses = 24
	// readyTime bounds the wait for the init's word once its container is started.
	readyTime = 15 * time.Second
	// oomScore makes the kernel prefer sandboxes to the machine's own programs when
	// the machine itself is out of memory.
	oomScore = 300
)

// initEnviron is what the init itself gets. The last ones keep an image from
// setting its runtime's knobs.
var initEnviron = append(append([]string(nil), setup.Environment...), "GODEBUG=", "GOTRACEBACK=", "GOMEMLIMIT=")

// masked is what tells of the machine: what engines cover by themselves, and more.
var masked = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/key-users", "/proc/keys",
	"/proc/kmsg", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/sys/firmware", "/sys/devices/virtual/powercap"}

func (d *Driver) filesOf(id string) string { return filepath.Join(d.cfg.RunDir, id) }

// Start is sandboxd.Driver's. An image that is not there is pulled.
func (d *Driver) Start(ctx context.Context, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	if spec.Bridge {
		if err := d.BridgeWorks(spec.OCIRuntime); err != nil {
			return nil, err
		}
	}
	return d.start(ctx, spec)
}

// start is Start without the question whether there are bridges.
func (d *Driver) start(ctx context.Context, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	spec, err := d.defaults(spec)
	if err != nil {
		return nil, err
	}
	e := &environment{id: spec.ID, name: spec.ID, generation: spec.Generation, limits: spec.Limits, busy: make(chan struct{}), ended: make(chan struct{}), looked: make(chan struct{})}
	again, err := d.reserve(e)
	if err != nil {
		return nil, err
	}
	handle, err := d.startIn(ctx, e, spec, again)
	d.release(e, err == nil)
	return handle, err
}

// defaults checks a specification and fills in what it leaves to the driver.
func (d *Driver) defaults(spec sandboxd.EnvironmentSpec) (sandboxd.EnvironmentSpec, error) {
	if spec.Image == "" {
		spec.Image = d.cfg.Image
	}
	if spec.OCIRuntime == "" {
		spec.OCIRuntime = d.cfg.OCIRuntime
	}
	switch {
	case !sandboxd.ValidID(spec.ID):
		return spec, sandboxd.Invalid("id", "no sandbox has this id")
	case spec.UID == 0:
		return spec, sandboxd.Invalid("uid", "a sandbox may not be root")
	case spec.Image == "":
		return spec, sandboxd.Invalid("image", "the docker driver needs an image").
			WithHint("name one in the request, or start the server with --default-image")
	}
	return spec, nil
}

// reserve takes the id's place. again says that the last environment ended by
// itself, and what it left is to be removed.
func (d *Driver) reserve(e *environment) (again bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false, errClosed
	}
	if old := d.envs[e.id]; old != nil {
		ended := false
		select {
		case <-old.ended:
			ended = true
		default:
		}
		if old.busy != nil || !ended {
			return false, conflict()
		}
		again = true
	}
	d.envs[e.id] = e
	return again, nil
}

func conflict() error {
	return sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox has an environment already")
}

func (d *Driver) startIn(ctx context.Context, e *environment, spec sandboxd.EnvironmentSpec, again bool) (sandboxd.Handle, error) {
	switch {
	case spec.Kept:
		return d.startKept(ctx, e, spec)
	case again:
		if err := d.clear(ctx, e.id); err != nil {
			return nil, err
		}
	case d.names.Of(e.id) != e.id:
		return nil, conflict() // of an earlier server, not adopted
	}
	// Before the container is there: what happens to it is to be heard.
	if err := d.listen(ctx); err != nil {
		return nil, err
	}
	img, err := d.image(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	if spec.Seed != nil {
		if err := d.seed(ctx, img, spec); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	e.environ, e.started = img.environ, time.Now()
	d.mu.Unlock()
	if m, ok := d.take(ctx, spec, img); ok {
		handle, err := d.handOver(ctx, e, m, spec)
		if err == nil || ctx.Err() != nil {
			return handle, err
		}
		// What is wrong with the sandbox the cold path says better.
		d.cfg.Log.Warn("a ready container was of no use", "sandbox", spec.ID, "err", err)
	}
	network := "none"
	if spec.Bridge {
		if network, err = d.join(ctx, spec); err != nil {
			return nil, err
		}
	}
	id, err := d.create(ctx, spec, img, network)
	if err != nil {
		// No container was made, or it is another's.
		return nil, errors.Join(err, d.leave(context.WithoutCancel(ctx), spec.ID, false))
	}
	d.mu.Lock()
	e.container = id
	d.mu.Unlock()
	handle, err := d.run(ctx, e, spec)
	if err != nil {
		if cerr := d.clean(context.WithoutCancel(ctx), e.id); cerr != nil {
			d.cfg.Log.Error("a failed start left something behind", "sandbox", spec.ID, "error", cerr)
		}
	}
	return handle, err
}

// create makes the container and the files bound into it.
func (d *Driver) create(ctx context.Context, spec sandboxd.EnvironmentSpec, img image, network string) (string, error) {
	program, err := d.init.Install(ctx)
	if err != nil {
		return "", sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the init cannot be installed")
	}
	files := d.filesOf(spec.ID)
	if err := writeFiles(files, spec.UID); err != nil {
		return "", sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the sandbox's files cannot be made")
	}
	opts := d.options(spec, img, network)
	opts.HostConfig.Mounts = []mount.Mount{
		bind(program, initPath, true), bind(spec.Workspace, sandboxd.WorkDir, false), bind(spec.Home, sandboxd.HomeDir, false),
		bind(filepath.Join(files, "passwd"), "/etc/passwd", true), bind(filepath.Join(files, "group"), "/etc/group", true),
	}
	if spec.CABundle != "" {
		opts.HostConfig.Mounts = append(opts.HostConfig.Mounts, bind(spec.CABundle, sandboxd.CABundle, true))
	}
	if names.IsMember(spec.ID) {
		waiting(&opts)
	}
	id, err := d.engine.create(ctx, opts)
	switch {
	case err == nil:
		return id, nil
	case isClass(err, sandboxd.ClassConflict):
		return "", conflict() // of an earlier server, not adopted
	}
	if rerr := os.RemoveAll(files); rerr != nil {
		err = errors.Join(err, rerr)
	}
	return "", d.explainCreate(err, spec)
}

// writeFiles makes who is who, which an image cannot know.
func writeFiles(dir string, uid uint32) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	passwd := fmt.Sprintf("root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:%d:%d:sandbox:%s:/bin/sh\n"+
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n", uid, uid, sandboxd.HomeDir)
	group := fmt.Sprintf("root:x:0:\ntty:x:5:\nsandbox:x:%d:\nnogroup:x:65534:\n", uid)
	return errors.Join(os.WriteFile(filepath.Join(dir, "passwd"), []byte(passwd), 0o644),
		os.WriteFile(filepath.Join(dir, "group"), []byte(group), 0o644))
}

// bind shows a directory or file of the machine; what is mounted below it stays out.
func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
		BindOptions: &mount.BindOptions{NonRecursive: true, Propagation: mount.PropagationRPrivate}}
}

// loopback6 gives a container the loopback of IPv6, which an engine takes from one
// without a network, where the machine has it.
func loopback6() map[string]string {
	const name = "net.ipv6.conf.lo.disable_ipv6"
	if _, err := os.Stat("/proc/sys/net/ipv6/conf/lo/disable_ipv6"); err != nil {
		return nil
	}
	return map[string]string{name: "0"}
}

// options describe the container, without its mounts.
func (d *Driver) options(spec sandboxd.EnvironmentSpec, img image, network string) client.ContainerCreateOptions {
	no, soon := false, 1
	resources := bounds(spec.Limits)
	// Not of open files: the engine may not be allowed to raise it, and the init gives
	// each command its own.
	resources.Ulimits = []*container.Ulimit{{Name: "core"}}
	size := spec.Limits.TmpBytes
	if size <= 0 {
		size = sandboxd.DefaultLimits().TmpBytes
	}
	// Bounded inodes: each is kernel memory whatever its size.
	scratch := fmt.Sprintf("rw,exec,nosuid,nodev,mode=1777,size=%d,nr_inodes=%d", size, max(size/4096, 1024))
	temporary := map[string]string{"/tmp": scratch}
	for _, path := range img.volumes {
		temporary[path] = scratch // not a volume, which nothing would bound
	}
	user := fmt.Sprintf("%d:%d", spec.UID, spec.UID)
	labels := map[string]string{labelID: spec.ID, labelData: d.data, labelGeneration: strconv.FormatInt(spec.Generation, 10)}
	var resolvers []netip.Addr
	if spec.Bridge {
		resolvers, labels[labelNetwork] = d.bridges.fence.Resolvers, network
	}
	return client.ContainerCreateOptions{
		Name: d.containerName(spec.ID),
		Config: &container.Config{
			Image: img.id, Entrypoint: []string{initPath, setup.ArgAttached}, Cmd: []string{}, Env: initEnviron,
			User: user, Hostname: spec.Hostname, WorkingDir: "/",
			OpenStdin: true, AttachStdin: true, AttachStdout: true, AttachStderr: true,
			Labels: labels,
			// The engine runs nothing in a container but the init, and ends it at once.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, StopSignal: "SIGKILL", StopTimeout: &soon,
		},
		HostConfig: &container.HostConfig{
			LogConfig:      container.LogConfig{Type: "none"},
			NetworkMode:    container.NetworkMode(network),
			DNS:            resolvers,
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			CapDrop:        []string{"ALL"},
			SecurityOpt:    []string{"no-new-privileges", "seccomp=" + d.profile},
			ReadonlyRootfs: !spec.WritableRoot,
			MaskedPaths:    masked,
			IpcMode:        container.IPCModePrivate,
			CgroupnsMode:   container.CgroupnsModePrivate,
			OomScoreAdj:    oomScore,
			ShmSize:        size,
			Tmpfs:          temporary,
			Sysctls:        loopback6(),
			Runtime:        spec.OCIRuntime,
			Init:           &no,
			Resources:      resources,
		},
	}
}

// run starts the container and hands the init what it needs to know. What fails
// is cleaned up by the caller.
func (d *Driver) run(ctx context.Context, e *environment, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	// Attached before it runs: what nobody reads is thrown away by the engine.
	conn, err := d.engine.attach(ctx, e.container)
	if err != nil {
		return nil, err
	}
	if err := d.engine.start(ctx, e.container); err != nil {
		conn.Close()
		return nil, d.explainStart(err, spec)
	}
	// While the init comes up: no command waits for this.
	d.work.Go(func() {
		defer close(e.looked)
		if seen, err := d.engine.inspect(d.ctx, e.container); err == nil {
			d.findRefusals(e, seen, false)
		}
	})
	if err = d.greet(ctx, conn, spec); err == nil {
		err = d.commit(e, conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return d.handleOf(e, spec)
}

// greet tells the init who it is and hears that it is ready.
func (d *Driver) greet(ctx context.Context, conn *attached, spec sandboxd.EnvironmentSpec) error {
	return speak(ctx, conn, func() error {
		return setup.WriteMessage(conn, setup.Attached{Seccomp: d.seccomp,
			Second: setup.Second{OpenFiles: spec.Limits.OpenFiles, Nonce: spec.Nonce}})
	})
}

// speak says something to an init and hears whether it could be done.
func speak(ctx context.Context, conn *attached, say func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var report setup.Report
	err := say()
	if err == nil {
		err = setup.ReadMessage(conn, &report)
	}
	switch {
	case ctx.Err() != nil:
		return sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the sandbox's init was not ready in time")
	case err != nil:
		return sandboxd.Wrap(sandboxd.ClassUnavailable, fmt.Errorf("%w: %s", err, conn.Said()), "the sandbox's init ended without a word")
	case report.Step != "":
		return sandboxd.Wrap(sandboxd.ClassUnavailable, errors.New(report.Error), "the sandbox cannot be set up, step %q", report.Step)
	}
	return nil
}

// commit makes a living container the environment's.
func (d *Driver) commit(e *environment, conn *attached) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	if e.died {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "the sandbox ended at once")
	}
	e.live, e.conn, e.fresh = true, conn, conn != nil
	return nil
}
