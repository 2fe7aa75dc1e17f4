package docker

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
)

// faulty is a sandbox on an engine of its own. Its image has nothing in it: the
// init is there, which is enough to speak with.
func faulty(t *testing.T, args ...string) (*dockertest.Own, *Driver, sandboxd.EnvironmentSpec, sandboxd.Handle) {
	t.Helper()
	own := dockertest.Start(t, args...)
	dir := t.TempDir()
	d, err := New(Config{Host: own.Host, DataDir: dir, Patience: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	spec := newSpec(t, dir)
	if spec.Image, err = d.engine.emptyImage(t.Context()); err != nil {
		t.Fatal(err)
	}
	handle, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return own, d, spec, handle
}

func nextEvent(t *testing.T, d *Driver) sandboxd.DriverEvent {
	t.Helper()
	select {
	case e := <-d.Events():
		return e
	case <-time.After(drivertest.Patience):
		t.Fatal("no event")
		panic("unreachable")
	}
}

// wantFault checks that an error is unavailable and names what it is.
func wantFault(t *testing.T, what string, err error, says string) {
	t.Helper()
	if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(fmt.Sprint(err), says) {
		t.Errorf("%s: class %s, want unavailable and %q: %v", what, sandboxd.ClassOf(err), says, err)
	}
}

// An engine that stops takes its containers with it, and the ending says so.
func TestEngineRestarts(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			own, d, spec, _ := faulty(t)
			own.Down(sig)
			other := newSpec(t, t.TempDir())
			other.Image = spec.Image
			_, err := d.Start(t.Context(), other)
			wantFault(t, "start without an engine", err, "cannot be reached: it is stopped")
			wantFault(t, "stop without an engine", d.Stop(t.Context(), other.ID), "cannot be reached")
			own.Up()
			e := nextEvent(t, d)
			if e.ID != spec.ID || e.Ending.Cause != sandboxd.CauseEngine || !strings.Contains(e.Ending.Message, "engine stopped or restarted") {
				t.Errorf("event %+v", e)
			}
			spec.Generation++
			if _, err := d.Start(t.Context(), spec); err != nil {
				t.Fatalf("start on the new engine: %v", err)
			}
			if err := drivertest.Attach(t, d, spec.ID).Link.Ping(t.Context()); err != nil {
				t.Error(err)
			}
			if err := d.Stop(t.Context(), spec.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// With live-restore an engine's restart is a new connection and no more.
func TestEngineRestartsAndKeepsContainers(t *testing.T) {
	own, d, spec, handle := faulty(t, "--live-restore")
	before := drivertest.Attach(t, d, spec.ID)
	own.Down(syscall.SIGTERM)
	<-before.Link.Done()
	own.Up()
	if err := drivertest.Attach(t, d, spec.ID).Link.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-d.Events():
		t.Errorf("event %+v", e)
	default:
	}
	// The server restarts too.
	later, err := New(Config{Host: own.Host, DataDir: d.cfg.DataDir, Patience: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	d.Close()
	if err := later.Adopt(t.Context(), spec.ID, handle); err != nil {
		t.Fatal(err)
	}
	if err := drivertest.Attach(t, later, spec.ID).Link.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := later.Stop(t.Context(), spec.ID); err != nil {
		t.Error(err)
	}
}

// An engine that hangs is named as such, and all is well when it goes on.
func TestEngineHangs(t *testing.T) {
	own, d, spec, _ := faulty(t)
	d.engine.limit, d.cfg.Patience = 500*time.Millisecond, 500*time.Millisecond
	own.Signal(syscall.SIGSTOP)
	other := newSpec(t, d.cfg.DataDir)
	other.Image = spec.Image
	_, err := d.Start(t.Context(), other)
	wantFault(t, "start", err, "does not answer: nothing came within 500ms")
	_, err = d.List(t.Context())
	wantFault(t, "list", err, "does not answer")
	own.Signal(syscall.SIGCONT)
	d.engine.limit, d.cfg.Patience = 5*time.Second, 5*time.Second
	if err := drivertest.Attach(t, d, spec.ID).Link.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for _, id := range []string{spec.ID, other.ID} {
		if err := d.Stop(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
}

// How a container ended that nobody here ended.
func TestEndings(t *testing.T) {
	e := dockertest.Find(t, "runc")
	ctx := context.Background()
	inspect := func(t *testing.T, name string) int {
		seen, err := e.API.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return seen.Container.State.Pid
	}
	for _, test := range []struct {
		name  string
		end   func(t *testing.T, name string) error
		cause sandboxd.Cause
		says  string
	}{
		{"removed", func(_ *testing.T, name string) error {
			_, err := e.API.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true})
			return err
		}, sandboxd.CauseRemoved, "its container was removed, not by this host"},
		{"stopped through the engine", func(_ *testing.T, name string) error {
			_, err := e.API.ContainerStop(ctx, name, client.ContainerStopOptions{})
			return err
		}, sandboxd.CauseSignal, "killed through the engine"},
		{"killed on the machine", func(t *testing.T, name string) error {
			return syscall.Kill(inspect(t, name), syscall.SIGKILL)
		}, sandboxd.CauseSignal, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := openBox(t, e, nil)
			if err := test.end(t, b.d.containerName(b.spec.ID)); err != nil {
				t.Fatal(err)
			}
			got := nextEvent(t, b.d)
			if got.Ending.Cause != test.cause || !strings.Contains(got.Ending.Message, test.says) {
				t.Errorf("event %+v", got)
			}
			if test.cause == sandboxd.CauseSignal && got.Ending.Signal != "SIGKILL" {
				t.Errorf("signal %q", got.Ending.Signal)
			}
		})
	}
}
