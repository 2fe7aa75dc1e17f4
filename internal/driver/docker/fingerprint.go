package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"sandboxd"
)

// probeUID is the user of the environment that Fingerprint tries to start. It is
// nobody's: the sandboxes' own are given out from elsewhere.
const probeUID = 65533

// lookTime bounds the first question to an engine.
const lookTime = 5 * time.Second

// mountsDenied begins what is said when the engine sees other files than we do.
const mountsDenied = "mounts denied: the container engine does not see the directory of the workspaces at the same path"

const mountsHint = "the server and the engine must share the directory under one path: bind it into the server's own container at the path that it has on the machine, and use no volume"

// explainCreate names what of a specification an engine refuses.
func (d *Driver) explainCreate(err error, spec sandboxd.EnvironmentSpec) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "bind source path"), strings.Contains(text, "ounts denied"), strings.Contains(text, "invalid mount config"):
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "%s", mountsDenied).WithHint("%s", mountsHint)
	case strings.Contains(strings.ToLower(text), "unknown runtime"), strings.Contains(strings.ToLower(text), "unknown or invalid runtime"):
		return sandboxd.Invalid("oci_runtime", "the container engine has no runtime %.40q", spec.OCIRuntime).
			WithHint("register it in the engine's daemon.json; sandboxd doctor lists those that are there")
	}
	return err
}

// explainStart tells a container that cannot be started from an engine that fails.
func (d *Driver) explainStart(err error, spec sandboxd.EnvironmentSpec) error {
	text := err.Error()
	if strings.Contains(text, "error mounting") && (strings.Contains(text, spec.Workspace) || strings.Contains(text, spec.Home)) {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "%s", mountsDenied).WithHint("%s", mountsHint)
	}
	if strings.Contains(text, "OCI runtime") || strings.Contains(text, "failed to create shim") {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the container cannot be started: %s", told(errors.Unwrap(err)))
	}
	return err
}

// Fingerprint is sandboxd.Driver's. After asking the engine what it has, it starts
// an environment from an empty image, sees that both ends have the same files, and
// stops it: only that shows that they work together.
func (d *Driver) Fingerprint(ctx context.Context) sandboxd.Fingerprint {
	fp := sandboxd.Fingerprint{Capabilities: sandboxd.Capabilities{SurvivesHostRestart: true, OwnGroup: true, WritableRoot: true,
		Networks: []string{"none", "proxy"}, WorkspaceBind: true, Images: true}}
	fail := func(err error) sandboxd.Fingerprint {
		fp.Works, fp.Reason = false, err.Error()
		var e *sandboxd.Error
		if errors.As(err, &e) {
			fp.Reason, fp.Hint = e.Public(), e.Hint
		}
		return fp
	}
	// A server that has another driver must not wait long for an engine that hangs.
	quick := *d.engine
	quick.limit = min(quick.limit, lookTime)
	info, err := quick.info(ctx)
	if err != nil {
		fp.Level = []sandboxd.LevelLine{{Name: "engine", Needed: true, Detail: d.engine.where, Why: fail(err).Hint}}
		return fail(err)
	}
	for name := range info.Runtimes {
		fp.Capabilities.OCIRuntimes = append(fp.Capabilities.OCIRuntimes, name)
	}
	slices.Sort(fp.Capabilities.OCIRuntimes)
	fp.Level = d.level(info, fp.Capabilities.OCIRuntimes)
	for _, line := range fp.Level {
		if line.Needed && !line.OK {
			fp.Reason, fp.Hint = line.Name+": "+line.Detail, line.Why
			return fp
		}
	}
	found, err := d.trial(ctx, info.DefaultRuntime)
	if err != nil {
		fp.Level = append(fp.Level, sandboxd.LevelLine{Name: "trial", Needed: true, Detail: fail(err).Reason, Why: fail(err).Hint})
		return fail(err)
	}
	fp.Works, fp.Capabilities.Pool = true, found.pool == nil
	line := sandboxd.LevelLine{Name: "pool", OK: found.pool == nil, Detail: "containers can be kept ready", Why: "each start takes as long as the engine needs; nothing is less safe by it"}
	if found.pool != nil {
		line.Detail = "no containers are kept ready: " + found.pool.Error()
	}
	fp.Level = append(fp.Level, line)
	fp.Level = append(fp.Level, sandboxd.LevelLine{Name: "process limit", OK: found.counted, Detail: map[bool]string{true: "who meets it is counted", false: "who meets it is not counted"}[found.counted],
		Why: "a command that meets it ends as one that fails: the OCI runtime makes no cgroup of the sandbox's processes, or this process cannot read the engine's"})
	if line, tried := d.bridgeLine(found.bridge); tried {
		fp.Level = append(fp.Level, line)
	}
	if found.bridge == nil {
		fp.Capabilities.Networks = append(fp.Capabilities.Networks, "bridge")
	}
	return fp
}

