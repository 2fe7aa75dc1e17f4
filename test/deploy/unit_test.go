package deploy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
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

// supervised is a program that joins a control group and then is sandboxd, as a
// supervisor starts it. It answers the file that lists who is in the group.
func supervised(t *testing.T) (program, members string) {
	t.Helper()
	captest.Root(t)
	group := fmt.Sprintf("/sys/fs/cgroup/pids/sandboxd-unit-%d", os.Getpid())
	if _, err := os.Stat("/sys/fs/cgroup/pids"); err != nil {
		group = fmt.Sprintf("/sys/fs/cgroup/sandboxd-unit-%d", os.Getpid())
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
	program, members := supervised(t)
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
