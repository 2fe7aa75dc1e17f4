package process

import (
	"context"
	"io"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/guest/guesttest"
	"sandboxd/internal/guest/wire"
	"sandboxd/internal/host/hosttest"
)

// TestProtocol runs the suite of the guest protocol over the shipped init.
func TestProtocol(t *testing.T) {
	need(t)
	dir := t.TempDir()
	d := openDriver(t, dir)
	defer d.Close()
	guesttest.Run(t, func(t *testing.T) guesttest.System {
		spec := newSpec(t, dir)
		spec.Nonce = "secret"
		if _, err := d.Start(context.Background(), spec); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Stop(context.Background(), spec.ID); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
		return guesttest.System{
			Nonce: spec.Nonce, Cwd: sandboxd.WorkDir, Env: drivertest.Environment(), Argv: hosttest.ShellPrograms,
			Connect: func() (io.ReadWriteCloser, error) { return d.Connect(context.Background(), spec.ID) },
		}
	})
}

// TestPortsOfOthersThanTheLeader has a listener that a command's leader started, one in
// a session of its own, and one that does not let itself be looked at.
func TestPortsOfOthersThanTheLeader(t *testing.T) {
	need(t)
	dir := t.TempDir()
	d := openDriver(t, dir)
	defer d.Close()
	spec := newSpec(t, dir)
	if _, err := d.Start(context.Background(), spec); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(context.Background(), spec.ID); err != nil {
			t.Errorf("stop: %v", err)
		}
	}()
	s := drivertest.Attach(t, d, spec.ID)
	const listens = `import ctypes, socket, sys, time
if len(sys.argv) > 2: ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
open('/tmp/' + sys.argv[1], 'w').close()
time.sleep(1000)`
	script := `python3 -c "$1" 7001 & setsid python3 -c "$1" 7002 & python3 -c "$1" 7003 hidden &
until [ -e /tmp/7001 ] && [ -e /tmp/7002 ] && [ -e /tmp/7003 ]; do :; done; echo listening; sleep 1000`
	list := func() map[uint16]sandboxd.Port {
		t.Helper()
		list, err := s.Link.Ports(t.Context())
		if err != nil || list.Incomplete {
			t.Fatalf("%+v, %v", list, err)
		}
		ports := map[uint16]sandboxd.Port{}
		for _, p := range list.Ports {
			ports[p.Port] = p
		}
		return ports
	}
	id, err := s.Start(wire.Start{Argv: []string{"/bin/sh", "-c", script, "sh", listens}})
	if err != nil {
		t.Fatal(err)
	}
	ports := list()
	for deadline := time.Now().Add(drivertest.Patience); len(ports) < 3; ports = list() {
		if time.Now().After(deadline) {
			t.Fatalf("what listens: %+v", ports)
		}
	}
	for _, port := range []uint16{7001, 7002} {
		if p := ports[port]; p.CommandID != id || p.Process != "python3" || p.PID <= 1 {
			t.Errorf("%+v", p)
		}
	}
	if p := ports[7003]; p.Address != "127.0.0.1" || p.PID != 0 || p.Process != "" || p.CommandID != "" {
		t.Errorf("a process that forbids it was looked at: %+v", p)
	}
}
