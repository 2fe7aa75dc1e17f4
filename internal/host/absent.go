package host

import (
	"context"
	"io"

	"sandboxd"
)

// absent stands for a driver that does not work on this host now: the files of
// its sandboxes are served and a sandbox without an environment can be deleted;
// nothing else can be done with them until the driver is back.
type absent struct {
	name string
	// running: the record says that there is an environment, and nobody here can
	// end it.
	running bool
}

var _ sandboxd.Driver = absent{}

func (a absent) err() error {
	return sandboxd.Errorf(sandboxd.ClassUnavailable, "driver %s does not work on this host now", a.name).
		WithHint("sandboxd doctor says why")
}

func (a absent) Name() string { return a.name }

func (a absent) Fingerprint(context.Context) sandboxd.Fingerprint {
	return sandboxd.Fingerprint{Reason: "not offered by this host"}
}

func (a absent) Start(context.Context, sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	return nil, a.err()
}

func (a absent) Adopt(context.Context, string, sandboxd.Handle) error { return a.err() }

func (a absent) Connect(context.Context, string) (io.ReadWriteCloser, error) { return nil, a.err() }

func (a absent) Stop(context.Context, string) error {
	if a.running {
		return a.err()
	}
	return nil
}

func (a absent) Inspect(context.Context, string) (sandboxd.EnvironmentStatus, error) {
	return sandboxd.EnvironmentStatus{}, a.err()
}

func (a absent) List(context.Context) ([]string, error) { return nil, a.err() }

func (a absent) Events() <-chan sandboxd.DriverEvent { return nil }

func (a absent) Close() error { return nil }
