package process

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestProcessOneInItsGroups looks at every thread of process 1: the set-up stage
// may move only the one that goes on.
func TestProcessOneInItsGroups(t *testing.T) {
	need(t)
	b := openBox(t, nil)
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/cgroup", b.d.envs[b.spec.ID].pid))
	if err != nil || len(tasks) == 0 {
		t.Fatal("no threads", err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range b.d.groups.roots {
			inside := "/" + strings.TrimPrefix(r.path(filepath.Join(b.spec.ID, initLeaf)), r.mount+"/") + "\n"
			if !strings.Contains(string(text), inside) {
				t.Errorf("%s: a thread is outside of %s:\n%s", task, inside, text)
			}
		}
	}
}

// TestSandboxesWeighLessThanTheServer looks at the weight of all sandboxes together.
func TestSandboxesWeighLessThanTheServer(t *testing.T) {
	need(t)
	b := openBox(t, nil)
	for _, r := range b.d.groups.roots {
		if !slices.Contains(r.controllers, "cpu") {
			continue
		}
		file, want := filepath.Join(r.base, "cpu.shares"), sharesV1
		if b.d.groups.v2 {
			file, want = filepath.Join(filepath.Dir(r.base), "cpu.weight"), weightV2
		}
		text, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(text)) != want {
			t.Errorf("%s is %q, want %s: %v", file, text, want, err)
		}
	}
}

// TestWeightsAreProportions asks the kernel what a weight has become.
func TestWeightsAreProportions(t *testing.T) {
	need(t)
	b := openBox(t, nil)
	for shares, weight := range map[int64]string{2: "1", 512: "50", 0: "100", 1024: "100", 2048: "200", 262144: "10000"} {
		if err := b.d.groups.weighCPU(b.spec.ID, shares); err != nil {
			t.Fatal(err)
		}
		file, want := "cpu.shares", fmt.Sprint(cmp.Or(shares, 1024))
		if b.d.groups.v2 {
			file, want = "cpu.weight", weight
		}
		text, err := os.ReadFile(filepath.Join(b.d.groups.dir("cpu", b.spec.ID), file))
		if err != nil || strings.TrimSpace(string(text)) != want {
			t.Errorf("%d shares: %s is %q, not %s: %v", shares, file, text, want, err)
		}
	}
}

// TestCommandsTimers shows that the slack which process 1 gives its own timers is
// not what commands get.
func TestCommandsTimers(t *testing.T) {
	need(t)
	b := openBox(t, nil)
	if r := b.Run("/bin/cat", "/proc/self/timerslack_ns"); r.Stdout != "50000\n" {
		t.Errorf("slack of a command: %+v", r)
	}
}

// TestSweep shows that what a server left that had no time to remove its empty
// directories goes with the next one's start, and that sandboxes and directories
// of others stay.
func TestSweep(t *testing.T) {
	need(t)
	dead, err := findGroups(filepath.Join(t.TempDir(), "dead"))
	if err != nil {
		t.Fatal(err)
	}
	alive, err := findGroups(filepath.Join(t.TempDir(), "alive"))
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.create("gone"); err != nil {
		t.Fatal(err)
	}
	if err := dead.remove(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if err := alive.create("kept"); err != nil {
		t.Fatal(err)
	}
	alive.sweep()
	if dir := dead.dir("pids", ""); exists(dir) {
		t.Errorf("%s is left", dir)
	}
	if dir := alive.dir("pids", "kept"); !exists(dir) {
		t.Errorf("%s is gone", dir)
	}
	if err := alive.remove(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	alive.removeBase()
	if dir := alive.dir("memory", ""); exists(dir) {
		t.Errorf("%s is left", dir)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
