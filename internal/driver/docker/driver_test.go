package docker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
)

// runtimes are those that every test of the suite runs under.
var runtimes = []string{"runc", "runsc"}

func openDriver(t testing.TB, e dockertest.Engine, dir string) *Driver {
	t.Helper()
	d, err := New(Config{Host: e.Host, DataDir: dir, Image: e.Image, OCIRuntime: e.Runtime})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var lastUID atomic.Uint32

// newSpec makes the directories of an environment, owned by a user of its own.
func newSpec(t testing.TB, dir string) sandboxd.EnvironmentSpec {
	t.Helper()
	spec := sandboxd.EnvironmentSpec{ID: sandboxd.NewID(), Generation: 1, UID: 230_000 + lastUID.Add(1),
		Hostname: "box", Limits: sandboxd.DefaultLimits()}
	base := filepath.Join(dir, "workspaces", spec.ID)
	spec.Workspace, spec.Home = filepath.Join(base, "workspace"), filepath.Join(base, "home")
	for _, d := range []string{spec.Workspace, spec.Home} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(d, int(spec.UID), int(spec.UID)); err != nil {
			t.Fatal(err)
		}
	}
	return spec
}

// leftovers describes what the driver could leave: containers, images, mounts,
// files of its run directory, descriptors and child processes.
func leftovers(e dockertest.Engine, dir string) string {
	var b strings.Builder
	ctx := context.Background()
	containers, err := e.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", labelID)})
	for _, c := range containers.Items {
		fmt.Fprintln(&b, "container", c.Names, c.State)
	}
	fmt.Fprintln(&b, err)
	images, err := e.API.ImageList(ctx, client.ImageListOptions{All: true})
	fmt.Fprintln(&b, "images", len(images.Items), err)
	volumes, err := e.API.VolumeList(ctx, client.VolumeListOptions{})
	fmt.Fprintln(&b, "volumes", len(volumes.Items), err)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	// Below dir alone: other engines mount beside this one.
	fmt.Fprintln(&b, "mounts", strings.Count(string(mounts), " "+dir), err)
	entries, err := os.ReadDir(filepath.Join(dir, "run", "docker"))
	for _, e := range entries {
		fmt.Fprintln(&b, "run", e.Name())
	}
	fmt.Fprintln(&b, err != nil && !os.IsNotExist(err))
	fds, _ := os.ReadDir("/proc/self/fd")
	var held []string
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		// Sockets of the tests' own client come and go.
		if err == nil && !strings.Contains(target, "/proc/") && !strings.HasPrefix(target, "anon_inode:[event") && !strings.HasPrefix(target, "socket:") {
			held = append(held, strings.TrimRight(target, "0123456789[]"))
		}
	}
	slices.Sort(held)
	fmt.Fprintln(&b, "descriptors", held)
	return b.String()
}

func harness(t testing.TB, e dockertest.Engine) drivertest.Harness {
	dir := t.TempDir()
	h := drivertest.Harness{
		Open:  func(t testing.TB) sandboxd.Driver { return openDriver(t, e, dir) },
		Spec:  func(t testing.TB) sandboxd.EnvironmentSpec { return newSpec(t, dir) },
		True:  []string{"true"},
		Echo:  func(text string) []string { return []string{"echo", text} },
		Sleep: []string{"sleep", "1000"},
		Show:  func(name string) []string { return []string{"cat", name} },
		Image: func(t testing.TB, archive []byte) (string, func()) {
			name := "sandboxd-test/home:" + sandboxd.NewID()
			done, err := e.API.ImageImport(t.Context(), client.ImageImportSource{Source: bytes.NewReader(archive), SourceName: "-"}, name, client.ImageImportOptions{})
			if err == nil {
				_, err = io.Copy(io.Discard, done)
				done.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			return name, func() {
				if _, err := e.API.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
					t.Errorf("remove %s: %v", name, err)
				}
			}
		},
		End: func(t testing.TB, d sandboxd.Driver, id string) {
			if _, err := e.API.ContainerKill(context.Background(), d.(*Driver).containerName(d.(*Driver).names.Of(id)), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
				t.Fatal(err)
			}
		},
		Left:         func() string { return leftovers(e, dir) },
		OwnProcesses: initProcesses,
		Fill: func(bytes int64) []string {
			return []string{"/bin/sh", "-c", fmt.Sprintf("head -c %d /dev/zero >/tmp/held", bytes)}
		},
		Group: func(t testing.TB, d sandboxd.Driver, id, controller string) string {
			return group(t, e, d.(*Driver).containerName(d.(*Driver).names.Of(id)), controller)
		},
	}
	if ignoresCgroups(t, e) {
		h.Fixed, h.Group = "the engine's OCI runtime is set up to ignore cgroups", nil
	}
	return h
}

