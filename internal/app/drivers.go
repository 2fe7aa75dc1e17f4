package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"sandboxd"
	"sandboxd/internal/driver/docker"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/driver/process"
	"sandboxd/internal/egress"
	"sandboxd/internal/workspace"
)

// realDrivers isolate something; they are offered in this order, and the first
// that works is the default.
var realDrivers = []string{"process", "docker"}

// driverConfig is what drivers need of a server.
type driverConfig struct {
	Data       string
	Workspaces string // as host.Config has it
	Engine     string // address of the container engine, empty for the default
	Image      string // of sandboxes in containers that name none
	OCIRuntime string
	Bridge     bool // containers may have one
	Log        *slog.Logger
}

func newDriver(name string, cfg driverConfig) (sandboxd.Driver, error) {
	switch name {
	case "process":
		return process.Open(process.Config{DataDir: cfg.Data, RunDir: filepath.Join(cfg.Data, "run"), Log: cfg.Log})
	case "docker":
		_, trash := workspace.Places(cfg.Data, cfg.Workspaces) // what a killed server leaves there, the next one removes
		return docker.New(docker.Config{Host: cfg.Engine, DataDir: cfg.Data, Scratch: trash, Image: cfg.Image, OCIRuntime: cfg.OCIRuntime,
			Bridge: cfg.Bridge, Closed: egress.Closed(), Log: cfg.Log})
	case "fake":
		return fake.New(fake.NewWorld(fake.Config{})), nil
	}
	return nil, sandboxd.Errorf(sandboxd.ClassUnsupported, "this build has no %s driver", name)
}

// candidate is a driver that was looked at.
type candidate struct {
	name   string
	driver sandboxd.Driver
	found  sandboxd.Fingerprint
	err    error // it could not be made
}

// examine makes drivers and has them look at the machine, side by side: some ask a
// daemon that takes its time.
func examine(ctx context.Context, names []string, cfg driverConfig) []candidate {
	all := make([]candidate, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			c := candidate{name: name}
			if c.driver, c.err = newDriver(name, cfg); c.err == nil {
				c.found = c.driver.Fingerprint(ctx)
			}
			all[i] = c
		})
	}
	wg.Wait()
	return all
}

// chooseDrivers makes the drivers that a server offers. Whoever names one gets it
// or an error; auto takes all that work. Beside them, by name, is what they can do.
func chooseDrivers(ctx context.Context, choice string, cfg driverConfig) ([]sandboxd.Driver, map[string]sandboxd.Capabilities, error) {
	names := []string{choice}
	if choice == "auto" {
		names = realDrivers
	}
	var drivers []sandboxd.Driver
	can := map[string]sandboxd.Capabilities{}
	var failed []string
	var hint string
	for _, c := range examine(ctx, names, cfg) {
		switch {
		case c.err != nil:
			return nil, nil, c.err
		case c.found.Works:
			drivers = append(drivers, c.driver)
			can[c.name] = c.found.Capabilities
			continue
		}
		if err := c.driver.Close(); err != nil {
			return nil, nil, err
		}
		cfg.Log.Info("a driver is not offered", "driver", c.name, "reason", c.found.Reason)
		failed = append(failed, "the "+c.name+" driver cannot work here: "+c.found.Reason)
		if hint == "" {
			hint = c.found.Hint
		}
	}
	if len(drivers) > 0 {
		return drivers, can, nil
	}
	if hint == "" {
		hint = "`sandboxd doctor` says what is missing and why"
	}
	return nil, nil, sandboxd.Errorf(sandboxd.ClassUnavailable, "%s", strings.Join(failed, "; ")).WithHint("%s", hint)
}
