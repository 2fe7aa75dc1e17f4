package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/internal/captest"
	"sandboxd/internal/driver/drivertest"
)

// An ordinary user who was given a part of cgroup version 2 has groups as root has:
// the suite passes with them, and limits hold for the sandbox as a whole.
func TestRootlessDelegated(t *testing.T) {
	if os.Geteuid() == 0 {
		g, err := findGroups("probe")
		captest.Need(t, "cgroup2", err == nil && g.v2, "no cgroup version 2 with the controllers")
		given := g.roots[0]
		give(t, given, filepath.Join(given.mount, fmt.Sprintf("given-%d", os.Getpid())))
	}
	if !rootless(t) {
		return
	}
	g, err := findGroups("probe")
	if err != nil {
		t.Fatal(err)
	}
	if base := filepath.Base(g.roots[0].mount); !strings.HasPrefix(base, "given-") {
		t.Errorf("used is %s", base)
	}
	d := openDriver(t, t.TempDir())
	fp := d.Fingerprint(context.Background())
	d.Close()
	if !fp.Works || !fp.Capabilities.CommandCgroup {
		t.Fatalf("%+v", fp)
	}
	t.Run("limits", func(t *testing.T) { testLimits(t, openBox) })
	drivertest.Run(t, func(t *testing.T) drivertest.Harness { return harness(t) })
}

// give makes a group, gives it to the ordinary user and puts this process there for
// the time of the test.
func give(t *testing.T, r root, dir string) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, before, _ := strings.Cut(strings.TrimSpace(string(own)), "0::")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.delegate(r.mount))
	must(os.Mkdir(dir, 0o755))
	for _, file := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
		must(os.Chown(filepath.Join(dir, file), captest.User, captest.User))
	}
	must(writeFile(filepath.Join(dir, "cgroup.procs"), "0"))
	t.Cleanup(func() {
		must(writeFile(filepath.Join(r.mount, before, "cgroup.procs"), "0"))
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		must(retry(ctx, func() (bool, error) { return removeTree(dir) == nil, nil }))
	})
}
