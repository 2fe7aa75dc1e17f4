package process

import (
	"context"
	"io"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/guest/guesttest"
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
