package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/captest"
)

// The proof that nothing is left is worth something only if it sees what is left.
func TestWhatIsLeftIsSeen(t *testing.T) {
	captest.Root(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	remember(data)
	bases, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil || len(bases) == 0 {
		bases = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	group := filepath.Join(filepath.Dir(bases[0]), groupName(data))
	before := look(dir)
	for _, c := range []struct {
		what string
		make func() (undo func(), err error)
	}{
		{"mount ", func() (func(), error) {
			return func() { _ = syscall.Unmount(dir, 0) }, syscall.Mount("none", dir, "tmpfs", 0, "")
		}},
		{"control group ", func() (func(), error) {
			sub := filepath.Join(group, "sandbox")
			return func() { _ = syscall.Rmdir(sub); sweep() }, os.MkdirAll(sub, 0o755)
		}},
		{"process ", process(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: lastUID, Gid: lastUID}})},
	} {
		undo, err := c.make()
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		left := before.left(dir, 30*time.Millisecond)
		undo()
		if !slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, c.what) }) {
			t.Errorf("%s is not seen: %v", c.what, left)
		}
		if left := before.left(dir, patience); len(left) > 0 {
			t.Errorf("%s is seen after it is gone: %v", c.what, left)
		}
	}
	if _, err := os.Stat(group); err == nil {
		t.Error("an empty group is not swept")
	}
}

// process starts one that waits until it is ended.
func process(attr *syscall.SysProcAttr) func() (func(), error) {
	return func() (func(), error) {
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.SysProcAttr = attr
		return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, cmd.Start()
	}
}

func TestOpenFilesAreCounted(t *testing.T) {
	before := openFiles(os.Getpid())
	f, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	got := more(before, openFiles(os.Getpid()))
	if len(got) != 1 || !strings.HasPrefix(got[0], "/etc/passwd: 1") {
		t.Errorf("an open file is told as %v", got)
	}
	f.Close()
	if got := more(before, openFiles(os.Getpid())); len(got) != 0 {
		t.Errorf("after it is closed: %v", got)
	}
}
