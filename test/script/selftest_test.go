package script

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// TestAnInterruptedSelftestLeavesNothing interrupts it while its own host and while
// its server has sandboxes.
func TestAnInterruptedSelftestLeavesNothing(t *testing.T) {
	captest.Root(t)
	for _, part := range []string{"embedded", "server"} {
		dir := t.TempDir()
		cmd := exec.Command(server.Program("sandboxd"), "selftest")
		cmd.Env = append(environ(filepath.Join(dir, "unused"), ""), "TMPDIR="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		guard := time.AfterFunc(60*time.Second, func() { _ = cmd.Process.Kill() })
		var data []string
		server.Until(t, part+" has a sandbox", 30*time.Second, func() bool {
			data, _ = filepath.Glob(filepath.Join(dir, "sandboxd-selftest-*", part))
			return len(data) == 1 && len(server.Groups(data[0])) > 0
		})
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%s: interrupted it ends with %v", part, err)
		}
		guard.Stop()
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v are left, %v", part, left, err)
		}
		if groups := server.Groups(data[0]); len(groups) > 0 {
			t.Errorf("%s: %v are left", part, groups)
		}
	}
}
