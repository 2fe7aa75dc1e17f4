package cgroupcheck

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/captest"
)

const root = "/sys/fs/cgroup"

func needV2(t *testing.T) {
	captest.Root(t)
	var st unix.Statfs_t
	err := unix.Statfs(root, &st)
	captest.Need(t, "cgroup2", err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC, root+" is not cgroup v2")
}

// group makes a group with the memory and pids controllers.
func group(t *testing.T) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, strings.ReplaceAll(t.Name(), "/", "_"))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("the group is not empty after the test: %v", err)
		}
	})
	return dir
}

// spawn starts argv directly in dir by CLONE_INTO_CGROUP.
func spawn(t *testing.T, dir string, argv ...string) *exec.Cmd {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	cmd.Env = []string{"CGROUPCHECK_EAT=1"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestControllers(t *testing.T) {
	needV2(t)
	raw, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Fields(string(raw))
	for _, want := range []string{"cpu", "memory", "pids"} {
		found := false
		for _, c := range have {
			found = found || c == want
		}
		if !found {
			t.Errorf("no %s controller among %v", want, have)
		}
	}
}

func TestCloneIntoGroupAndKillIt(t *testing.T) {
	needV2(t)
	dir := group(t)
	cmd := spawn(t, dir, "/bin/sleep", "1000")
	where, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "0::/" + filepath.Base(dir) + "\n"; string(where) != want {
		t.Errorf("the child is in %q, want %q", where, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the child ended with %v, want SIGKILL", err)
	}
}

func TestMemoryLimitKills(t *testing.T) {
	needV2(t)
	dir := group(t)
	for file, value := range map[string]string{"memory.max": "33554432", "memory.swap.max": "0"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	cmd := spawn(t, dir, "/proc/self/exe", "-test.run=^TestEater$")
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the child that took 256 MiB under a limit of 32 ended with %v, want SIGKILL", err)
	}
	events, err := os.ReadFile(filepath.Join(dir, "memory.events"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(events), "oom_kill 1") {
		t.Errorf("memory.events does not count the kill:\n%s", events)
	}
	peak, err := os.ReadFile(filepath.Join(dir, "memory.peak"))
	if err != nil || strings.TrimSpace(string(peak)) == "0" {
		t.Errorf("memory.peak: %q, %v", peak, err)
	}
}

// TestEater is the child of TestMemoryLimitKills; by itself it checks only that
// it was not started as one.
func TestEater(t *testing.T) {
	if os.Getenv("CGROUPCHECK_EAT") == "" {
		return
	}
	block := make([]byte, 256<<20)
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	t.Fatal("256 MiB fitted under the limit")
}
