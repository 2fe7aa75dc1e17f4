package docker

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/guest/wire"
)

// What a sandbox may use is bounded by the kernel, and a kill for memory is heard of.
func TestLimits(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			e := dockertest.Find(t, runtime)
			if runtime == "runsc" {
				captest.Need(t, "runsc_cgroups", !ignoresCgroups(t, e), "the engine's runsc is set up to ignore cgroups")
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

// Work is seen under gVisor too, also where its engine has no counters of a container.
func TestWorkIsMeasured(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			b := openBox(t, dockertest.Find(t, runtime), nil)
			if _, err := b.Start(wire.Start{Argv: []string{"sh", "-c", "while :; do :; done"}, Env: drivertest.Environment()}); err != nil {
				t.Fatal(err)
			}
			until(t, "half a second of work", func() bool {
				s, err := b.d.Sample(t.Context(), b.spec.ID)
				if err != nil {
					t.Fatal(err)
				}
				return s.CPU > 500*time.Millisecond
			})
		})
	}
}

// The init has no memory of its own: it is in the commands' limit. With the
// directories in memory full, who takes the rest goes before it.
func TestCommandsGoBeforeTheInit(t *testing.T) {
	b := openBox(t, dockertest.Find(t, "runc"), func(s *sandboxd.EnvironmentSpec) {
		s.Limits = sandboxd.Limits{MemoryBytes: 32 << 20, CPUs: 1, PIDs: 64, TmpBytes: 8 << 20, OpenFiles: 100}
	})
	if r := b.Run("cat", "/proc/self/oom_score_adj"); r.Stdout != "1000\n" {
		t.Errorf("a command's preference: %q", r.Stdout)
	}
	// The init has it as the commands while it starts one, and this one may be first.
	const own = `for i in $(seq 500); do read n </proc/1/oom_score_adj; [ "$n" = 1000 ] || break; sleep 0.01; done; echo $n`
	if r := b.Run("sh", "-c", own); r.Stdout != fmt.Sprintln(oomScore) {
		t.Errorf("the init's preference: %q", r.Stdout)
	}
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		if r := b.Run("dd", "if=/dev/zero", "of="+dir+"/fill", "bs=64k"); !strings.Contains(r.Stderr, "No space left") {
			t.Errorf("who fills %s: %+v", dir, r)
		}
	}
	for range 3 {
		if r := b.Run("tail", "/dev/zero"); r.Exit.Signal != 9 {
			t.Errorf("who takes the rest: %+v", r)
		}
	}
	if err := b.Link.Ping(t.Context()); err != nil {
		t.Errorf("the init: %v", err)
	}
	if status, err := b.d.Inspect(t.Context(), b.spec.ID); err != nil || !status.Running {
		t.Errorf("%+v, %v", status, err)
	}
}

// Process 1 is in the commands' limit of processes, too. Whatever takes all of that, it
// goes on, and what a stopped command leaves is gone when its ending is told: the next
// command has its place.
func TestTheInitOutlivesABomb(t *testing.T) {
	b := openBox(t, dockertest.Find(t, "runc"), func(s *sandboxd.EnvironmentSpec) {
		s.Limits = sandboxd.Limits{MemoryBytes: 256 << 20, CPUs: 1, PIDs: 40, TmpBytes: 8 << 20, OpenFiles: 100}
	})
	threads := func() int {
		r := b.Run("awk", "/^Threads/ { print $2 }", "/proc/1/status")
		n, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
		if err != nil {
			t.Fatalf("the threads of the init: %+v", r)
		}
		return n
	}
	if n := threads(); n < 16 || n > initProcesses-4 {
		t.Errorf("the init has %d threads at first", n)
	}
	for name, script := range map[string]string{
		"children": `trap '' TERM; while :; do (setsid sleep 1000 &) 2>/dev/null; done`,
		"bomb":     `trap '' TERM; bomb() { while :; do (setsid sh -c 'sleep 1000' &) 2>/dev/null; bomb & done; }; bomb 2>/dev/null`,
		// Dead ones that nobody reaps, as their parent does not wait.
		"zombies": `trap '' TERM; while :; do (true & exec sleep 1000) & done 2>/dev/null`,
	} {
		for range 3 {
			before, _ := b.d.ProcessRefusals(b.spec.ID)
			id, err := b.Start(wire.Start{Argv: []string{"bash", "-c", script}, Env: drivertest.Environment()})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			until(t, name+" have taken all", func() bool {
				n, counted := b.d.ProcessRefusals(b.spec.ID)
				captest.Need(t, "pids_events", counted, "the container's cgroup is not seen from here")
				return n > before
			})
			// Many at once that could each want a thread. None need start.
			var calls sync.WaitGroup
			started := make(chan string, 32)
			for range cap(started) {
				calls.Go(func() {
					if id, err := b.Start(wire.Start{Argv: []string{"true"}, Env: drivertest.Environment()}); err == nil {
						started <- id
					}
				})
			}
			calls.Wait()
			close(started)
			for id := range started {
				b.Wait(id)
			}
			if err := b.Link.Ping(t.Context()); err != nil {
				t.Fatalf("%s: the init: %v", name, err)
			}
			if err := b.Link.End(t.Context(), id, syscall.SIGKILL); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			b.Wait(id)
			if r := b.Run("/bin/sh", "-c", "true & wait $! && echo well"); r.Stdout != "well\n" {
				t.Errorf("%s: the command after them: %+v", name, r)
			}
		}
	}
	if n := threads(); n > initProcesses {
		t.Errorf("the init has %d threads in the end", n)
	}
	if status, err := b.d.Inspect(t.Context(), b.spec.ID); err != nil || !status.Running {
		t.Errorf("%+v, %v", status, err)
	}
}