func (d *Driver) level(info system.Info, runtimes []string) []sandboxd.LevelLine {
	runtime := d.cfg.OCIRuntime
	if runtime == "" {
		runtime = info.DefaultRuntime
	}
	line := func(name string, ok bool, detail, why string) sandboxd.LevelLine {
		return sandboxd.LevelLine{Name: name, OK: ok, Detail: detail, Why: why}
	}
	need := func(l sandboxd.LevelLine) sandboxd.LevelLine {
		l.Needed = true
		return l
	}
	yes := func(ok bool, word string) string {
		if ok {
			return word
		}
		return "no " + word
	}
	seccomp := slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.Contains(o, "name=seccomp") })
	limits := info.MemoryLimit && info.PidsLimit && info.CPUCfsQuota
	lines := []sandboxd.LevelLine{
		need(line("engine", info.OSType == "linux", fmt.Sprintf("%s %s at %s", info.OSType, info.ServerVersion, d.engine.where), "containers of Linux are needed")),
		need(line("runtime", slices.Contains(runtimes, runtime), runtime+" of "+strings.Join(runtimes, ", "), "register it in the engine's daemon.json")),
		need(line("seccomp", seccomp, strings.Join(info.SecurityOptions, " "), "the engine was built or started without it")),
		line("limits", limits, fmt.Sprintf("cgroup %s: %s, %s, %s, %s", info.CgroupVersion, yes(info.MemoryLimit, "memory"), yes(info.SwapLimit, "swap"),
			yes(info.PidsLimit, "pids"), yes(info.CPUCfsQuota, "cpu")), "what is missing is not limited: mount its cgroup controller"),
		line("gVisor", slices.Contains(runtimes, "runsc"), yes(slices.Contains(runtimes, "runsc"), "runsc"), "a kernel of its own for each sandbox: install runsc and register it in daemon.json"),
		line("live-restore", info.LiveRestoreEnabled, yes(info.LiveRestoreEnabled, "live-restore"), "a restart of the engine ends every sandbox of it"),
		line("user namespace", slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.Contains(o, "name=userns") }), "as the engine was started", "defence in depth only"),
	}
	if d.cfg.Image == "" {
		return append(lines, line("default image", false, "none", "each request must name an image, or start the server with --default-image"))
	}
	return append(lines, line("default image", true, d.cfg.Image, ""))
}

// trialled is what a start of an environment of its own showed.
type trialled struct {
	counted bool  // the driver can tell who meets the limit of processes
	pool    error // why no container can be kept ready
	bridge  error // why there are no bridges
}

// trial starts and stops an environment of its own, and tries a pool's beside it.
func (d *Driver) trial(ctx context.Context, runtime string) (found trialled, err error) {
	in := cmp.Or(d.cfg.Scratch, d.cfg.DataDir)
	dir, err := "", os.MkdirAll(in, 0o700)
	if err == nil {
		dir, err = os.MkdirTemp(in, "probe-")
	}
	if err != nil {
		return found, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the data directory cannot be written")
	}
	defer os.RemoveAll(dir)
	spec := sandboxd.EnvironmentSpec{ID: sandboxd.NewID(), Generation: 1, UID: probeUID, Hostname: "probe", OCIRuntime: d.cfg.OCIRuntime,
		Workspace: filepath.Join(dir, "workspace"), Home: filepath.Join(dir, "home"), Limits: sandboxd.DefaultLimits()}
	for _, sub := range []string{spec.Workspace, spec.Home} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			return found, err
		}
	}
	if err := d.engine.sweepProbes(ctx, probeLife); err != nil {
		d.cfg.Log.Warn("images that were only tried were not removed", "err", err)
	}
	if spec.Image, err = d.engine.emptyImage(ctx); err != nil {
		return found, err
	}
	defer d.engine.removeImage(context.WithoutCancel(ctx), spec.Image)
	if err := d.sameFiles(ctx, spec); err != nil {
		return found, err
	}
	var trying sync.WaitGroup
	defer trying.Wait()
	trying.Go(func() { found.pool = d.trialMember(ctx, spec) })
	if _, err := d.Start(ctx, spec); err != nil {
		return found, err
	}
	_, found.counted = d.ProcessRefusals(spec.ID)
	if err := d.Stop(ctx, spec.ID); err != nil {
		return found, err
	}
	found.bridge = d.tryBridges(ctx, spec, runtime)
	return found, nil
}

