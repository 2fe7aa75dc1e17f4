package process

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/driver/initbin"
	"sandboxd/internal/host"
	"sandboxd/internal/isolate/setup"
	"sandboxd/internal/selftest"
	"sandboxd/internal/store"
)

// altered changes what an environment is made of before it is started.
type altered struct {
	*Driver
	change func(*testing.T, *sandboxd.EnvironmentSpec)
	t      *testing.T
}

func (a altered) Start(ctx context.Context, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	a.change(a.t, &spec)
	return a.Driver.Start(ctx, spec)
}

// runSelftest runs it against a host over this driver.
func runSelftest(t *testing.T, weaken func(*Driver), change func(*testing.T, *sandboxd.EnvironmentSpec)) selftest.Report {
	t.Helper()
	need(t)
	dir := t.TempDir()
	before := leftovers(dir)
	d := openDriver(t, dir)
	if weaken != nil {
		weaken(d)
	}
	if change == nil {
		change = func(*testing.T, *sandboxd.EnvironmentSpec) {}
	}
	prober, err := initbin.Prober(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	memory := store.NewMemory()
	h, err := host.New(t.Context(), host.Config{DataDir: dir, Store: memory, Drivers: []sandboxd.Driver{altered{d, change, t}},
		UIDs: sandboxd.UIDPool{First: 220_000, Last: 220_009}})
	if err != nil {
		t.Fatal(err)
	}
	report, err := selftest.Run(t.Context(), selftest.Config{Host: h, Driver: d.Name(), Prober: prober, Level: d.level()})
	if err != nil {
		t.Error(err)
	}
	for name, close := range map[string]func() error{"host": h.Close, "driver": d.Close, "store": memory.Close} {
		if err := close(); err != nil {
			t.Errorf("close the %s: %v", name, err)
		}
	}
	if after := leftovers(dir); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
	return report
}

func TestSelftestIsGreen(t *testing.T) {
	r := runSelftest(t, nil, nil)
	if !r.Green || len(r.Failed()) != 0 {
		t.Errorf("red: %v", shown(t, r))
	}
	if len(r.Lines) < 40 {
		t.Errorf("%d lines", len(r.Lines))
	}
}

func shown(t *testing.T, r selftest.Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestSelftestIsRedWithout starts sandboxes without one protection each and wants
// the selftest to name it. Some attempts are held by more than one mechanism, and
// some mechanisms hold for others: may are those that fail with the one.
func TestSelftestIsRedWithout(t *testing.T) {
	step := func(name string) func(*Driver) {
		return func(d *Driver) { d.weak.steps = []string{name} }
	}
	for _, test := range []struct {
		name, mechanism string
		may             []string
		weaken          func(*Driver)
		change          func(*testing.T, *sandboxd.EnvironmentSpec)
	}{
		{name: "seccomp", mechanism: "seccomp", weaken: step(setup.StepSeccomp)},
		{name: "a seccomp program that refuses", mechanism: "seccomp", weaken: func(d *Driver) { d.seccomp = allowAll() }},
		{name: "capability drop", mechanism: "capabilities", weaken: step(setup.StepCapabilities)},
		{name: "own user, as root", mechanism: "own user", may: []string{"process 1"}, weaken: step(setup.StepUser), change: owned(0)},
		{name: "own user, with one for all", mechanism: "own user", change: owned(65533)},
		{name: "network namespace", mechanism: "network namespace", weaken: func(d *Driver) { d.weak.namespaces = unix.CLONE_NEWNET }},
		{name: "masks", mechanism: "masks", weaken: step(setup.StepMasks)},
		{name: "cgroup limits", mechanism: "cgroup limits", change: func(_ *testing.T, s *sandboxd.EnvironmentSpec) { s.Limits.MemoryBytes, s.Limits.PIDs = 0, 0 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := runSelftest(t, test.weaken, test.change)
			failed := r.Failed()
			if r.Green || !slices.Contains(failed, test.mechanism) {
				t.Errorf("green without it:\n%s", shown(t, r))
			}
			for _, name := range failed {
				if name != test.mechanism && !slices.Contains(test.may, name) {
					t.Errorf("blames %s:\n%s", name, shown(t, r))
				}
			}
		})
	}
}

// owned gives an environment and its files to a user, whatever the host gave.
func owned(uid uint32) func(*testing.T, *sandboxd.EnvironmentSpec) {
	return func(t *testing.T, spec *sandboxd.EnvironmentSpec) {
		if err := giveTree(spec.Workspace, uid); err != nil {
			t.Error(err)
		}
		if spec.Seed != nil {
			spec.Seed = givenHome{spec.Seed, spec.Home, uid}
		} else if err := giveTree(spec.Home, uid); err != nil {
			t.Error(err)
		}
		if uid != 0 { // the driver refuses root, which the step left out makes of it
			spec.UID = uid
		}
	}
}

func giveTree(dir string, uid uint32) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(uid), int(uid))
	})
}

// givenHome gives a home to a user once it is made.
type givenHome struct {
	sandboxd.Seed
	dir string
	uid uint32
}

func (g givenHome) SeedHome(ctx context.Context, archive io.Reader) error {
	return errors.Join(g.Seed.SeedHome(ctx, archive), giveTree(g.dir, g.uid))
}

// allowAll is a seccomp program of one instruction.
func allowAll() []byte {
	b := binary.NativeEndian.AppendUint16(nil, unix.BPF_RET|unix.BPF_K)
	return binary.NativeEndian.AppendUint32(append(b, 0, 0), unix.SECCOMP_RET_ALLOW)
}
