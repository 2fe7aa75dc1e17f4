package process

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/image"
	"sandboxd/internal/isolate"
)

// need skips what cannot run here, by name.
func need(t testing.TB) {
	t.Helper()
	captest.Root(t)
	g, err := findGroups("probe")
	captest.Need(t, "process", err == nil, fmt.Sprint(err))
	captest.Need(t, "seccomp", isolate.HasSeccomp(), "the kernel takes no filter programs")
	if g.v2 {
		captest.Need(t, "cgroup2", true, "")
	} else {
		captest.Need(t, "cgroup1", true, "")
	}
}

func openDriver(t testing.TB, dir string) *Driver {
	t.Helper()
	d, err := New(Config{DataDir: dir, RunDir: filepath.Join(dir, "run"), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var lastUID atomic.Uint32

// newSpec makes the directories of an environment, owned by a user of its own.
func newSpec(t testing.TB, dir string) sandboxd.EnvironmentSpec {
	t.Helper()
	uid := 210_000 + lastUID.Add(1)
	if os.Geteuid() != 0 {
		uid = uint32(os.Geteuid())
	}
	spec := sandboxd.EnvironmentSpec{ID: sandboxd.NewID(), Generation: 1, UID: uid,
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

// leftovers describes what the driver could leave: cgroups, mounts, files of its
// run directory, descriptors and child processes.
func leftovers(dir string) string {
	var b strings.Builder
	g, err := findGroups(dir)
	list := roll{dir: filepath.Join(dir, "run")}.list
	if err == nil {
		list = g.list
	}
	ids, err := list()
	fmt.Fprintln(&b, "cgroups", ids, err)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	// Below dir alone: other suites mount beside this one.
	fmt.Fprintln(&b, "mounts", strings.Count(string(mounts), " "+dir), err)
	entries, err := os.ReadDir(filepath.Join(dir, "run"))
	for _, e := range entries {
		if e.Name() != rootMount {
			fmt.Fprintln(&b, "run", e.Name())
		}
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	var held []string
	for _, fd := range fds {
		target, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && !strings.Contains(target, "/proc/") && !strings.HasPrefix(target, "anon_inode:[event") {
			held = append(held, strings.TrimRight(target, "0123456789[]"))
		}
	}
	slices.Sort(held)
	fmt.Fprintln(&b, "descriptors", held)
	children, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	fmt.Fprintln(&b, "children", string(children), err != nil)
	return b.String()
}

// bare is the driver itself, also where it has no groups.
func bare(d sandboxd.Driver) *Driver {
	switch without := d.(type) {
	case withoutGroups:
		d = without.Driver
	case withoutPool:
		d = without.Driver
	}
	return d.(*Driver)
}

func harness(t testing.TB) drivertest.Harness {
	dir := t.TempDir()
	h := drivertest.Harness{
		Open: func(t testing.TB) sandboxd.Driver {
			d, err := Open(Config{DataDir: dir, RunDir: filepath.Join(dir, "run")})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Spec:  func(t testing.TB) sandboxd.EnvironmentSpec { return newSpec(t, dir) },
		True:  []string{"true"},
		Echo:  func(text string) []string { return []string{"echo", text} },
		Sleep: []string{"sleep", "1000"},
		Show:  func(name string) []string { return []string{"cat", name} },
		Image: func(t testing.TB, archive []byte) (string, func()) {
			store, name := image.In(filepath.Join(dir, "images"), "process"), sandboxd.NewID()
			if _, err := store.Import(t.Context(), sandboxd.ImageImport{Name: name}, bytes.NewReader(archive)); err != nil {
				t.Fatal(err)
			}
			return name, func() {}
		},
		End: func(t testing.TB, d sandboxd.Driver, id string) {
			e, err := bare(d).running(id)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Kill(e.pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Left: func() string { return leftovers(dir) },
		Fill: fill,
		Group: func(t testing.TB, d sandboxd.Driver, id, controller string) string {
			b := bare(d)
			if controller == "cpu" {
				return b.groups.dir(controller, b.nameOf(id))
			}
			return b.groups.dir(controller, filepath.Join(b.nameOf(id), commandsDir))
		},
	}
	if _, err := findGroups(dir); err != nil {
		h.Fixed, h.Group = "there are no cgroups", nil
	}
	return h
}

// fill takes memory as files in it.
func fill(bytes int64) []string {
	return []string{"/bin/sh", "-c", fmt.Sprintf("head -c %d /dev/zero >/tmp/held", bytes)}
}

func TestSuite(t *testing.T) {
	need(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Harness { return harness(t) })
}

// Each environment of the suite is taken from the pool as long as there are any.
func TestSuiteWithAPool(t *testing.T) {
	need(t)
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		h := harness(t)
		cold := h.Open
		h.Open = func(t testing.TB) sandboxd.Driver {
			d := cold(t)
			warm(t, bare(d), h.Spec(t), 3)
			return d
		}
		return h
	})
}

// warm waits until n environments are ready for sandboxes as that of spec.
func warm(t testing.TB, d *Driver, spec sandboxd.EnvironmentSpec, n int) {
	t.Helper()
	program, err := d.init.Install(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	d.KeepReady(n)
	k := kindOf(program, spec)
	for range n {
		if m, ok := d.ready.Take(k); ok {
			d.endMember(m)
		}
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(drivertest.Patience); d.ready.Ready(k) < n; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d environments became ready", d.ready.Ready(k), n)
		}
	}
}

func TestFingerprint(t *testing.T) {
	need(t)
	h := harness(t)
	d := h.Open(t)
	defer d.Close()
	before := h.Left()
	fp := d.Fingerprint(context.Background())
	if !fp.Works {
		t.Fatalf("does not work: %s (%s)", fp.Reason, fp.Hint)
	}
	if !fp.Capabilities.SurvivesHostRestart || !fp.Capabilities.CommandCgroup {
		t.Errorf("capabilities: %+v", fp.Capabilities)
	}
	for _, line := range fp.Level {
		if line.Needed && !line.OK {
			t.Errorf("works without %s", line.Name)
		}
	}
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}
