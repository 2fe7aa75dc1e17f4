package process

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
)

func newDriver(t testing.TB, dir string) *Driver {
	t.Helper()
	d, err := New(Config{DataDir: dir, RunDir: filepath.Join(dir, "run"), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Close()
		if d.groups != nil {
			d.groups.removeBase()
		}
	})
	return d
}

func TestFingerprint(t *testing.T) {
	captest.Root(t)
	d := newDriver(t, t.TempDir())
	fp := d.Fingerprint(context.Background())
	for _, l := range fp.Level {
		t.Logf("%+v", l)
	}
	if !fp.Works {
		t.Fatalf("does not work: %s (%s)", fp.Reason, fp.Hint)
	}
	_ = sandboxd.Limits{}
}
