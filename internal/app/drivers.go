package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/driver/process"
)

// realDrivers isolate something; they are tried in this order, and the first that
// works is the default.
var realDrivers = []string{"process"}

// driverConfig is what drivers need of a server.
type driverConfig struct {
	Data string
	Log  *slog.Logger
}

func newDriver(name string, cfg driverConfig) (sandboxd.Driver, error) {
	switch name {
	case "process":
		return process.Open(process.Config{DataDir: cfg.Data, RunDir: filepath.Join(cfg.Data, "run"), Log: cfg.Log})
	case "fake":
		return fake.New(fake.NewWorld(fake.Config{})), nil
	}
	return nil, sandboxd.Errorf(sandboxd.ClassUnsupported, "this build has no %s driver yet", name).
		WithHint("use --driver process, which needs no daemon")
}

// chooseDrivers makes the drivers that a server offers. Whoever names one gets it
// or an error; auto takes all that work.
func chooseDrivers(ctx context.Context, choice string, cfg driverConfig) ([]sandboxd.Driver, error) {
	names := []string{choice}
	if choice == "auto" {
		names = realDrivers
	}
	var drivers []sandboxd.Driver
	var failed []string
	var hint string
	for _, name := range names {
		d, err := newDriver(name, cfg)
		if err != nil {
			return nil, err
		}
		f := d.Fingerprint(ctx)
		if f.Works {
			drivers = append(drivers, d)
			continue
		}
		if err := d.Close(); err != nil {
			return nil, err
		}
		failed = append(failed, "the "+name+" driver cannot work here: "+f.Reason)
		if hint == "" {
			hint = f.Hint
		}
	}
	if len(drivers) > 0 {
		return drivers, nil
	}
	if hint == "" {
		hint = "`sandboxd doctor` says what is missing and why"
	}
	return nil, sandboxd.Errorf(sandboxd.ClassUnavailable, "%s", strings.Join(failed, "; ")).WithHint("%s", hint)
}
