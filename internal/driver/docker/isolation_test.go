package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/driver/names"
)

// box is one running sandbox of a test.
type box struct {
	*drivertest.Session
	e    dockertest.Engine
	d    *Driver
	spec sandboxd.EnvironmentSpec
}

// openBox starts a sandbox that the end of the test stops.
func openBox(t testing.TB, e dockertest.Engine, change func(*sandboxd.EnvironmentSpec)) *box {
	t.Helper()
	return open(t, e, change, 0)
}

// openPooled is openBox with a container from the pool.
func openPooled(t testing.TB, e dockertest.Engine, change func(*sandboxd.EnvironmentSpec)) *box {
	t.Helper()
	b := open(t, e, change, 1)
	if !names.IsMember(b.d.names.Of(b.spec.ID)) {
		t.Fatal("the sandbox did not come from the pool")
	}
	return b
}

func open(t testing.TB, e dockertest.Engine, change func(*sandboxd.EnvironmentSpec), ready int) *box {
	t.Helper()
	h := harness(t, e)
	before := h.Left()
	d := h.Open(t).(*Driver)
	spec := h.Spec(t)
	if change != nil {
		change(&spec)
	}
	if ready > 0 {
		warm(t, d, spec, ready)
	}
	t.Cleanup(func() {
		if err := d.Stop(context.Background(), spec.ID); err != nil {
			t.Errorf("stop: %v", err)
		}
		d.Close()
		if after := h.Left(); after != before {
			t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
		}
	})
	if _, err := d.Start(context.Background(), spec); err != nil {
		t.Fatalf("start: %v", err)
	}
	d.ready.Close() // no others are made beside the test
	return &box{Session: drivertest.Attach(t, d, spec.ID), e: e, d: d, spec: spec}
}

// probe builds the prober into the workspace and runs it.
func (b *box) probe(t *testing.T) map[string]string {
	t.Helper()
	name := filepath.Join(b.spec.Workspace, "prober")
	cmd := exec.Command("go", "build", "-o", name, "sandboxd/internal/isolate/prober")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the prober: %v: %s", err, out)
	}
	if err := os.Chmod(name, 0o755); err != nil {
		t.Fatal(err)
	}
	r := b.Run("./prober")
	var out map[string]string
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("the prober said %q, %q, %+v: %v", r.Stdout, r.Stderr, r.Exit, err)
	}
	return out
}

// answers that mean no, whatever said it first.
const denied = "EPERM EACCES EROFS"

func TestIsolation(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			b := openBox(t, dockertest.Find(t, runtime), nil)
			checkProbe(t, b.probe(t), wantedOf(runtime, fmt.Sprint(b.spec.UID)))
		})
	}
}

// A sandbox from the pool is as one that was made for itself; its user has no group
// beside its own, where an engine names that one twice.
func TestIsolationOfPooled(t *testing.T) {
	b := openPooled(t, pooling(t), nil)
	want := wantedOf("runc", fmt.Sprint(b.spec.UID))
	want["status Groups"] = ""
	checkProbe(t, b.probe(t), want)
}

// wantedOf is what the prober must find. Under gVisor another kernel answers: it
// knows fewer things, and does not keep a sandbox from looking at its own process 1.
func wantedOf(runtime, uid string) map[string]string {
	four := strings.Join([]string{uid, uid, uid, uid}, " ")
	want := map[string]string{
		"status CapInh": "0000000000000000", "status CapPrm": "0000000000000000", "status CapEff": "0000000000000000",
		"status CapBnd": "0000000000000000", "status Seccomp": "2", "status Uid": four, "status Gid": four,
		"status Groups": uid, "hostname": "box", "interfaces": "lo",
		// The prober's own runtime holds two files of /sys/fs/cgroup.
		"processes": "2", "open files": "4096 4096", "descriptors": "3 5", "command lines": "/.sandboxd-init attached |./prober ",
		"create in /": denied, "create in /usr": denied, "create in /usr/bin": denied, "create in /etc": denied, "create in /dev": denied,
		"create in /dev/pts": denied, "create in /proc": "EACCES EPERM ENOENT", "create in /run": denied, "create in /var": denied, "create in /home": denied,
		"create in /workspace": "ok", "create in /home/sandbox": "ok", "create in /tmp": "ok", "create in /dev/shm": "ok",
		"write /proc/sys/kernel/hostname": denied, "write /proc/sys/kernel/core_pattern": denied + " ENOENT", "write /proc/sysrq-trigger": "EACCES EROFS ENOENT",
		"write /proc/1/mem": denied, "write /proc/1/exe": denied, "write /proc/1/oom_score_adj": denied, "write /etc/passwd": denied,
		"write /usr/bin/env": denied, "read /proc/1/environ": denied, "read /proc/1/maps": denied, "read /proc/1/fd": denied,
		"read /proc/1/root": denied, "read /proc/1/cwd": denied, "read /root": "EACCES", "read /etc/shadow": "EACCES ENOENT",
		"read /proc/scsi/scsi": "ENOENT", "read /dev/mem": "ENOENT", "read /dev/kmsg": "ENOENT", "read /dev/vda": "ENOENT",
		"read /proc/kcore": "empty EACCES ENOENT", "read /proc/keys": "empty ENOENT", "read /proc/timer_list": "empty ENOENT", "read /proc/kallsyms": "empty ENOENT",
		"mknod": denied, "rename across directories": "ok",
		"call clone3": "ENOSYS", "call io_uring_setup": "ENOSYS", "call io_uring_enter": "ENOSYS", "call io_uring_register": "ENOSYS",
		"call unshare nothing": "ok", "call personality ask": "ok", "call other ioctl": "EBADF", "call a call of the future": "ENOSYS",
		"call AF_VSOCK": "EAFNOSUPPORT", "call AF_ALG": "EAFNOSUPPORT", "call AF_PACKET": "EAFNOSUPPORT",
		"call netlink of netfilter": "EPROTONOSUPPORT", "call netlink of routes": "ok",
		"listen on loopback": "ok", "reach the network": "ENETUNREACH EHOSTUNREACH",
	}
	if goruntime.GOARCH == "amd64" {
		want["call of x32"] = "ENOSYS"
	}
	if runtime == "runsc" {
		want["call personality ask"] = "EINVAL"
		for _, name := range []string{"read /proc/1/environ", "read /proc/1/maps", "read /proc/1/fd", "mknod"} {
			want[name] = "ok"
		}
		return want
	}
	want["status CapAmb"], want["status NoNewPrivs"] = "0000000000000000", "1"
	return want
}

func checkProbe(t *testing.T, got, want map[string]string) {
	t.Helper()
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
		t.Errorf("not probed: %s", name)
	}
}
