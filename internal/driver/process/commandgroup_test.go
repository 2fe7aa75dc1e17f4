package process

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/guest/wire"
)

// spend runs a shell command in a group of its own, with limits, and answers what the
// group counted. The group is there afterwards.
func (b *box) spend(t *testing.T, limits sandboxd.CommandLimits, shell string) (string, sandboxd.GroupUsage) {
	t.Helper()
	ctx := context.Background()
	start := drivertest.Spec(wire.Start{Argv: []string{"sh", "-c", shell}})
	files, err := b.d.CreateGroup(ctx, b.spec.ID, start.ID, limits)
	if err != nil {
		t.Fatal(err)
	}
	start.Groups = len(files)
	err = b.Link.Start(ctx, start, files)
	closeFiles(files)
	if err != nil {
		t.Fatal(err)
	}
	b.Ending(start.ID)
	u, err := b.d.GroupUsage(ctx, b.spec.ID, start.ID)
	if err != nil {
		t.Fatal(err)
	}
	return start.ID, u
}

func (b *box) removeGroup(t *testing.T, command string) {
	t.Helper()
	if err := b.d.RemoveGroup(context.Background(), b.spec.ID, command); err != nil {
		t.Fatal(err)
	}
	if _, err := b.d.GroupUsage(context.Background(), b.spec.ID, command); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Fatalf("after its removal: %v", err)
	}
}

func (b *box) spares() int { return len(b.d.commandsOf(b.spec.ID).spares) }

const greedy = `x=$(head -c 30000000 /dev/zero | tr '\0' x); i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done`

// What the next command in a used group is told is its own.
func TestUsedGroupTellsNothingOfBefore(t *testing.T) {
	need(t)
	b := openBox(t, nil)
	captest.Need(t, "cgroup1", !b.d.groups.v2, "groups are renamed on version 1 only")
	id, before := b.spend(t, sandboxd.CommandLimits{}, greedy)
	if before.PeakBytes < 25_000_000 || before.CPU < 20e6 {
		t.Fatalf("the greedy one: %+v", before)
	}
	b.removeGroup(t, id)
	if n := b.spares(); n != 1 {
		t.Fatalf("%d spares after an ordinary command", n)
	}
	id, after := b.spend(t, sandboxd.CommandLimits{}, "true")
	if n := b.spares(); n != 0 {
		t.Fatalf("%d spares while it is used", n)
	}
	if after.PeakBytes > 5_000_000 || after.CPU > before.CPU/2 || after.Processes != 0 {
		t.Errorf("the next one: %+v after %+v", after, before)
	}
	b.removeGroup(t, id)

	// A name is one group's, whether it is made or renamed.
	ctx := context.Background()
	for _, spares := range []int{0, 1} {
		files, err := b.d.CreateGroup(ctx, b.spec.ID, "same", sandboxd.CommandLimits{})
		if err != nil {
			t.Fatal(err)
		}
		closeFiles(files)
		if n := b.spares(); n != 0 {
			t.Fatalf("%d spares", n)
		}
		if spares == 1 {
			id, _ := b.spend(t, sandboxd.CommandLimits{PIDs: 30}, "true")
			b.removeGroup(t, id)
		}
		_, err = b.d.CreateGroup(ctx, b.spec.ID, "same", sandboxd.CommandLimits{})
		if sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			t.Fatalf("again: %v", err)
		}
		b.removeGroup(t, "same")
	}
}

// A group that kept a trace of its command is not used again.
func TestMarkedGroupIsRemoved(t *testing.T) {
	need(t)
	b := openBox(t, func(s *sandboxd.EnvironmentSpec) { s.Limits.PIDs = 20 })
	for name, c := range map[string]struct {
		limits sandboxd.CommandLimits
		shell  string
		kill   bool
	}{
		"own limit":         {limits: sandboxd.CommandLimits{PIDs: 10}, shell: "true"},
		"own memory limit":  {limits: sandboxd.CommandLimits{MemoryBytes: 64 << 20}, shell: "true"},
		"refused processes": {shell: "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24; do sleep 0.2 & done; wait"},
		"killed":            {shell: "true", kill: true},
		"files in memory":   {shell: "head -c 20000000 /dev/zero > big"},
	} {
		id, u := b.spend(t, c.limits, c.shell)
		if c.kill {
			if err := b.d.KillGroup(context.Background(), b.spec.ID, id); err != nil {
				t.Fatal(err)
			}
		}
		b.usageAtEnd(context.Background(), t, id, func(u sandboxd.GroupUsage) bool { return u.Processes == 0 })
		b.removeGroup(t, id)
		if n := b.spares(); n != 0 {
			t.Fatalf("%s: the group is kept, %+v", name, u)
		}
	}
}

