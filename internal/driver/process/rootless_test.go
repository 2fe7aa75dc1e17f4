package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/driver/initbin"
	"sandboxd/internal/guest/wire"
	"sandboxd/internal/isolate"
)

// rootless says whether to go on, as an ordinary user with the prober at home.
func rootless(t *testing.T) bool {
	t.Helper()
	usable, detail, _ := isolate.UserNamespaces()
	prober := filepath.Join(t.TempDir(), "prober")
	if os.Geteuid() == 0 && usable {
		buildProber(t, prober)
		if _, err := initbin.Program(t.Context()); err != nil { // for the cache that is lent
			t.Fatal(err)
		}
	}
	return captest.Rootless(t, usable, detail, prober)
}

// lent puts the prober into a workspace.
func (b *box) lent(t *testing.T) {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(captest.Home(), "prober"))
	if err == nil {
		err = os.WriteFile(filepath.Join(b.spec.Workspace, "prober"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRootlessSuite(t *testing.T) {
	if rootless(t) {
		drivertest.Run(t, func(t *testing.T) drivertest.Harness { return harness(t) })
	}
}

// What the prober finds is the same as with root.
func TestRootlessIsolation(t *testing.T) {
	if !rootless(t) {
		return
	}
	b := openBox(t, nil)
	b.lent(t)
	b.judge(t, b.prove(t))
	other := openBox(t, nil)
	sleeper, err := other.Start(wire.Start{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	b.prove(t, "signals")
	for _, box := range []*box{b, other} {
		if r := box.Run("echo", "alive"); r.Stdout != "alive\n" {
			t.Errorf("after the signals: %+v", r)
		}
	}
	if err := other.Link.End(t.Context(), sleeper, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := other.Wait(sleeper); r.Exit.Signal != int(syscall.SIGTERM) {
		t.Errorf("the other sandbox's process: %+v", r.Exit)
	}
}

func TestRootlessTerminal(t *testing.T) {
	if !rootless(t) {
		return
	}
	b := openBox(t, nil)
	id, err := b.Start(wire.Start{Argv: []string{"sh", "-c", "stty size; tty; ls /dev/pts"}, TTY: true, Cols: 91, Rows: 37})
	if err != nil {
		t.Fatal(err)
	}
	if r := b.Wait(id); r.Stdout != "37 91\r\n/dev/pts/0\r\n0  ptmx\r\n" {
		t.Errorf("terminal: %+v", r)
	}
}

func TestRootlessFingerprint(t *testing.T) {
	if !rootless(t) {
		return
	}
	h := harness(t)
	d := h.Open(t)
	defer d.Close()
	before := h.Left()
	fp := d.Fingerprint(context.Background())
	if !fp.Works {
		t.Fatalf("does not work: %s (%s)", fp.Reason, fp.Hint)
	}
	_, grouped := d.(sandboxd.CommandGroups)
	if !fp.Capabilities.SurvivesHostRestart || fp.Capabilities.CommandCgroup != grouped {
		t.Errorf("capabilities: %+v", fp.Capabilities)
	}
	ok := map[string]bool{}
	for _, line := range fp.Level {
		ok[line.Name] = line.OK
		if !line.OK && line.Why == "" {
			t.Errorf("what is lost without %s is not said", line.Name)
		}
	}
	want := map[string]bool{"root": false, "user namespace": true, "user": false, "cgroups": grouped, "seccomp": true, "no_new_privs": true, "namespaces": true}
	for name, is := range want {
		if got, there := ok[name]; !there || got != is {
			t.Errorf("%s: %v, there %v", name, got, there)
		}
	}
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// trees are commands that take their processes out of the leader's reach. Each says
// "up" when it has them.
var trees = map[string]string{
	"setsid":           `setsid sleep 1000 & echo up; exec sleep 1000`,
	"double fork":      `(sleep 1000 &); (setsid sh -c '(sleep 1000 &)'); echo up; exec sleep 1000`,
	"deaf":             `trap '' TERM HUP INT; (setsid sh -c 'trap "" TERM HUP; sleep 1000' &); echo up; sleep 1000; sleep 1000`,
	"another name":     `(env -i setsid sh -c 'exec -a init sleep 1000' &); (setsid bash -c 'exec -a init sleep 1000' &); echo up; exec sleep 1000`,
	"always new ones":  `trap '' TERM; echo up; while :; do (setsid sh -c 'trap "" TERM; sleep 1000' &); done`,
	"another's parent": `setsid sh -c 'while :; do (sleep 0.01; exec setsid sh -c "sleep 1000") & wait; done' & echo up; exec sleep 1000`,
}

// A stop reaches the whole tree within a second, and nobody else.
func TestRootlessEndOfATree(t *testing.T) {
	if !rootless(t) {
		return
	}
	b := openBox(t, nil)
	ctx := context.Background()
	bystander, err := b.Start(wire.Start{Argv: []string{"sh", "-c", "(setsid sleep 1000 &); exec sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	b.count(t, "of the bystander", 2)
	for name, shell := range trees {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			id, err := b.Start(wire.Start{Argv: []string{"bash", "-c", shell}})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			b.says(t, id, "up\n")
			begin := time.Now()
			if err := b.Link.End(ctx, id, sig); err != nil {
				t.Fatal(err)
			}
			if sig == syscall.SIGTERM && strings.Contains(shell, "trap") {
				if err := b.Link.End(ctx, id, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			r := b.Wait(id)
			b.count(t, name, 2)
			if took := time.Since(begin); took > time.Second || r.Exit.Signal == 0 {
				t.Errorf("%s, %v: %+v after %v", name, sig, r.Exit, took)
			}
		}
	}
	if err := b.Link.End(ctx, bystander, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	b.Wait(bystander)
	b.count(t, "at the end", 0)
}

// count waits until so many processes of commands are alive in the sandbox, seen from
// outside.
func (b *box) count(t *testing.T, what string, want int) {
	t.Helper()
	e, err := b.d.running(b.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(drivertest.Patience); ; <-tick.C {
		alive := descendants(e.pid)
		if len(alive) == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %d processes %v, want %d", what, len(alive), alive, want)
		}
	}
}

// descendants are the living processes in the PID namespace of a process, less itself.
func descendants(pid int) (found []string) {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		dir := filepath.Dir(name)
		text, rerr := os.ReadFile(name)
		_, rest, _ := strings.Cut(string(text), ") ")
		if err != nil || rerr != nil || strings.HasPrefix(rest, "Z") || dir == fmt.Sprintf("/proc/%d", pid) {
			continue
		}
		if own, err := os.Readlink(dir + "/ns/pid"); err == nil && own == space {
			found = append(found, strings.TrimSpace(string(text[:min(len(text), 40)])))
		}
	}
	return found
}

// says waits for a command's first output.
func (b *box) says(t *testing.T, command, want string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(drivertest.Patience); ; <-tick.C {
		if strings.HasPrefix(b.Written(command), want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the command does not say %q", want)
		}
	}
}

// No process of a command may give up its mark, and none may ask another to.
func TestRootlessMarkIsKept(t *testing.T) {
	if !rootless(t) {
		return
	}
	b := openBox(t, nil)
	for _, shell := range []string{
		"ulimit -x 0", "ulimit -Sx 0", "ulimit -x 100000",
		"exec python3 -c 'import resource as r; r.prlimit(0, 10, (0, 0))'",
		"exec python3 -c 'import resource as r; r.setrlimit(10, (0, 0))'",
	} {
		if r := b.Run("bash", "-c", shell); r.Exit.Code == 0 {
			t.Errorf("%s: %+v", shell, r)
		}
	}
	if r := b.Run("bash", "-c", "ulimit -x; ulimit -n 100 && ulimit -n"); r.Exit.Code != 0 || !strings.HasSuffix(r.Stdout, "\n100\n") {
		t.Errorf("other limits: %+v", r)
	}
}

func TestRootlessLimits(t *testing.T) {
	if !rootless(t) {
		return
	}
	b := openBox(t, func(s *sandboxd.EnvironmentSpec) { s.Limits.MemoryBytes, s.Limits.PIDs = 64<<20, 40 })
	if r := b.Run("python3", "-c", "b'x' * (400 << 20)"); r.Exit.Code != 1 || !strings.Contains(r.Stderr, "MemoryError") {
		t.Errorf("memory: %+v", r)
	}
	// Process 1 goes on working while nobody else can fork.
	id, err := b.Start(wire.Start{Argv: []string{"sh", "-c", "echo up; while :; do sleep 1000 & done"}})
	if err != nil {
		t.Fatal(err)
	}
	b.says(t, id, "up\n")
	r := b.Ending(id)
	if !strings.Contains(r.Stderr, "fork") || r.Exit.Code == 0 {
		t.Errorf("processes: %+v", r)
	}
	if r := b.Run("echo", "alive"); r.Stdout != "alive\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

// What a server left that died is listed, not started over, and ended by its id alone.
func TestRootlessLeftByADeadServer(t *testing.T) {
	if !rootless(t) {
		return
	}
	h := harness(t)
	before := h.Left()
	first := h.Open(t)
	spec := h.Spec(t)
	if _, err := first.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	pid := bare(first).envs[spec.ID].pid
	first.Close()
	second := h.Open(t)
	defer second.Close()
	if ids, err := second.List(t.Context()); err != nil || len(ids) != 1 || ids[0] != spec.ID {
		t.Errorf("list: %v, %v", ids, err)
	}
	if _, err := second.Start(t.Context(), spec); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Errorf("start over: %v", err)
	}
	if err := second.Stop(t.Context(), spec.ID); err != nil {
		t.Errorf("stop: %v", err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Error("process 1 lives on")
	}
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// Another's sandbox is not run as this user.
func TestRootlessRefusesAnothersFiles(t *testing.T) {
	if !rootless(t) {
		return
	}
	h := harness(t)
	d := h.Open(t)
	defer d.Close()
	spec := h.Spec(t)
	spec.UID++
	if _, err := d.Start(t.Context(), spec); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(err.Error(), "belong to user") {
		t.Errorf("start: %v", err)
	}
}
