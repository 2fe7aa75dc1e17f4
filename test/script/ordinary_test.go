package script

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"sandboxd/internal/captest"
	"sandboxd/internal/isolate"
	"sandboxd/test/server"
)

// ordinary is a user without rights.
func ordinary() *syscall.Credential { return &syscall.Credential{Uid: captest.User, Gid: captest.User} }

// home makes a directory of the ordinary user's with the program and the example.
func home(t *testing.T) string {
	t.Helper()
	captest.Root(t)
	usable, detail, _ := isolate.UserNamespaces()
	captest.Need(t, "rootless", usable, detail)
	// Below the temporary directory itself: those of a test are root's alone.
	dir, err := os.MkdirTemp("", "ordinary-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	repository := server.Repository()
	for _, cmd := range [][]string{
		{"mkdir", dir + "/examples"}, {"cp", "-R", repository + "/examples/sales", dir + "/examples/"}, {"cp", "-R", repository + "/scripts", dir + "/"},
		{"cp", server.Program("sandboxd"), dir + "/"}, {"chown", "-R", "65532:65532", dir},
	} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd, err, out)
		}
	}
	return dir
}

// homeOf is the home that a data directory is in, "" for one of root's.
func homeOf(data string) string {
	if dir := filepath.Dir(data); strings.HasPrefix(filepath.Base(dir), "ordinary-") {
		return dir
	}
	return ""
}

// A server of an ordinary user runs commands, and its sandboxes outlive it.
func TestOrdinaryUser(t *testing.T) {
	dir := home(t)
	scripts(t, testscript.Params{Files: []string{"testdata/process/survival.txtar"}, Setup: func(env *testscript.Env) error {
		env.Setenv("SANDBOXD_DATA", filepath.Join(dir, "data"))
		return nil
	}})
}

// The selftest of an ordinary user, who has a group too many, is green: what it costs
// to be one is weak.
func TestSelftestOfAnOrdinaryUser(t *testing.T) {
	dir := home(t)
	cmd := exec.Command(filepath.Join(dir, "sandboxd"), "selftest")
	cmd.Env = append(environ(filepath.Join(dir, "data"), ""), "TMPDIR="+dir, "HOME="+dir)
	user := ordinary()
	user.Groups = []uint32{captest.User, captest.User - 1}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, text := range []string{
		"WEAK  own user           whether two sandboxes have one user: both are 65532",
		"WEAK  own user           further groups of a process: ",
		"ok    cgroup limits      256 MiB of memory where 128 may be: 0, then ENOMEM",
		" 0 failed",
	} {
		if !strings.Contains(string(out), text) {
			t.Errorf("no %q in:\n%s", text, out)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "sandboxd-selftest-*")); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestMakeRunAsAnOrdinaryUser is the README's first command.
func TestMakeRunAsAnOrdinaryUser(t *testing.T) {
	dir := home(t)
	makeRun(t, example{repository: dir, program: filepath.Join(dir, "sandboxd"), dir: filepath.Join(dir, "run"), user: ordinary()})
}

// Where an ordinary user may not make user namespaces, doctor and a start say so, and
// what to change. The limit is of a namespace in which the test makes itself root.
func TestDoctorWithoutUserNamespaces(t *testing.T) {
	usable, detail, _ := isolate.UserNamespaces()
	captest.Need(t, "userns", usable, detail)
	dir := home(t)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: captest.User, HostID: captest.User, Size: 1}}
	for verb, want := range map[string][]string{
		"doctor": {"driver process: does not work", "NEEDED   user namespace       user/max_user_namespaces is 0"},
		"serve":  {"the process driver cannot work here", "sysctl"},
	} {
		cmd := exec.Command("sh", "-ec", `echo 0 >/proc/sys/user/max_user_namespaces
exec setpriv --reuid 65532 --regid 65532 --clear-groups "$0" "$@"`, filepath.Join(dir, "sandboxd"), verb)
		cmd.Env = append(environ(filepath.Join(dir, "data"), ""), "TMPDIR="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%s: no error", verb)
		}
		for _, text := range want {
			if !strings.Contains(string(out), text) {
				t.Errorf("%s: no %q in:\n%s", verb, text, out)
			}
		}
	}
}
