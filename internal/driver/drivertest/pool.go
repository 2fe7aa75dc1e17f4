package drivertest

import (
	"testing"

	"sandboxd"
)

// testPool says that a pool changes nothing that a caller sees.
func testPool(t *testing.T, f *fixture) {
	pool, ok := f.d.(sandboxd.EnvironmentPool)
	if claimed := f.d.Fingerprint(f.context()).Capabilities.Pool; claimed && !ok {
		t.Fatal("a pool is claimed and not there")
	}
	if !ok {
		return
	}
	pool.KeepReady(2)
	handles := map[string]sandboxd.Handle{}
	var ids []string
	for range 4 {
		spec, handle := f.mustStart()
		handles[spec.ID] = handle
		ids = append(ids, spec.ID)
		if r := Attach(t, f.d, spec.ID).Run(f.Echo("mine")...); r.Stdout != "mine\n" {
			t.Errorf("echo: %+v", r)
		}
		f.wantList(ids...)
	}
	pool.KeepReady(0)
	f.wantList(ids...)
	if !f.survives() {
		return
	}
	f.reopen()
	f.d.(sandboxd.EnvironmentPool).KeepReady(2)
	f.wantList(ids...)
	for id, handle := range handles {
		if err := f.d.Adopt(f.context(), id, handle); err != nil {
			t.Fatalf("adopt: %v", err)
		}
		if r := Attach(t, f.d, id).Run(f.True...); r.Exit.Code != 0 {
			t.Errorf("true after adoption: %+v", r)
		}
	}
	for _, id := range ids {
		if err := f.d.Stop(f.context(), id); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	f.wantList()
}
