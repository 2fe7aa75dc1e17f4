package leaktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/captest"
)

func TestMain(m *testing.M) { Main(m) }

// The proof that nothing is left is worth something only if it sees what is left.
func TestWhatIsLeftIsSeen(t *testing.T) {
	captest.Root(t)
	data := t.TempDir()
	Sandboxes(data)
	bases, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil || len(bases) == 0 {
		bases = []string{"/sys/fs/cgroup/sandboxes/cgroup.procs"}
	}
	known.Lock()
	name := known.groups[len(known.groups)-1]
	known.Unlock()
	// On version 1 below the server's group, on version 2 below its leaf.
	group := filepath.Join(filepath.Dir(bases[0]), name, "sandbox")
	if filepath.Base(filepath.Dir(bases[0])) == "sandboxes" {
		group = filepath.Join("/sys/fs/cgroup", name, "sandboxes", "sandbox")
	}
	dir := t.TempDir()
	before := descriptors()
	for _, c := range []struct {
		what string
		make func() (undo func(), err error)
	}{
		{"descriptor of /dev/null", func() (func(), error) {
			f, err := os.Open("/dev/null")
			return func() { f.Close() }, err
		}},
		{"mount ", func() (func(), error) {
			at := filepath.Join(dir, "at")
			if err := os.Mkdir(at, 0o700); err != nil {
				return nil, err
			}
			return func() { _ = syscall.Unmount(at, 0); os.Remove(at) }, syscall.Mount("none", at, "tmpfs", 0, "")
		}},
		{"file ", func() (func(), error) {
			name := filepath.Join(dir, "f")
			return func() { os.Remove(name) }, os.WriteFile(name, nil, 0o600)
		}},
		{"control group ", func() (func(), error) {
			return func() {
				for at := group; strings.Contains(at, name); at = filepath.Dir(at) {
					_ = syscall.Rmdir(at)
				}
			}, os.MkdirAll(group, 0o755)
		}},
		{"child process ", func() (func(), error) {
			cmd := exec.Command("sleep", "1000")
			return func() { cmd.Process.Kill(); _ = cmd.Wait() }, cmd.Start()
		}},
		{"orphan process ", func() (func(), error) {
			cmd := exec.Command("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: lastUID, Gid: lastUID}}
			out, err := cmd.Output()
			if err != nil {
				return nil, err
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
			return func() { _ = syscall.Kill(pid, syscall.SIGKILL) }, err
		}},
	} {
		undo, err := c.make()
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		left := settled(func() []string { return look(dir, before) }, 30*time.Millisecond)
		undo()
		if !slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, c.what) }) {
			t.Errorf("%s is not seen: %v", c.what, left)
		}
		if left := settled(func() []string { return look(dir, before) }, patience); len(left) > 0 {
			t.Errorf("%s is seen after it is gone: %v", c.what, left)
		}
	}
}
