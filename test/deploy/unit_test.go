package deploy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// A restart of the unit ends the server and no sandbox.
func TestUnitLeavesSandboxesAlone(t *testing.T) {
	unit := strings.Split(read(t, "deploy/sandboxd.service"), "\n")
	for _, line := range []string{"KillMode=process", "Delegate=yes", "Restart=always", "ExecStart=/usr/local/bin/sandboxd serve"} {
		if !slices.Contains(unit, line) {
			t.Errorf("the unit lacks %s", line)
		}
	}
}

// supervised is a program that joins a control group of a hierarchy, where version 2 is
// not the only one, and then is sandboxd, as a supervisor starts it. It answers the file that lists who is in the group.
func supervised(t *testing.T, hierarchy string) (program, members string) {
	t.Helper()
	captest.Root(t)
	group := fmt.Sprintf("/sys/fs/cgroup/%s/sandboxd-unit-%d.service", hierarchy, os.Getpid())
	if _, err := os.Stat(filepath.Dir(group)); err != nil {
		group = fmt.Sprintf("/sys/fs/cgroup/sandboxd-unit-%d.service", os.Getpid())
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Until(t, "the group is empty", 10*time.Second, func() bool { return os.Remove(group) == nil })
	})
	members = filepath.Join(group, "cgroup.procs")
	program = filepath.Join(t.TempDir(), "start")
	text := fmt.Sprintf("#!/bin/sh\necho $$ >%s && exec %s \"$@\"\n", members, server.Program("sandboxd"))
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, members
}

// A supervisor that ends everything in the group that it owns ends the server alone, and
// what it starts next has the sandboxes with their commands.
func TestSandboxesAreOutsideTheSupervisorsGroup(t *testing.T) {
	program, members := supervised(t, "pids")
	s := server.New(t, server.Options{Program: program})
	s.Start()
	ctx := context.Background()
	sb, _, err := s.C.Open(ctx, sandboxd.OpenRequest{Key: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	cmd, _, err := s.C.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{Shell: "while :; do echo on; sleep 0.05; done"})
	if err != nil {
		t.Fatal(err)
	}
	ended := 0
	server.Until(t, "everything in the group has ended", 10*time.Second, func() bool {
		text, err := os.ReadFile(members)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			ended++
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(text) == 0
	})
	<-s.Done()
	if ended == 0 {
		t.Fatal("the server was not in the group")
	}
	s.C.Close()
	s.Start()
	before, err := s.C.GetCommand(ctx, sb.ID, cmd.ID)
	if err != nil || before.Ending != nil {
		t.Fatalf("%+v, %v", before, err)
	}
	server.Until(t, "the command goes on", 10*time.Second, func() bool {
		now, err := s.C.GetCommand(ctx, sb.ID, cmd.ID)
		return err == nil && now.Ending == nil && now.Offset > before.Offset
	})
	if now, err := s.C.Get(ctx, sb.ID); err != nil || now.Generation != sb.Generation {
		t.Errorf("%+v, %v", now, err)
	}
}

// The doctor tells a unit that would end sandboxes with the server from one that would not.
func TestDoctorTellsWhatTheSupervisorEnds(t *testing.T) {
	program, members := supervised(t, "systemd")
	unit := filepath.Base(filepath.Dir(members))
	s := server.New(t, server.Options{Program: program})
	s.Start()
	doctor := func(killMode string) string {
		t.Helper()
		dir := t.TempDir() // systemctl is not systemd's here: nothing of it runs
		text := fmt.Sprintf("#!/bin/sh\n[ \"$*\" = 'show --property=KillMode --value -- %s' ] && echo %s\n", unit, killMode)
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(server.Program("sandboxd"), "doctor", "--data", s.Data)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, unit) {
				return line
			}
		}
		t.Fatalf("nothing is said of the unit:\n%s", out)
		return ""
	}
	if line := doctor("process"); !strings.HasPrefix(line, "  ok       supervisor") || !strings.Contains(line, "KillMode=process") {
		t.Error(line)
	}
	// On version 2 a sandbox of root's is in no group of the server's: nothing is lost.
	outside := !strings.HasPrefix(members, "/sys/fs/cgroup/systemd/")
	if line := doctor("control-group"); strings.HasPrefix(line, "  ok") != outside || !strings.Contains(line, "with KillMode=control-group") || outside == strings.Contains(line, "set KillMode=process") {
		t.Error(line)
	}
}

// A server in a container that is replaced loses its processes and no file, and says so.
func TestSandboxesOfAReplacedContainer(t *testing.T) {
	captest.Root(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "start")
	text := fmt.Sprintf("#!/bin/sh\nexec unshare --pid --fork --kill-child --mount-proc %s \"$@\"\n", server.Program("sandboxd"))
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	spec := server.Spec{Program: program, Data: filepath.Join(dir, "data"), Args: []string{"--driver", "process", "--ready", "0"}, Env: server.Environ(), Log: &server.Record{}}
	start := func() (*server.Process, *client.Client) {
		t.Helper()
		p, err := server.Start(spec)
		if err != nil {
			t.Fatal(err)
		}
		key, err := os.ReadFile(filepath.Join(spec.Data, "token"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.New(p.URL, strings.TrimSpace(string(key)))
		if err != nil {
			t.Fatal(err)
		}
		return p, c
	}
	p, c := start()
	sb, _, err := c.Open(t.Context(), sandboxd.OpenRequest{Key: "kept"})
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Log.Tail())
	}
	cmd, _, err := c.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Shell: "echo kept >file; exec sleep 600"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(spec.Data, "workspaces/kept/workspace/file")
	server.Until(t, "the command has written", 10*time.Second, func() bool {
		text, err := os.ReadFile(file)
		return err == nil && string(text) == "kept\n"
	})
	p.Kill()
	c.Close()
	p, c = start()
	defer c.Close()
	defer p.Kill()
	got, err := c.Get(t.Context(), sb.ID)
	if err != nil || got.State != sandboxd.StateCold || got.LastEnding == nil || got.LastEnding.Cause != sandboxd.CauseHostRestart {
		t.Errorf("%+v, %v", got.LastEnding, err)
	}
	if cmd, err := c.GetCommand(t.Context(), sb.ID, cmd.ID); err != nil || cmd.Ending == nil || cmd.Ending.Cause != sandboxd.CauseEnvironment && cmd.Ending.Cause != sandboxd.CauseHostRestart {
		t.Errorf("%+v, %v", cmd.Ending, err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "kept\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := c.Delete(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
	server.Until(t, "what was deleted is gone", 10*time.Second, func() bool {
		left, err := filepath.Glob(filepath.Join(spec.Data, "*", "kept*"))
		trash, err2 := filepath.Glob(filepath.Join(spec.Data, "trash", "*"))
		return err == nil && err2 == nil && len(left)+len(trash) == 0
	})
}
