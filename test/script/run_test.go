package script

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// TestMakeRun is `make run` after its build: the example's chart, the lines to
// try, and a Ctrl-C that leaves nothing running.
func TestMakeRun(t *testing.T) {
	captest.Root(t)
	makeRun(t, example{repository: server.Repository(), program: server.Program("sandboxd"), dir: t.TempDir()})
}

// example is where the script is, what it runs, where to and as whom.
type example struct {
	repository, program, dir string
	user                     *syscall.Credential
}

func makeRun(t *testing.T, x example) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir := x.dir
	cmd := exec.Command(filepath.Join(x.repository, "scripts/run.sh"))
	cmd.Dir = x.repository
	cmd.Env = append(environ(filepath.Join(dir, "data"), ""), "ADDRESS="+address, "RUN_DIR="+dir, "SANDBOXD="+x.program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: x.user}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	guard := time.AfterFunc(60*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer guard.Stop()
	lines := bufio.NewScanner(stdout)
	said := ""
	until := func(text string) {
		t.Helper()
		for lines.Scan() {
			said += lines.Text() + "\n"
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("no %q in:\n%s", text, said)
	}
	until("best product: Schreibtisch")
	until("Ctrl-C stops it")
	for _, want := range []string{"http://" + address, dir + "/data/token", "curl -sH", "bin/sandboxd exec"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in:\n%s", want, said)
		}
	}
	chart, err := os.ReadFile(filepath.Join(dir, "sales/chart.svg"))
	if err != nil || !strings.Contains(string(chart), "</svg>") {
		t.Errorf("chart: %d bytes, %v", len(chart), err)
	}

	// The two lines, as they are printed; and something that still runs.
	client := func(args ...string) {
		t.Helper()
		c := exec.Command(args[0], args[1:]...)
		c.Env = environ(filepath.Join(dir, "data"), "http://"+address)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	for _, line := range strings.Split(said, "\n") {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "curl ") || strings.HasPrefix(line, "bin/sandboxd ") {
			client("sh", "-ec", strings.Replace(line, "bin/sandboxd", x.program, 1))
		}
	}
	client(x.program, "exec", "-d", "demo", "--", "sleep", "98765.25")
	if n := len(running98765(t)); n != 1 {
		t.Errorf("%d sleeping processes, want 1", n)
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
	until("nothing is left running")
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if left := running98765(t); len(left) != 0 {
		t.Errorf("still running: %v", left)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("the server still listens")
	}
}

// running98765 finds the processes of the command that the test left behind.
func running98765(t *testing.T) (pids []string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		if line, err := os.ReadFile(name); err == nil && strings.Contains(string(line), "sleep\x0098765.25\x00") {
			pids = append(pids, name)
		}
	}
	return pids
}
