package hosttest_test

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/api"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/host"
	"sandboxd/internal/host/hosttest"
	"sandboxd/internal/store"
)

// embedded makes a host over the fake driver and SQLite.
func embedded(t *testing.T, places int) sandboxd.Host {
	t.Helper()
	dir := t.TempDir()
	db, err := store.OpenSQLite(context.Background(), filepath.Join(dir, "host.db"))
	if err != nil {
		t.Fatal(err)
	}
	driver := fake.New(fake.NewWorld(fake.Config{}))
	h, err := host.New(context.Background(), host.Config{DataDir: dir, Store: db, Drivers: []sandboxd.Driver{driver},
		UIDs: sandboxd.UIDPool{First: 200000, Last: 200999}, MaxSandboxes: places})
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

// remote makes a client of an embedded host, over real HTTP.
func remote(t *testing.T, places int, listener func(api.Config) http.Handler, cfg api.Config) sandboxd.Host {
	t.Helper()
	h := embedded(t, places)
	cfg.HostFor = func(*http.Request) (sandboxd.Host, error) { return h, nil }
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := api.Server("", listener(cfg))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln)
	}()
	c, err := client.New("http://"+ln.Addr().String(), cfg.Token)
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
	hosttest.Run(t, hosttest.Harness{New: embedded})
}

func TestClientOfTheControlListener(t *testing.T) {
	hosttest.Run(t, hosttest.Harness{New: func(t *testing.T, places int) sandboxd.Host {
		return remote(t, places, api.Control, api.Config{Token: apiKey, OtherToken: hostToken})
	}})
}

func TestClientOfTheHostListener(t *testing.T) {
	hosttest.Run(t, hosttest.Harness{New: func(t *testing.T, places int) sandboxd.Host {
		return remote(t, places, api.HostListener, api.Config{Token: hostToken, OtherToken: apiKey})
	}})
}
