package docker

import (
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
)

// What was installed is there again after the container was kept and started.
func TestAKeptRootHasWhatWasInstalled(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			var spec sandboxd.EnvironmentSpec
			b := openBox(t, dockertest.Find(t, runtime), func(s *sandboxd.EnvironmentSpec) { s.WritableRoot = true; spec = *s })
			if r := b.Run("/bin/sh", "-c", "echo installed >/var/tmp/f; echo gone >/tmp/f"); r.Exit.Code != 0 {
				t.Fatalf("%+v", r)
			}
			if err := b.d.Keep(t.Context(), spec.ID); err != nil {
				t.Fatal(err)
			}
			spec.Kept, spec.Generation = true, spec.Generation+1
			if _, err := b.d.Start(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			if r := drivertest.Attach(t, b.d, spec.ID).Run("/bin/sh", "-c", "cat /var/tmp/f /tmp/f 2>/dev/null"); r.Stdout != "installed\n" {
				t.Fatalf("%+v", r)
			}
		})
	}
}
