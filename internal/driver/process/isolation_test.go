package process

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/guest/wire"
)

// box is one running sandbox of a test, with the prober in its workspace.
type box struct {
	*drivertest.Session
	d    *Driver
	spec sandboxd.EnvironmentSpec
}

// opener starts a sandbox that the end of the test stops.
type opener func(t testing.TB, change func(*sandboxd.EnvironmentSpec)) *box

// both runs a test with sandboxes that were made for it, and with ones that were
// ready before.
func both(t *testing.T, test func(t *testing.T, open opener)) {
	need(t)
	t.Run("cold", func(t *testing.T) { test(t, openBox) })
	t.Run("pooled", func(t *testing.T) { test(t, openPooled) })
}

func openBox(t testing.TB, change func(*sandboxd.EnvironmentSpec)) *box {
	t.Helper()
	return open(t, change, 0)
}

func openPooled(t testing.TB, change func(*sandboxd.EnvironmentSpec)) *box {
	t.Helper()
	b := open(t, change, 1)
	if b.d.nameOf(b.spec.ID) == b.spec.ID {
		t.Fatal("the sandbox did not come from the pool")
	}
	return b
}

func open(t testing.TB, change func(*sandboxd.EnvironmentSpec), ready int) *box {
	t.Helper()
	h := harness(t)
	before := h.Left()
	opened := h.Open(t)
	d := bare(opened)
	spec := h.Spec(t)
	if change != nil {
		change(&spec)
	}
	warm(t, d, spec, ready)
	if _, err := d.Start(context.Background(), spec); err != nil {
		t.Fatalf("start: %v", err)
	}
	d.ready.Close() // no others are made beside the test
	t.Cleanup(func() {
		if err := d.Stop(context.Background(), spec.ID); err != nil {
			t.Errorf("stop: %v", err)
		}
		d.Close()
		if after := h.Left(); after != before {
			t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
		}
	})
	return &box{Session: drivertest.Attach(t, opened, spec.ID), d: d, spec: spec}
}

func buildProber(t testing.TB, name string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", name, "sandboxd/internal/isolate/prober")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the prober: %v: %s", err, out)
	}
	if err := os.Chmod(name, 0o755); err != nil {
		t.Fatal(err)
	}
}

// probe builds the prober into the workspace and runs it.
func (b *box) probe(t *testing.T, args ...string) map[string]string {
	t.Helper()
	buildProber(t, filepath.Join(b.spec.Workspace, "prober"))
	return b.prove(t, args...)
}

// prove runs the prober that is in the workspace.
func (b *box) prove(t *testing.T, args ...string) map[string]string {
	t.Helper()
	r := b.Run(append([]string{"./prober"}, args...)...)
	var out map[string]string
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("the prober said %q, %q, %+v: %v", r.Stdout, r.Stderr, r.Exit, err)
	}
	return out
}

// answers that mean no, whatever said it first.
const denied = "EPERM EACCES EROFS"

func TestIsolation(t *testing.T) { both(t, testIsolation) }

func testIsolation(t *testing.T, openBox opener) {
	b := openBox(t, nil)
	b.judge(t, b.probe(t))
}

