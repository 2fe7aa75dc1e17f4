package captest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// User is the ordinary user, and the group, that Rootless runs tests as. Nothing on a
// machine is usually theirs.
const User = 65532

// Rootless is for a test of what works without root. An ordinary user gets true and
// goes on. For root it runs this test again, as User, reports what came of it and
// answers false. usable and why say whether this machine lets an ordinary user make
// user namespaces, which is the capability "rootless".
//
// The second run has a home of its own below the temporary directory, with copies of
// the files named, each as its last part, and of what root's cache has of this module.
func Rootless(t *testing.T, usable bool, why string, files ...string) bool {
	t.Helper()
	Need(t, "rootless", usable, why)
	if os.Geteuid() != 0 {
		return true
	}
	// Below the temporary directory itself: those of a test are root's alone.
	home, err := os.MkdirTemp("", "user-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	for _, file := range files {
		lend(t, file, filepath.Join(home, filepath.Base(file)))
	}
	if cache, err := os.UserCacheDir(); err == nil {
		kept, _ := filepath.Glob(filepath.Join(cache, "sandboxd", "init-*"))
		for _, file := range kept {
			lend(t, file, filepath.Join(home, ".cache", "sandboxd", filepath.Base(file)))
		}
	}
	err = filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, User, User)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// The test's own program may lie where only root reaches it.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	limit := 10 * time.Minute
	if end, ok := t.Deadline(); ok {
		limit = time.Until(end) - 5*time.Second
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+limit.String())
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir = "/"
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: User, Gid: User}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
	return false
}

// Home is the directory with the files of Rootless.
func Home() string { return os.Getenv("HOME") }

func lend(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}
