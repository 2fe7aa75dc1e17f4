package isolate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/captest"
)

// TestUserNamespacesInAChroot: where the kernel makes none, the settings alone do not
// say so.
func TestUserNamespacesInAChroot(t *testing.T) {
	if dir := os.Getenv("ISOLATE_TEST_CHROOT"); dir != "" {
		err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("/", dir, "", unix.MS_BIND|unix.MS_REC, ""),
			unix.Chroot(dir), unix.Chdir("/"))
		if err != nil {
			t.Fatal(err)
		}
		if usable, detail, hint := UserNamespaces(); usable || !strings.Contains(detail, "the kernel makes none") || hint == "" {
			t.Fatalf("usable %v, %q, %q", usable, detail, hint)
		}
		fmt.Println("refused")
		os.Exit(0) // what the suite looks for at its end is under other names here
	}
	captest.Root(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestUserNamespacesInAChroot$", "-test.v")
	cmd.Env = append(os.Environ(), "ISOLATE_TEST_CHROOT="+t.TempDir(), "TMPDIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "refused") {
		t.Fatalf("%v\n%s", err, out)
	}
}