// judge compares what the prober found with what a sandbox must be.
func (b *box) judge(t *testing.T, got map[string]string) {
	t.Helper()
	uid := fmt.Sprint(b.spec.UID)
	four := strings.Join([]string{uid, uid, uid, uid}, " ")
	want := map[string]string{
		"status CapInh": "0000000000000000", "status CapPrm": "0000000000000000", "status CapEff": "0000000000000000",
		"status CapBnd": "0000000000000000", "status CapAmb": "0000000000000000", "status NoNewPrivs": "1", "status Seccomp": "2",
		"status Uid": four, "status Gid": four, "status Groups": "", "hostname": "box", "interfaces": "lo",
		"processes": "2", "command lines": "init |./prober ", "open files": "4096 4096", "descriptors": "3",
		"create in /": denied, "create in /usr": denied, "create in /usr/bin": denied, "create in /etc": denied, "create in /dev": denied,
		"create in /dev/pts": denied, "create in /proc": "EACCES EPERM ENOENT", "create in /run": denied, "create in /var": denied, "create in /home": denied,
		"create in /workspace": "ok", "create in /home/sandbox": "ok", "create in /tmp": "ok", "create in /dev/shm": "ok",
		"write /proc/sys/kernel/hostname": denied, "write /proc/sys/kernel/core_pattern": denied, "write /proc/sysrq-trigger": "EACCES EROFS ENOENT ok",
		"write /proc/1/mem": denied, "write /proc/1/exe": denied, "write /proc/1/oom_score_adj": denied, "write /etc/passwd": denied,
		"write /usr/bin/env": denied, "read /proc/1/environ": denied, "read /proc/1/maps": denied, "read /proc/1/fd": denied,
		"read /proc/1/root": denied, "read /proc/1/cwd": denied, "read /sys": "ENOENT", "read /root": "ENOENT", "read /etc/shadow": "ENOENT",
		"read /proc/scsi/scsi": "ENOENT", "read /dev/mem": "ENOENT", "read /dev/kmsg": "ENOENT", "read /dev/vda": "ENOENT", "read /var/lib": "ENOENT",
		"read /proc/kcore": "empty EACCES ENOENT", "read /proc/keys": "empty ENOENT", "read /proc/timer_list": "empty ENOENT", "read /proc/kallsyms": "empty ENOENT",
		"mknod": denied, "rename across directories": "ok",
		"call clone3": "ENOSYS", "call io_uring_setup": "ENOSYS", "call io_uring_enter": "ENOSYS", "call io_uring_register": "ENOSYS",
		"call unshare nothing": "ok", "call personality ask": "ok", "call other ioctl": "EBADF", "call a call of the future": "ENOSYS",
		"call of x32": "ENOSYS", "call AF_VSOCK": "EAFNOSUPPORT", "call AF_ALG": "EAFNOSUPPORT", "call AF_PACKET": "EAFNOSUPPORT",
		"call netlink of netfilter": "EPROTONOSUPPORT", "call netlink of routes": "ok",
		"listen on loopback": "ok", "reach the network": "ENETUNREACH",
	}
	for name, answer := range got {
		expected, ok := want[name]
		if !ok && strings.HasPrefix(name, "call ") {
			expected, ok = "EPERM", true
		}
		if !ok {
			continue
		}
		if answer != expected && !(answer != "" && strings.Contains(" "+expected+" ", " "+answer+" ")) {
			t.Errorf("%s: %s, want %s", name, answer, expected)
		}
		delete(want, name)
	}
	for name := range want {
		if name != "call of x32" {
			t.Errorf("not probed: %s", name)
		}
	}
}

func TestLandlockIsInForce(t *testing.T) { both(t, testLandlockIsInForce) }

func testLandlockIsInForce(t *testing.T, openBox opener) {
	b := openBox(t, nil)
	captest.Need(t, "landlock", b.d.landlock >= 2, "the kernel has no usable Landlock")
	// The kernel stacks at most 16 rulesets on a process: one is there already.
	if left := b.probe(t)["landlock layers left"]; left != "15" {
		t.Errorf("%s more rulesets can be stacked, want 15", left)
	}
	if r := b.Run("sh", "-c", "echo x >/proc/self/comm && echo fine"); r.Stdout != "fine\n" {
		t.Errorf("a process may not write its own name: %+v", r)
	}
}

func TestSignalsToProcessOne(t *testing.T) { both(t, testSignalsToProcessOne) }