// group answers the directory of a container's cgroup.
func group(t testing.TB, e dockertest.Engine, name, controller string) string {
	t.Helper()
	seen, err := e.API.ContainerInspect(context.Background(), name, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", seen.Container.State.Pid))
	captest.Need(t, "driver-limits-seen", err == nil, "the engine's processes are not this machine's")
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && slices.Contains(strings.Split(fields[1], ","), controller) {
			return filepath.Join("/sys/fs/cgroup", controller, fields[2])
		}
		if len(fields) == 3 && fields[0] == "0" {
			return filepath.Join("/sys/fs/cgroup", fields[2])
		}
	}
	return ""
}

func ignoresCgroups(t testing.TB, e dockertest.Engine) bool {
	t.Helper()
	found, err := e.API.Info(context.Background(), client.InfoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(found.Info.Runtimes[e.Runtime].Args, "--ignore-cgroups")
}

func TestSuite(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			e := dockertest.Find(t, runtime)
			drivertest.Run(t, func(t *testing.T) drivertest.Harness { return harness(t, e) })
		})
	}
}

// pooling answers the engine where its containers can be kept ready.
func pooling(t testing.TB) dockertest.Engine {
	t.Helper()
	e := dockertest.Find(t, "runc")
	e.Pool(t)
	return e
}

// Each environment of the suite is taken from the pool as long as there are any.
func TestSuiteWithAPool(t *testing.T) {
	e := pooling(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		h := harness(t, e)
		cold := h.Open
		h.Open = func(t testing.TB) sandboxd.Driver {
			d := cold(t)
			warm(t, d.(*Driver), h.Spec(t), 3)
			return d
		}
		return h
	})
}

// kindFor is the kind of a sandbox as that of spec.
func kindFor(t testing.TB, d *Driver, spec sandboxd.EnvironmentSpec) kind {
	t.Helper()
	program, err := d.init.Install(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	spec, err = d.defaults(spec)
	if err != nil {
		t.Fatal(err)
	}
	img, err := d.image(context.Background(), spec.Image)
	if err != nil {
		t.Fatal(err)
	}
	return kindOf(program, img, spec)
}

// warm waits until n containers are ready for sandboxes as that of spec.
func warm(t testing.TB, d *Driver, spec sandboxd.EnvironmentSpec, n int) {
	t.Helper()
	d.KeepReady(n)
	k := kindFor(t, d, spec)
	for range n {
		if m, ok := d.ready.Take(k); ok {
			d.endMember(m)
		}
	}
	// One after the other, and one that failed is tried again after a pause.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(3 * drivertest.Patience); d.ready.Ready(k) < n; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%d of %d are ready", d.ready.Ready(k), n)
		}
	}
}

func TestFingerprint(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			h := harness(t, dockertest.Find(t, runtime))
			d := h.Open(t)
			defer d.Close()
			before := h.Left()
			fp := d.Fingerprint(context.Background())
			if !fp.Works {
				t.Fatalf("does not work: %s (%s)", fp.Reason, fp.Hint)
			}
			for _, line := range fp.Level {
				if line.Needed && !line.OK {
					t.Errorf("works without %s", line.Name)
				}
			}
			if !fp.Capabilities.Images || !slices.Contains(fp.Capabilities.OCIRuntimes, runtime) {
				t.Errorf("capabilities: %+v", fp.Capabilities)
			}
			if after := h.Left(); after != before {
				t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}
