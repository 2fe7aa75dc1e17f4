package dockertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"sandboxd/internal/captest"
)

// Own is an engine of one test, which may be stopped, killed and held up. It has no
// images.
type Own struct {
	Engine
	t    testing.TB
	dir  string
	args []string
	cmd  *exec.Cmd
	dead chan struct{}
}

// Start starts an engine that the end of the test ends.
func Start(t testing.TB, args ...string) *Own {
	t.Helper()
	captest.Root(t)
	_, err := exec.LookPath("dockerd")
	captest.Need(t, "docker", err == nil, "no dockerd is installed")
	dir, err := os.MkdirTemp("", "engine-") // short: the name of a socket may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	o := &Own{t: t, dir: dir, args: args}
	o.Host, o.Runtime = "unix://"+dir+"/docker.sock", "runc"
	if err := os.WriteFile(dir+"/daemon.json", []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.end)
	o.Up()
	return o
}

// Up starts it, again after a Down.
func (o *Own) Up() {
	o.t.Helper()
	log, err := os.OpenFile(filepath.Join(o.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		o.t.Fatal(err)
	}
	defer log.Close()
	o.cmd = exec.Command("dockerd", append([]string{"--config-file", o.dir + "/daemon.json", "--data-root", o.dir + "/data",
		"--exec-root", o.dir + "/exec", "--pidfile", o.dir + "/pid", "-H", o.Host,
		"--bridge=none", "--iptables=false", "--ip6tables=false"}, o.args...)...)
	o.cmd.Stdout, o.cmd.Stderr = log, log
	o.cmd.Env = append(os.Environ(), "TMPDIR="+o.dir) // where its parts write what they were doing, when it loses patience with them
	o.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := o.cmd.Start(); err != nil {
		o.t.Fatal(err)
	}
	o.dead = make(chan struct{})
	go func(cmd *exec.Cmd, dead chan struct{}) {
		defer close(dead)
		_ = cmd.Wait()
	}(o.cmd, o.dead)
	if o.API == nil {
		if o.API, err = client.New(client.WithHost(o.Host)); err != nil {
			o.t.Fatal(err)
		}
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(30 * time.Second); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := o.API.Info(ctx, client.InfoOptions{})
		cancel()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-o.dead:
			o.t.Fatalf("the engine ended: %s", o.said())
		case <-late:
			o.t.Fatalf("the engine does not come up: %v: %s", err, o.said())
		}
	}
}

// Down ends it by a signal and waits for its end.
func (o *Own) Down(sig syscall.Signal) {
	o.t.Helper()
	o.Signal(sig)
	select {
	case <-o.dead:
	case <-time.After(30 * time.Second):
		o.t.Fatal("the engine does not end")
	}
	// Killed, it leaves this behind and would refuse to start while a process has the number.
	_ = os.Remove(o.dir + "/pid")
	_ = os.Remove(o.dir + "/exec/containerd/containerd.pid")
}

// Signal sends it one, as SIGSTOP.
func (o *Own) Signal(sig syscall.Signal) {
	o.t.Helper()
	if err := o.cmd.Process.Signal(sig); err != nil {
		o.t.Fatal(err)
	}
}

func (o *Own) said() string {
	text, _ := os.ReadFile(filepath.Join(o.dir, "log"))
	return string(text[max(0, len(text)-2000):])
}

// end removes everything of the engine: what its shims and its containerd hold too,
// when it was killed.
func (o *Own) end() {
	if o.cmd != nil {
		_ = o.cmd.Process.Signal(syscall.SIGCONT)
		_ = o.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-o.dead:
		case <-time.After(20 * time.Second):
			_ = o.cmd.Process.Kill()
		}
	}
	for _, pid := range o.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], o.dir+"/") {
			_ = unix.Unmount(fields[4], unix.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(o.dir); err != nil {
		o.t.Errorf("remove the engine's directory: %v", err)
	}
}

// processes are those that were started with a path of this engine.
func (o *Own) processes() (pids []int) {
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range found {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), o.dir+"/") {
			continue
		}
		pid := 0
		if _, err := fmt.Sscanf(name, "/proc/%d/", &pid); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