func testSignalsToProcessOne(t *testing.T, openBox opener) {
	b := openBox(t, nil)
	other := openBox(t, nil)
	sleeper, err := other.Start(wire.Start{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.probe(t, "signals"); got["signal everything"] != "ok" && got["signal everything"] != "ESRCH" {
		t.Errorf("kill(-1): %s", got["signal everything"])
	}
	for _, box := range []*box{b, other} {
		if r := box.Run("echo", "alive"); r.Stdout != "alive\n" {
			t.Errorf("after the signals: %+v", r)
		}
	}
	u, err := other.d.GroupUsage(context.Background(), other.spec.ID, sleeper)
	if err != nil || u.Processes != 1 {
		t.Errorf("the other sandbox's process: %+v, %v", u, err)
	}
}

func TestTerminal(t *testing.T) { both(t, testTerminal) }

func testTerminal(t *testing.T, openBox opener) {
	b := openBox(t, nil)
	ctx := context.Background()
	id, err := b.Start(wire.Start{Argv: []string{"sh", "-c", "stty size; tty; read line; echo got $line; stty size; cat"}, TTY: true, Cols: 91, Rows: 37, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Link.Resize(ctx, id, sandboxd.TTY{Cols: 100, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	if err := b.Link.Stdin(ctx, id, []byte("word\n"), true); err != nil {
		t.Fatal(err)
	}
	r := b.Wait(id)
	if !strings.Contains(r.Stdout, "/dev/pts/") || !strings.Contains(r.Stdout, "got word") || !strings.Contains(r.Stdout, "40 100") || r.Exit.Code != 0 {
		t.Errorf("terminal: %+v", r)
	}
}

func TestExits(t *testing.T) { both(t, testExits) }

func testExits(t *testing.T, openBox opener) {
	b := openBox(t, nil)
	for _, test := range []struct {
		start wire.Start
		code  int
		out   string
	}{
		{wire.Start{Argv: []string{"sh", "-c", "exit 7"}}, 7, ""},
		{wire.Start{Argv: []string{"pwd"}}, 0, "/workspace\n"},
		{wire.Start{Argv: []string{"pwd"}, Cwd: "/tmp"}, 0, "/tmp\n"},
		{wire.Start{Argv: []string{"whoami"}}, 0, "sandbox\n"},
		{wire.Start{Argv: []string{"sh", "-c", "cat /proc/sys/kernel/hostname; getent hosts localhost >/dev/null && echo known"}}, 0, "box\nknown\n"},
		{wire.Start{Argv: []string{"sh", "-c", "cp /bin/true /tmp/t && /tmp/t && echo runs"}}, 0, "runs\n"},
		{wire.Start{Argv: []string{"sh", "-c", "ulimit -c"}}, 0, "0\n"},
		{wire.Start{Argv: []string{"/usr/bin/python3", "-c", "import ssl, socket, subprocess, threading\nsubprocess.run(['true'], check=True)\nt = threading.Thread(target=print, args=('thread',))\nt.start(); t.join()"}}, 0, "thread\n"},
	} {
		id, err := b.Start(test.start)
		if err != nil {
			t.Fatalf("%q: %v", test.start.Argv, err)
		}
		if r := b.Wait(id); r.Exit.Code != test.code || r.Exit.Signal != 0 || r.Stdout != test.out {
			t.Errorf("%q: %+v", test.start.Argv, r)
		}
	}
}

func TestLimits(t *testing.T) { both(t, testLimits) }

func testLimits(t *testing.T, openBox opener) {
	b := openBox(t, func(s *sandboxd.EnvironmentSpec) { s.Limits.MemoryBytes, s.Limits.PIDs = 64<<20, 40 })
	ctx := context.Background()
	// In one stride by one process: several that creep to the limit keep taking
	// each other's program pages, and the kernel reads them again for minutes
	// before it gives up.
	eat, err := b.Start(wire.Start{Argv: []string{"python3", "-c", "b'x' * (400 << 20)"}})
	if err != nil {
		t.Fatal(err)
	}
	usage := b.usageAtEnd(ctx, t, eat, func(u sandboxd.GroupUsage) bool { return u.OOMKills > 0 })
	if usage.MemoryLimit != 64<<20 || !usage.OOMInSandbox || usage.PeakBytes < 32<<20 || usage.CPU <= 0 {
		t.Errorf("memory: %+v", usage)
	}
	b.Wait(eat)
	fork, err := b.Start(wire.Start{Argv: []string{"sh", "-c", "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i+1)); done; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	usage = b.usageAtEnd(ctx, t, fork, func(u sandboxd.GroupUsage) bool { return u.PIDsRefused > 0 })
	if usage.PIDsLimit != 40 {
		t.Errorf("processes: %+v", usage)
	}
	if err := b.d.KillGroup(ctx, b.spec.ID, fork); err != nil {
		t.Fatal(err)
	}
	b.Wait(fork)
	if r := b.Run("true"); r.Exit.Code != 0 {
		t.Errorf("afterwards: %+v", r)
	}
}

// usageAtEnd waits for usage to be as wanted.
func (b *box) usageAtEnd(ctx context.Context, t *testing.T, command string, want func(sandboxd.GroupUsage) bool) sandboxd.GroupUsage {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(drivertest.Patience)
	for {
		u, err := b.d.GroupUsage(ctx, b.spec.ID, command)
		if err != nil {
			t.Fatal(err)
		}
		if want(u) {
			return u
		}
		if time.Now().After(deadline) {
			t.Fatalf("usage stays %+v", u)
		}
		<-tick.C
	}
}

func TestStopOfManyProcesses(t *testing.T) { both(t, testStopOfManyProcesses) }

func testStopOfManyProcesses(t *testing.T, openBox opener) {
	b := openBox(t, nil)
	id, err := b.Start(wire.Start{Argv: []string{"sh", "-c", "trap '' TERM; i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; echo up; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	b.usageAtEnd(context.Background(), t, id, func(u sandboxd.GroupUsage) bool { return u.Processes > 200 })
	begin := time.Now()
	if err := b.d.Stop(context.Background(), b.spec.ID); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("stop took %v", took)
	}
}

func TestFailedStartNamesTheStepAndLeavesNothing(t *testing.T) {
	need(t)
	h := harness(t)
	d := h.Open(t)
	defer d.Close()
	spec := h.Spec(t)
	before := h.Left()
	spec.Workspace = filepath.Join(spec.Workspace, "not-there")
	_, err := d.Start(context.Background(), spec)
	if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(err.Error(), `"build the root"`) {
		t.Errorf("start: %v", err)
	}
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := d.Start(ctx, h.Spec(t)); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Errorf("cancelled start: %v", err)
	}
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}
