package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
)

// wantLeft compares what the driver has left with what there was before.
func wantLeft(t *testing.T, h drivertest.Harness, before string) {
	t.Helper()
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// The files of a sandbox that was there before are seen, under the user they belong to,
// and nothing that is mounted on them on the machine, before or after.
func TestAPooledSandboxSeesItsFilesAndNoMounts(t *testing.T) {
	before := func() {}
	defer func() { before() }()
	b := openPooled(t, pooling(t), func(s *sandboxd.EnvironmentSpec) {
		for name, dir := range map[string]string{"work": s.Workspace, "home": s.Home} {
			file := filepath.Join(dir, "kept")
			if err := errors.Join(os.WriteFile(file, []byte(name), 0o600), os.Chown(file, int(s.UID), int(s.UID))); err != nil {
				t.Fatal(err)
			}
		}
		for _, sub := range []string{"before", "after"} {
			if err := os.Mkdir(filepath.Join(s.Workspace, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		before = mountOn(t, filepath.Join(s.Workspace, "before"))
	})
	defer mountOn(t, filepath.Join(b.spec.Workspace, "after"))()
	if r := b.Run("cat", "/workspace/kept", "/home/sandbox/kept"); r.Stdout != "workhome" {
		t.Errorf("kept files: %+v", r)
	}
	if r := b.Run("ls", "before", "after"); strings.Contains(r.Stdout, "foreign") || r.Exit.Code != 0 {
		t.Errorf("mounts of the machine are seen: %+v", r)
	}
	if r := b.Run("sh", "-c", "echo mine >/workspace/new && echo mine >/home/sandbox/new && id -un && id -G && cat /etc/passwd"); !strings.HasPrefix(r.Stdout, "sandbox\n") || r.Exit.Code != 0 {
		t.Errorf("write: %+v", r)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(b.spec.Workspace, "new"), &st); err != nil || st.Uid != b.spec.UID {
		t.Errorf("the owner of what it wrote is %d, want %d: %v", st.Uid, b.spec.UID, err)
	}
	// A place is left by no path: the mount is where the empty directory was.
	if r := b.Run("sh", "-c", "grep -E ' /(workspace|home/sandbox) ' /proc/self/mountinfo | grep -c nosuid,nodev"); r.Stdout != "2\n" {
		t.Errorf("mounts: %+v", r)
	}
}

// mountOn mounts a file system with a file on dir and answers what ends that.
func mountOn(t *testing.T, dir string) (unmount func()) {
	t.Helper()
	if err := unix.Mount("foreign", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "foreign"), nil, 0o644); err != nil {
		t.Error(err)
	}
	return func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}
}

// A member that cannot be handed over costs the sandbox nothing.
func TestADeadMemberIsAMiss(t *testing.T) {
	e := pooling(t)
	h := harness(t, e)
	before := h.Left()
	d := h.Open(t).(*Driver)
	defer d.Close()
	spec := h.Spec(t)
	warm(t, d, spec, 1)
	found, err := d.engine.list(t.Context(), labelData+"="+d.data)
	if err != nil || len(found) != 1 {
		t.Fatalf("%d containers, %v", len(found), err)
	}
	if _, err := e.API.ContainerKill(t.Context(), found[0].ID, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if d.names.Of(spec.ID) != spec.ID {
		t.Error("a dead member became a sandbox")
	}
	s := drivertest.Attach(t, d, spec.ID)
	if r := s.Run("id", "-un"); r.Stdout != "sandbox\n" {
		t.Errorf("id: %+v", r)
	}
	s.Link.Close()
	if err := d.Stop(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	d.Close()
	wantLeft(t, h, before)
}

// Containers outlive the server that kept them ready; the next one removes them.
func TestMembersOfADeadServer(t *testing.T) {
	h := harness(t, pooling(t))
	before := h.Left()
	d := h.Open(t).(*Driver)
	handed := h.Spec(t)
	var made []string
	for range 2 {
		m, err := d.makeMember(t.Context(), kindFor(t, d, handed))
		if err != nil {
			t.Fatal(err)
		}
		m.letGo()
		m.conn.Close()
		made = append(made, m.name)
	}
	// The server died when the link was made.
	if err := d.names.Link(handed.ID, made[1]); err != nil {
		t.Fatal(err)
	}
	d.Close()
	d = h.Open(t).(*Driver)
	defer d.Close()
	if found, err := d.engine.list(t.Context(), labelData+"="+d.data); err != nil || len(found) != 2 {
		t.Fatalf("%d containers, %v", len(found), err)
	}
	d.KeepReady(0)
	until(t, "what was nobody's is gone", func() bool {
		found, err := d.engine.list(t.Context(), labelData+"="+d.data)
		return err == nil && len(found) == 1
	})
	if ids, err := d.List(t.Context()); err != nil || len(ids) != 1 || ids[0] != handed.ID {
		t.Errorf("list: %v, %v", ids, err)
	}
	if _, err := d.Start(t.Context(), handed); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Errorf("start beside what a dead server left: %v", err)
	}
	if err := d.Stop(t.Context(), handed.ID); err != nil {
		t.Error(err)
	}
	d.Close()
	wantLeft(t, h, before)
}

// What is asked for in another way than what is ready is made at once, and what an
// image was is forgotten when its name means another.
func TestAnotherKindIsAMiss(t *testing.T) {
	e := pooling(t)
	h := harness(t, e)
	d := h.Open(t).(*Driver)
	defer d.Close()
	spec := h.Spec(t)
	warm(t, d, spec, 1)
	d.KeepReady(8) // room for all kinds
	for _, change := range []func(*sandboxd.EnvironmentSpec){
		func(s *sandboxd.EnvironmentSpec) { s.Hostname = "other" },
		func(s *sandboxd.EnvironmentSpec) { s.Limits.MemoryBytes *= 2 },
		func(s *sandboxd.EnvironmentSpec) { s.WritableRoot = true },
	} {
		other := h.Spec(t)
		change(&other)
		if _, err := d.Start(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if d.names.Of(other.ID) != other.ID {
			t.Errorf("a sandbox of %+v was made from another kind", other)
		}
		if err := d.Stop(t.Context(), other.ID); err != nil {
			t.Error(err)
		}
	}
	k := kindFor(t, d, spec)
	if d.ready.Ready(k) != 1 {
		t.Fatal("what was not used is not ready")
	}
	spec.Image = e.Image
	if _, ok := d.take(t.Context(), spec, image{id: "another"}); ok || d.ready.Ready(k) != 0 {
		t.Error("a container of what the image was is kept")
	}
}

// A hand-over that fails leaves the id free for the cold path, which says why.
func TestAFailedHandOver(t *testing.T) {
	h := harness(t, pooling(t))
	before := h.Left()
	d := h.Open(t).(*Driver)
	defer d.Close()
	spec := h.Spec(t)
	warm(t, d, spec, 1)
	gone := spec
	gone.Home = filepath.Join(spec.Home, "not-there")
	if _, err := d.Start(t.Context(), gone); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(err.Error(), "mounts denied") {
		t.Errorf("start: %v", err)
	}
	warm(t, d, spec, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Start(ctx, spec); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Errorf("cancelled start: %v", err)
	}
	d.Close()
	wantLeft(t, h, before)
}

// A mount goes only where the engine has put our own directory.
func TestAPlaceIsKnownByItsDirectory(t *testing.T) {
	h := harness(t, pooling(t))
	d := h.Open(t).(*Driver)
	defer d.Close()
	m, err := d.makeMember(t.Context(), kindFor(t, d, h.Spec(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer d.endMember(m)
	m.places[1].ino++
	if err := m.attach(nil); !errors.Is(err, errNoMounts) {
		t.Errorf("another directory: %v", err)
	}
	m.places[1].ino--
	if err := m.attach(nil); err != nil {
		t.Errorf("ours: %v", err)
	}
}

// gVisor's containers take no mounts: there is no pool and nothing else is different.
func TestNoPoolUnderGVisor(t *testing.T) {
	h := harness(t, dockertest.Find(t, "runsc"))
	before := h.Left()
	d := h.Open(t).(*Driver)
	defer d.Close()
	if fp := d.Fingerprint(t.Context()); fp.Capabilities.Pool || !fp.Works {
		t.Errorf("%+v", fp)
	}
	k := kindFor(t, d, h.Spec(t))
	if _, err := d.makeMember(t.Context(), k); !errors.Is(err, errNoMounts) {
		t.Errorf("made: %v", err)
	}
	if d.pools(world{"runsc", k.image}) {
		t.Error("it is tried again")
	}
	d.Close()
	wantLeft(t, h, before)
}

// What is wrong with one image, or with what is asked of it, takes the pool from no other.
func TestAnOddImageCostsOthersNoPool(t *testing.T) {
	own := dockertest.Start(t)
	own.Pool(t)
	d, err := New(Config{Host: own.Host, DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	good, err := d.engine.emptyImage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, headers := range map[string][]tar.Header{
		"linked": {{Name: "home/sandbox/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "workspace", Linkname: "home/sandbox", Typeflag: tar.TypeSymlink}},
		"filed":  {{Name: "workspace", Typeflag: tar.TypeReg, Mode: 0o644}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.ImportImage(t.Context(), sandboxd.ImageImport{Name: name}, &b); err != nil {
			t.Fatal(err)
		}
		spec := newSpec(t, d.cfg.DataDir)
		spec.Image = name
		odd := kindFor(t, d, spec)
		if m, err := d.makeMember(t.Context(), odd); err == nil {
			d.endMember(m)
			t.Errorf("%s: a container of it is kept ready", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
		_, err := d.Start(t.Context(), spec)
		t.Logf("%s: without the pool: %v", name, err)
		if err == nil {
			err = d.Stop(t.Context(), spec.ID)
		} else if sandboxd.ClassOf(err) == sandboxd.ClassInternal {
			t.Errorf("%s: it is not clear what is wrong", name)
		}
		if d.names.Of(spec.ID) != spec.ID {
			t.Errorf("%s: something is left", name)
		}
		spec.Image = good
		m, err := d.makeMember(t.Context(), kindFor(t, d, spec))
		if err != nil {
			t.Fatalf("after an image that is %s: %v", name, err)
		}
		d.endMember(m)
	}
}
