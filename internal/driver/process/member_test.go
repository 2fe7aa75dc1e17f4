package process

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/driver/names"
)

// take answers a member that was made for sandboxes as that of spec.
func take(t *testing.T, d *Driver, spec sandboxd.EnvironmentSpec) *member {
	t.Helper()
	program, err := d.init.Install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.makeMember(t.Context(), kindOf(program, spec))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// abandon does what the kernel does at the end of a server.
func abandon(t *testing.T, m *member) {
	t.Helper()
	pidfd := m.pidfd
	m.pidfd = -1
	m.close()
	defer unix.Close(pidfd)
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	if n, err := retryInterrupted(func() (int, error) { return unix.Poll(fds, int(drivertest.Patience/time.Millisecond)) }); n != 1 {
		t.Fatalf("a member lives on without its server: %v", err)
	}
	waitPID(m.pid, 0)
}

// What waits ends with its server; what that leaves, the next one removes.
func TestMembersOfADeadServer(t *testing.T) {
	need(t)
	h := harness(t)
	d := h.Open(t).(*Driver)
	before := h.Left()
	spec := h.Spec(t)
	abandon(t, take(t, d, spec))
	handed := h.Spec(t) // whose server died when the link was made
	m := take(t, d, handed)
	if err := d.names.Link(handed.ID, m.name); err != nil {
		t.Fatal(err)
	}
	abandon(t, m)
	if h.Left() == before {
		t.Fatal("nothing was left to be swept")
	}
	d.Close()
	d = h.Open(t).(*Driver)
	defer d.Close()
	d.KeepReady(0)
	if ids, err := d.List(t.Context()); err != nil || len(ids) != 1 || ids[0] != handed.ID {
		t.Errorf("list: %v, %v", ids, err)
	}
	if _, err := d.Start(t.Context(), handed); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Errorf("start beside what a dead server left: %v", err)
	}
	if err := d.Stop(t.Context(), handed.ID); err != nil {
		t.Error(err)
	}
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// A member that cannot be handed over costs the sandbox nothing.
func TestADeadMemberIsAMiss(t *testing.T) {
	need(t)
	h := harness(t)
	d := h.Open(t).(*Driver)
	defer d.Close()
	before := h.Left()
	spec := h.Spec(t)
	warm(t, d, spec, 1)
	for _, name := range members(t, d) {
		for _, pid := range d.groups.members(name) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := d.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if d.nameOf(spec.ID) != spec.ID {
		t.Error("a dead member became a sandbox")
	}
	s := drivertest.Attach(t, d, spec.ID)
	if r := s.Run("whoami"); r.Stdout != "sandbox\n" {
		t.Errorf("whoami: %+v", r)
	}
	s.Link.Close()
	d.ready.Close()
	if err := d.Stop(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// members names what is ready.
func members(t *testing.T, d *Driver) (ready []string) {
	t.Helper()
	all, err := d.groups.list()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if names.IsMember(name) {
			ready = append(ready, name)
		}
	}
	return ready
}

// What is asked for in another way than what is ready is made at once.
func TestAnotherKindIsAMiss(t *testing.T) {
	need(t)
	h := harness(t)
	d := h.Open(t).(*Driver)
	defer d.Close()
	spec := h.Spec(t)
	warm(t, d, spec, 1)
	for _, change := range []func(*sandboxd.EnvironmentSpec){
		func(s *sandboxd.EnvironmentSpec) { s.Hostname = "other" },
		func(s *sandboxd.EnvironmentSpec) { s.Limits.TmpBytes *= 2 },
		func(s *sandboxd.EnvironmentSpec) { s.Limits.MemoryBytes *= 2 },
	} {
		other := h.Spec(t)
		change(&other)
		if _, err := d.Start(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if d.nameOf(other.ID) != other.ID {
			t.Errorf("a sandbox of %+v was made from another kind", other)
		}
		if err := d.Stop(t.Context(), other.ID); err != nil {
			t.Error(err)
		}
	}
	program, err := d.init.Install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if k := kindOf(program, spec); k == kindOf(program+"-newer", spec) {
		t.Error("another init is the same kind")
	}
}

// The files of a sandbox that was there before are seen, and nothing that is mounted
// on them on the machine, before or after.
func TestAPooledSandboxSeesItsFilesAndNoMounts(t *testing.T) {
	need(t)
	before := func() {}
	defer func() { before() }()
	b := openPooled(t, func(s *sandboxd.EnvironmentSpec) {
		for name, dir := range map[string]string{"work": s.Workspace, "home": s.Home} {
			if err := os.WriteFile(filepath.Join(dir, "kept"), []byte(name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, sub := range []string{"before", "after"} {
			if err := os.Mkdir(filepath.Join(s.Workspace, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		before = mount(t, filepath.Join(s.Workspace, "before"))
	})
	defer mount(t, filepath.Join(b.spec.Workspace, "after"))()
	if r := b.Run("cat", "/workspace/kept", "/home/sandbox/kept"); r.Stdout != "workhome" {
		t.Errorf("kept files: %+v", r)
	}
	if r := b.Run("ls", "before", "after"); strings.Contains(r.Stdout, "foreign") || r.Exit.Code != 0 {
		t.Errorf("mounts of the machine are seen: %+v", r)
	}
	if r := b.Run("grep", "-c", " - tmpfs .*foreign", "/proc/self/mountinfo"); r.Stdout != "0\n" {
		t.Errorf("mounts of the machine are there: %+v", r)
	}
	if r := b.Run("sh", "-c", "echo mine >/workspace/new && id -un && id -u"); !strings.HasPrefix(r.Stdout, "sandbox\n") || r.Exit.Code != 0 {
		t.Errorf("write: %+v", r)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(b.spec.Workspace, "new"), &st); err != nil || st.Uid != b.spec.UID {
		t.Errorf("the owner of what it wrote is %d, want %d: %v", st.Uid, b.spec.UID, err)
	}
}

// mount mounts a file system with a file on dir and answers what ends that.
func mount(t *testing.T, dir string) (unmount func()) {
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

// The first command of a pooled sandbox waits for no group, and is limited and counted
// as any other.
func TestAPooledSandboxHasAGroupForItsFirstCommand(t *testing.T) {
	need(t)
	b := openPooled(t, func(s *sandboxd.EnvironmentSpec) { s.Limits.PIDs = 20 })
	captest.Need(t, "cgroup1", !b.d.groups.v2, "groups are renamed on version 1 only")
	if n := b.spares(); n != 1 {
		t.Fatalf("%d spares before the first command", n)
	}
	id, u := b.spend(t, sandboxd.CommandLimits{}, "for i in $(seq 40); do sleep 1 & done 2>/dev/null")
	if n := b.spares(); n != 0 {
		t.Fatalf("%d spares while it is used", n)
	}
	if u.PIDsRefused == 0 || u.PIDsLimit != 20 {
		t.Errorf("who starts 40 processes: %+v", u)
	}
	if err := b.d.KillGroup(t.Context(), b.spec.ID, id); err != nil {
		t.Fatal(err)
	}
	b.removeGroup(t, id)
}

// A hand-over that fails leaves the id free for the cold path, which says why.
func TestAFailedHandOver(t *testing.T) {
	need(t)
	h := harness(t)
	d := h.Open(t).(*Driver)
	defer d.Close()
	before := h.Left()
	spec := h.Spec(t)
	warm(t, d, spec, 1)
	gone := spec
	gone.Home = filepath.Join(spec.Home, "not-there")
	_, err := d.Start(t.Context(), gone)
	if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(err.Error(), `"build the root"`) {
		t.Errorf("start: %v", err)
	}
	warm(t, d, spec, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Start(ctx, spec); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Errorf("cancelled start: %v", err)
	}
	d.ready.Close()
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}