// trialMember makes a container as the pool would, and ends it.
func (d *Driver) trialMember(ctx context.Context, spec sandboxd.EnvironmentSpec) error {
	img, err := d.image(ctx, spec.Image)
	if err != nil {
		return err
	}
	program, err := d.init.Install(ctx)
	if err != nil {
		return err
	}
	m, err := d.makeMember(ctx, kindOf(program, img, spec))
	if err == nil {
		d.endMember(m)
	}
	return err
}

// sameFiles sees, before anything runs, that the engine binds the directory that
// this process means. An engine on another machine, or outside of our own
// container, may have one of the same name.
func (d *Driver) sameFiles(ctx context.Context, spec sandboxd.EnvironmentSpec) error {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return err
	}
	const name = "mark"
	mark := []byte(hex.EncodeToString(raw[:]))
	if err := os.WriteFile(filepath.Join(spec.Workspace, name), mark, 0o600); err != nil {
		return err
	}
	id, err := d.create(ctx, spec, image{id: spec.Image}, "none")
	if err != nil {
		return err
	}
	defer d.clean(context.WithoutCancel(ctx), spec.ID)
	found, err := d.engine.fileOf(ctx, id, sandboxd.WorkDir+"/"+name)
	if err != nil && !isClass(err, sandboxd.ClassNotFound) {
		return err
	}
	if !bytes.Equal(found, mark) {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "%s", mountsDenied).WithHint("%s", mountsHint)
	}
	return nil
}

func (e *engine) info(ctx context.Context) (system.Info, error) {
	var found client.SystemInfoResult
	err := e.call(ctx, func(ctx context.Context) (err error) {
		found, err = e.api.Info(ctx, client.InfoOptions{})
		if err == nil && found.Info.ServerVersion == "" {
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "what answers in the container engine's place is none: it has no version")
		}
		return err
	})
	return found.Info, err
}

// probeImage is the name of an image that is only tried.
const probeImage = "sandboxd-probe"

// probeLife is longer than anybody tries one.
const probeLife = time.Hour

// sweepProbes removes the images of this age that were only tried, whoever's: theirs is a
// server that was killed meanwhile. One that a container uses stays.
func (e *engine) sweepProbes(ctx context.Context, age time.Duration) error {
	var found client.ImageListResult
	err := e.call(ctx, func(ctx context.Context) (err error) {
		found, err = e.api.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("reference", probeImage)})
		return err
	})
	errs := []error{err}
	for _, i := range found.Items {
		if time.Since(time.Unix(i.Created, 0)) < age {
			continue
		}
		for _, name := range i.RepoTags {
			if err := e.removeImage(ctx, name); !isClass(err, sandboxd.ClassNotFound) && !isClass(err, sandboxd.ClassConflict) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// emptyImage makes an image with nothing in it: enough for the init.
func (e *engine) emptyImage(ctx context.Context) (string, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}), w.Close()); err != nil {
		return "", err
	}
	name := probeImage + ":" + sandboxd.NewID()
	err := e.call(ctx, func(ctx context.Context) error {
		done, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: &archive, SourceName: "-"}, name, client.ImageImportOptions{})
		if err != nil {
			return err
		}
		defer done.Close()
		_, err = io.Copy(io.Discard, done)
		return err
	})
	return name, err
}

// MakeImage makes an image with nothing in it on the engine at host, as Config.Host,
// and answers its name and how to remove it.
func MakeImage(ctx context.Context, host string) (name string, remove func(context.Context) error, err error) {
	e, err := newEngine(host, lookTime)
	if err != nil {
		return "", nil, err
	}
	if name, err = e.emptyImage(ctx); err != nil {
		return "", nil, errors.Join(err, e.close())
	}
	return name, func(ctx context.Context) error { return errors.Join(e.removeImage(ctx, name), e.close()) }, nil
}

func (e *engine) removeImage(ctx context.Context, name string) error {
	return e.call(ctx, func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, name, client.ImageRemoveOptions{PruneChildren: true})
		return err
	})
}

// fileOf reads a small file of a container that needs not run.
func (e *engine) fileOf(ctx context.Context, id, path string) ([]byte, error) {
	var content []byte
	err := e.call(ctx, func(ctx context.Context) error {
		copied, err := e.api.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: path})
		if err != nil {
			return err
		}
		defer copied.Content.Close()
		archive := tar.NewReader(copied.Content)
		if _, err := archive.Next(); err != nil {
			return err
		}
		content, err = io.ReadAll(io.LimitReader(archive, 4096))
		return err
	})
	return content, err
}