// Groups that wait for a command are found again, and others are not taken for one.
func TestSparesAreAdopted(t *testing.T) {
	need(t)
	h := harness(t)
	before := h.Left()
	spec := h.Spec(t)
	d := h.Open(t).(*Driver)
	defer d.Close()
	captest.Need(t, "cgroup1", !d.groups.v2, "groups are renamed on version 1 only")
	handle, err := d.Start(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: drivertest.Attach(t, d, spec.ID), d: d, spec: spec}
	id, _ := b.spend(t, sandboxd.CommandLimits{}, "true")
	running, _ := b.spend(t, sandboxd.CommandLimits{}, "true")
	b.removeGroup(t, id)
	b.Link.Close()
	d.Close()

	d = h.Open(t).(*Driver)
	defer d.Close()
	if err := d.Adopt(context.Background(), spec.ID, handle); err != nil {
		t.Fatal(err)
	}
	b = &box{Session: drivertest.Attach(t, d, spec.ID), d: d, spec: spec}
	if n := b.spares(); n != 1 {
		t.Fatalf("%d spares are found", n)
	}
	if u, err := d.GroupUsage(context.Background(), spec.ID, running); err != nil || u.CPU == 0 {
		t.Errorf("of an earlier server's command: %+v, %v", u, err)
	}
	if _, err := d.CreateGroup(context.Background(), spec.ID, running, sandboxd.CommandLimits{}); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Errorf("the name of an earlier server's command: %v", err)
	}
	id, _ = b.spend(t, sandboxd.CommandLimits{}, "true")
	b.removeGroup(t, id)
	b.removeGroup(t, running)
	if n := b.spares(); n != 1 {
		t.Errorf("%d spares in the end", n)
	}
	if err := d.Stop(context.Background(), spec.ID); err != nil {
		t.Fatal(err)
	}
	b.Link.Close()
	d.Close()
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
	if _, err := os.Stat(d.groups.dir("pids", spec.ID)); !os.IsNotExist(err) {
		t.Errorf("the sandbox's group: %v", err)
	}
}

// What a command leaves behind costs the server no descriptor, and its group goes when
// the last process of it has ended by itself.
func TestLeftBehindIsLetGo(t *testing.T) {
	need(t)
	b := openBox(t, nil)
	ctx := context.Background()
	const n = 5
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	id, _ := b.spend(t, sandboxd.CommandLimits{}, "true") // what is opened once is open
	b.removeGroup(t, id)
	before := open()
	var left []string
	for range n {
		id, u := b.spend(t, sandboxd.CommandLimits{}, "(until [ -e go ]; do sleep 0.02; done) >/dev/null 2>&1 &")
		if u.Processes == 0 {
			t.Fatal("nothing is left behind")
		}
		if err := b.d.RemoveGroup(ctx, b.spec.ID, id); sandboxd.ClassOf(err) != sandboxd.ClassBusy {
			t.Fatalf("with processes in it: %v", err)
		}
		left = append(left, id)
	}
	// One spare may be in use or not.
	if after := open(); after > before+2 {
		t.Errorf("%d descriptors after %d groups were left behind, %d before", after, n, before)
	}
	id, _ = b.spend(t, sandboxd.CommandLimits{}, "touch go")
	b.removeGroup(t, id)
	// Where the processes ended at once, the group went with the command that let them.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(drivertest.Patience)
	for _, id := range left {
		for {
			u, err := b.d.GroupUsage(ctx, b.spec.ID, id)
			if sandboxd.ClassOf(err) == sandboxd.ClassNotFound && err != nil || err == nil && u.Processes == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("group %s still has processes: %+v, %v", id, u, err)
			}
			<-tick.C
		}
	}
	for range n {
		id, _ := b.spend(t, sandboxd.CommandLimits{}, "true")
		b.removeGroup(t, id)
	}
	for _, id := range left {
		if _, err := b.d.GroupUsage(ctx, b.spec.ID, id); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
			t.Errorf("group %s after its processes have ended: %v", id, err)
		}
	}
}

// A server that dies between two hierarchies leaves a group of two names.
func TestHalfRenamedGroupIsNotUsed(t *testing.T) {
	need(t)
	b := openBox(t, nil)
	captest.Need(t, "cgroup1", !b.d.groups.v2, "groups are renamed on version 1 only")
	id, _ := b.spend(t, sandboxd.CommandLimits{}, "true")
	b.removeGroup(t, id)
	spare := b.d.groups.dir("memory", b.d.commandsOf(b.spec.ID).spares[0].sub)
	if err := os.Rename(spare, filepath.Join(filepath.Dir(spare), leafPrefix+"half")); err != nil {
		t.Fatal(err)
	}
	later := newCommandGroups(b.d.groups)
	defer later.close()
	later.adopt(b.spec.ID)
	if len(later.spares) != 0 || later.made == 0 {
		t.Fatalf("%d spares are found, the last number is %d", len(later.spares), later.made)
	}
}
