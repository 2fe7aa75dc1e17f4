package docker

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
)

// What a sandbox may use is bounded by the kernel, and a kill for memory is heard of.
func TestLimits(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			e := dockertest.Find(t, runtime)
			if runtime == "runsc" {
				found, err := e.API.Info(t.Context(), client.InfoOptions{})
				if err != nil {
					t.Fatal(err)
				}
				captest.Need(t, "runsc_cgroups", !slices.Contains(found.Info.Runtimes[runtime].Args, "--ignore-cgroups"),
					"the engine's runsc is set up to ignore cgroups")
			}
			b := openBox(t, e, func(s *sandboxd.EnvironmentSpec) {
				s.Limits = sandboxd.Limits{MemoryBytes: 64 << 20, CPUs: 0.5, PIDs: 20, TmpBytes: 8 << 20, OpenFiles: 100}
			})
			sh := func(script string) string {
				r := b.Run("/bin/sh", "-c", script)
				return strings.TrimSpace(r.Stdout + r.Stderr)
			}
			if n := b.d.MemoryKills(b.spec.ID); n != 0 {
				t.Errorf("%d kills before any", n)
			}
			if r := b.Run("tail", "/dev/zero"); r.Exit.Signal != 9 {
				t.Errorf("who takes too much memory: %+v", r.Exit)
			}
			until(t, "the kill is heard of", func() bool { return b.d.MemoryKills(b.spec.ID) > 0 })
			for _, test := range []struct{ what, script, says string }{
				{"open files", "ulimit -n; ulimit -Hn", "100\n100"},
				{"core files", "ulimit -Hc", "0"},
				{"/tmp", "head -c 9m /dev/zero >/tmp/f; wc -c </tmp/f; rm /tmp/f", "8388608"},
				{"/dev/shm", "head -c 9m /dev/zero >/dev/shm/f; wc -c </dev/shm/f; rm /dev/shm/f", "8388608"},
				{"processor time", "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max", "50000"},
				{"no swap", "cat /sys/fs/cgroup/memory/memory.memsw.limit_in_bytes 2>/dev/null || echo 67108864", "67108864"},
				{"who it is", "id -un; id -gn; echo ~", "sandbox\nsandbox\n/home/sandbox"},
				{"the root", "touch /usr/x", "Read-only file system"},
				{"the engine's own", "ls /.dockerenv /run/docker.sock /var/run/docker.sock 2>&1 | grep -c sock", "2"},
				{"processes", "for i in $(seq 100); do sleep 1 & done", "Cannot fork"},
			} {
				if got := sh(test.script); !strings.Contains(got, test.says) {
					t.Errorf("%s: %q, want %q", test.what, got, test.says)
				}
			}
		})
	}
}

// The init has no memory of its own: it is in the commands' limit. What fills that
// without being big itself, as files in /tmp, does not make the kernel take the init.
func TestCommandsGoBeforeTheInit(t *testing.T) {
	b := openBox(t, dockertest.Find(t, "runc"), func(s *sandboxd.EnvironmentSpec) {
		s.Limits = sandboxd.Limits{MemoryBytes: 32 << 20, CPUs: 1, PIDs: 64, TmpBytes: 256 << 20, OpenFiles: 100}
	})
	if r := b.Run("cat", "/proc/self/oom_score_adj"); r.Stdout != "1000\n" {
		t.Errorf("a command's preference: %q", r.Stdout)
	}
	// The init has it as the commands while it starts one, and this one may be first.
	const own = `for i in $(seq 500); do read n </proc/1/oom_score_adj; [ "$n" = 1000 ] || break; sleep 0.01; done; echo $n`
	if r := b.Run("sh", "-c", own); r.Stdout != fmt.Sprintln(oomScore) {
		t.Errorf("the init's preference: %q", r.Stdout)
	}
	for i := range 3 {
		if r := b.Run("dd", "if=/dev/zero", fmt.Sprintf("of=/tmp/fill%d", i), "bs=64k"); r.Exit.Signal != 9 {
			t.Errorf("who fills /tmp: %+v", r.Exit)
		}
	}
	if err := b.Link.Ping(t.Context()); err != nil {
		t.Errorf("the init: %v", err)
	}
	if status, err := b.d.Inspect(t.Context(), b.spec.ID); err != nil || !status.Running {
		t.Errorf("%+v, %v", status, err)
	}
}
