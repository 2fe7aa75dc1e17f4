package drivertest

import (
	"os"
	"path/filepath"
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
)

// testCABundle shows a file of the host to one environment and none to another.
func testCABundle(t *testing.T, f *fixture) {
	captest.Need(t, "driver-files", f.Show != nil, "this driver's environments have no files")
	spec := f.Spec(t)
	spec.CABundle = filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(spec.CABundle, []byte("certificates"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := f.start(spec); err != nil {
		t.Fatal(err)
	}
	if r := Attach(t, f.d, spec.ID).Run(f.Show(sandboxd.CABundle)...); r.Stdout != "certificates" {
		t.Errorf("the bundle is %+v", r)
	}
	without, _ := f.mustStart()
	if r := Attach(t, f.d, without.ID).Run(f.Show(sandboxd.CABundle)...); r.Exit.Code == 0 {
		t.Errorf("a bundle that nobody gave: %+v", r)
	}
	missing := f.Spec(t)
	missing.CABundle = spec.CABundle + ".missing"
	if _, err := f.start(missing); err == nil {
		t.Error("a bundle that is not there was no error")
	}
}
