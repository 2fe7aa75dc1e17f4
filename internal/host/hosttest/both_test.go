package hosttest_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/api"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/driver/process"
	"sandboxd/internal/host"
	"sandboxd/internal/host/hosttest"
	"sandboxd/internal/isolate"
	"sandboxd/internal/leaktest"
	"sandboxd/internal/store"
	"sandboxd/internal/workspace/workspacetest"
)

// maker makes a driver for a data directory.
type maker func(t testing.TB, dir string) sandboxd.Driver

func fakeDriver(testing.TB, string) sandboxd.Driver { return fake.New(fake.NewWorld(fake.Config{})) }

func processDriver(t testing.TB, dir string) sandboxd.Driver {
	t.Helper()
	if os.Geteuid() == 0 {
		leaktest.Sandboxes(dir)
	}
	d, err := process.Open(process.Config{DataDir: dir, RunDir: filepath.Join(dir, "run")})
	if err != nil {
		t.Fatal(err)
	}
	found := d.Fingerprint(context.Background())
	captest.Need(t, "process", found.Works, found.Reason)
	return d
}

// dockerDriver makes a maker of the docker driver over one OCI runtime.
func dockerDriver(runtime string) maker {
	return func(t testing.TB, dir string) sandboxd.Driver {
		t.Helper()
		e := dockertest.Find(t, runtime)
		d, err := docker.New(docker.Config{Host: e.Host, DataDir: dir, Image: e.Tools(t), OCIRuntime: e.Runtime})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// embedded makes a host over a driver and SQLite.
func embedded(t testing.TB, places int, made maker) sandboxd.Host {
	t.Helper()
	return embeddedIn(t, t.TempDir(), places, made)
}

func embeddedIn(t testing.TB, dir string, places int, made maker) sandboxd.Host {
	t.Helper()
	return embeddedWith(t, dir, host.Config{MaxSandboxes: places, Images: true, Drivers: []sandboxd.Driver{made(t, dir)}})
}

// embeddedWith completes a configuration, and closes its first driver with t.
func embeddedWith(t testing.TB, dir string, cfg host.Config) sandboxd.Host {
	t.Helper()
	driver := cfg.Drivers[0]
	db, err := store.OpenSQLite(context.Background(), filepath.Join(dir, "host.db"))
	if err != nil {
		t.Fatal(err)
	}
	uids := sandboxd.UIDPool{First: 220000, Last: 220999}
	if uid := uint32(os.Geteuid()); uid != 0 {
		uids = sandboxd.UIDPool{First: uid, Last: uid, Shared: true}
	}
	cfg.DataDir, cfg.Store, cfg.UIDs = dir, db, uids
	h, err := host.New(context.Background(), cfg)
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

const (
	apiKey    = "sk_of-the-suite"
	hostToken = "host-token-of-the-suite"
)

// listener is one of the two, with its secret.
type listener struct {
	handler func(api.Config) http.Handler
	cfg     api.Config
}

var (
	control = listener{api.Control, api.Config{Token: apiKey, OtherToken: hostToken}}
	role    = listener{api.HostListener, api.Config{Token: hostToken, OtherToken: apiKey}}
)

// remote makes a client of an embedded host, over real HTTP.
func remote(t testing.TB, places int, l listener, made maker) sandboxd.Host {
	t.Helper()
	return remoteOf(t, l, embedded(t, places, made))
}

func remoteOf(t testing.TB, l listener, h sandboxd.Host) sandboxd.Host {
	t.Helper()
	l.cfg.HostFor = func(*http.Request) (sandboxd.Host, error) { return h, nil }
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := api.Server("", l.handler(l.cfg))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln)
	}()
	c, err := client.New("http://"+ln.Addr().String(), l.cfg.Token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		_ = srv.Close()
		<-served
	})
	return c
}

func TestEmbeddedHost(t *testing.T) {
	hosttest.Run(t, hosttest.Harness{New: func(t *testing.T, places int) sandboxd.Host {
		return embedded(t, places, fakeDriver)
	}})
}

func TestClientOfTheControlListener(t *testing.T) {
	hosttest.Run(t, hosttest.Harness{New: func(t *testing.T, places int) sandboxd.Host {
		return remote(t, places, control, fakeDriver)
	}})
}

func TestClientOfTheHostListener(t *testing.T) {
	hosttest.Run(t, hosttest.Harness{New: func(t *testing.T, places int) sandboxd.Host {
		return remote(t, places, role, fakeDriver)
	}})
}

func TestEmbeddedHostOverProcesses(t *testing.T) {
	captest.Root(t)
	hosttest.Run(t, hosttest.Harness{Program: hosttest.ShellPrograms, New: func(t *testing.T, places int) sandboxd.Host {
		return embedded(t, places, processDriver)
	}})
}

func TestClientOverProcesses(t *testing.T) {
	captest.Root(t)
	hosttest.Run(t, hosttest.Harness{Program: hosttest.ShellPrograms, New: func(t *testing.T, places int) sandboxd.Host {
		return remote(t, places, control, processDriver)
	}})
}

// An ordinary user's host is the same, over the process driver without root.
func TestHostOfAnOrdinaryUser(t *testing.T) {
	usable, detail, _ := isolate.UserNamespaces()
	if !captest.Rootless(t, usable, detail) {
		return
	}
	hosttest.Run(t, hosttest.Harness{Program: hosttest.ShellPrograms, FixedLimits: true, New: func(t *testing.T, places int) sandboxd.Host {
		return remote(t, places, control, processDriver)
	}})
}

// Where commands have no cgroups nobody is promised a limit that would not hold.
func TestLimitsOfACommandNeedGroups(t *testing.T) {
	h := embedded(t, 1, fakeDriver)
	sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = h.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Argv: []string{"true"}, Limits: sandboxd.CommandLimits{MemoryBytes: 64 << 20}})
	if sandboxd.ClassOf(err) != sandboxd.ClassUnsupported {
		t.Errorf("%v", err)
	}
}

func TestEmbeddedHostOverContainers(t *testing.T) {
	hosttest.Run(t, hosttest.Harness{Program: hosttest.ShellPrograms, New: func(t *testing.T, places int) sandboxd.Host {
		return embedded(t, places, dockerDriver("runc"))
	}})
}

func TestClientOverContainersUnderGVisor(t *testing.T) {
	hosttest.Run(t, hosttest.Harness{Program: hosttest.ShellPrograms, FixedLimits: true, New: func(t *testing.T, places int) sandboxd.Host {
		return remote(t, places, control, dockerDriver("runsc"))
	}})
}

// The client's files are an implementation of sandboxd.Files like any other.
func TestFilesOverHTTP(t *testing.T) {
	workspacetest.Run(t, func(t testing.TB) workspacetest.Harness {
		dir := t.TempDir()
		h := remoteOf(t, control, embeddedIn(t, dir, 20, fakeDriver))
		no := false
		sb, _, err := h.Open(context.Background(), sandboxd.OpenRequest{Key: "files", Start: &no})
		if err != nil {
			t.Fatal(err)
		}
		files, err := h.Files(context.Background(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		return workspacetest.Harness{Files: files, Plant: func(t testing.TB, target, name string) {
			if err := os.Symlink(target, filepath.Join(dir, "workspaces", "files", "workspace", name)); err != nil {
				t.Fatal(err)
			}
		}}
	})
}
