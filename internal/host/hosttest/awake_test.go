package hosttest_test

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/host"
	"sandboxd/internal/store"
)

// looking is a host that looks at its sandboxes each second and closes what did not
// work for five.
func looking(t *testing.T, made maker) *host.Host {
	t.Helper()
	dir := t.TempDir()
	driver := made(t, dir)
	db, err := store.OpenSQLite(context.Background(), filepath.Join(dir, "host.db"))
	if err != nil {
		t.Fatal(err)
	}
	policy, idle := sandboxd.DefaultPolicy(), sandboxd.Seconds(5)
	policy.IdleTimeoutS = &idle
	h, err := host.New(context.Background(), host.Config{DataDir: dir, Store: db, Drivers: []sandboxd.Driver{driver},
		UIDs: sandboxd.UIDPool{First: 221000, Last: 221999}, Policy: &policy, Tick: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.StopAll(context.Background()); err != nil {
			t.Errorf("stop all: %v", err)
		}
		for _, close := range []func() error{h.Close, driver.Close, db.Close} {
			if err := close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return h
}

// Real programs: a server that nobody asks is idle, work that says nothing is not.
func TestIdleByRealPrograms(t *testing.T) {
	captest.Root(t)
	realPrograms(t, looking(t, processDriver))
}

func TestIdleByRealProgramsInContainers(t *testing.T) {
	dockertest.Find(t, "runc")
	realPrograms(t, looking(t, dockerDriver("runc")))
}

func realPrograms(t *testing.T, h *host.Host) {
	const node = `require("http").createServer((q, s) => s.end("hello")).listen(8080, "127.0.0.1", () => console.log("ready"))`
	const writer = `
import os, time
with open("f", "wb", buffering=0) as f:
    for _ in range(10**6):
        f.write(b"x" * (128 << 10)); f.seek(0); time.sleep(0.25)
`
	for _, tc := range []struct {
		name    string
		argv    []string
		needs   string // a program of the machine
		ask     bool   // connect to its port now and then
		working string // why it is awake; "" for idle
	}{
		{name: "python3 -m http.server", argv: []string{"python3", "-u", "-m", "http.server", "8080", "--bind", "127.0.0.1"}},
		{name: "node", argv: []string{"node", "-e", node}, needs: "node"},
		{name: "a server that somebody asks", argv: []string{"python3", "-u", "-m", "http.server", "8080", "--bind", "127.0.0.1"}, ask: true, working: "connection"},
		{name: "a busy loop", argv: []string{"/bin/sh", "-c", "while :; do :; done"}, working: "cpu"},
		{name: "a writer", argv: []string{"python3", "-c", writer}, working: "io"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.needs != "" {
				_, err := exec.LookPath(tc.needs)
				captest.Need(t, tc.needs, err == nil, "it is not installed")
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			sb, _, err := h.Open(ctx, sandboxd.OpenRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				// A delete goes on after its answer, and the host is closed soon.
				if _, err := h.Stop(context.Background(), sb.ID); err != nil {
					t.Error(err)
				}
				if err := h.Delete(context.Background(), sb.ID); err != nil {
					t.Error(err)
				}
			}()
			none := sandboxd.Seconds(0)
			cmd, _, err := h.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{Argv: tc.argv, Background: true, TimeoutS: &none})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			reasons := map[string]bool{}
			for range tick.C {
				if tc.ask {
					hello(ctx, h, sb.ID)
				}
				now, err := h.Get(ctx, sb.ID)
				if err != nil {
					t.Fatal(err)
				}
				a, err := h.Awake(ctx, sb.ID)
				if err != nil {
					t.Fatal(err)
				}
				reasons[a.Reason] = true
				switch took := time.Since(began); {
				case tc.working == "" && !now.Open:
					t.Logf("closed after %v: %s; before: %+v", took.Round(time.Millisecond), now.LastEnding.Message, a)
					return
				case tc.working == "" && took > 30*time.Second:
					t.Fatalf("open after %v: %+v", took, a)
				case tc.working != "" && !now.Open:
					ended, _ := h.GetCommand(ctx, sb.ID, cmd.ID)
					t.Fatalf("closed after %v: %+v; the command: %+v; reasons %v", took, now.LastEnding, ended.Ending, reasons)
				case tc.working != "" && took > 16*time.Second:
					if !reasons[tc.working] {
						t.Fatalf("it was awake for %v, not for %s", reasons, tc.working)
					}
					return
				}
			}
		})
	}
}

// hello asks a server on port 8080, which may not listen yet.
func hello(ctx context.Context, h *host.Host, id string) {
	conn, err := h.DialPort(ctx, id, 8080)
	if err != nil {
		return
	}
	defer conn.Close()
	if _, err := io.Copy(conn, strings.NewReader("GET / HTTP/1.0\r\n\r\n")); err == nil {
		io.Copy(io.Discard, conn)
	}
}
