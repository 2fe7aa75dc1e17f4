package catalogue

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandboxd"
)

func TestShipped(t *testing.T) {
	entries := Shipped()
	w := Default(entries)
	if w.Alias != "workbench" || entries[0].Alias != w.Alias {
		t.Fatalf("the default is %s", w.Alias)
	}
	if w.BaseImage != "python:3.12-slim" || w.Ceilings.MemoryBytes != 2<<30 || !w.NeedsNetwork || w.Root != RootWritable || w.Apps {
		t.Errorf("%+v", w)
	}
	for name, want := range map[string]string{"MPLBACKEND": "Agg", "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"} {
		if w.Env[name] != want {
			t.Errorf("%s=%q", name, w.Env[name])
		}
	}
	app, ok := Find(entries, "app")
	if !ok || !app.Apps || app.Root != RootReadonly || app.Ceilings.MemoryBytes != 4<<30 || app.Ceilings.TmpBytes != 512<<20 {
		t.Errorf("%+v", app)
	}
	if offered := Offered(entries, false); len(offered) != 1 || offered[0].Alias != "workbench" {
		t.Errorf("a host without apps offers %d", len(offered))
	}
	if len(Offered(entries, true)) != len(entries) || len(entries) != 2 {
		t.Errorf("%d entries", len(entries))
	}
}

// TestAppAsAnOrdinaryRuntime: a catalogue offers it, and what is built stays the same.
func TestAppAsAnOrdinaryRuntime(t *testing.T) {
	entries, err := Load([]byte(`{"workbench": "@workbench", "app": {"runtime": "app", "apps": false}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Shipped()
	want[1].Apps = false
	if diff := cmp.Diff(want, Offered(entries, false)); diff != "" {
		t.Error(diff)
	}
}

// TestTheWorkbenchLeavesOut: what was measured and found to cost more than it gives.
func TestTheWorkbenchLeavesOut(t *testing.T) {
	w := Default(Shipped())
	all := slices.Concat(w.Packages, w.APTPackages, w.NPMPackages)
	for _, name := range []string{"build-essential", "gcc", "scikit-learn", "scipy"} {
		if slices.Contains(all, name) {
			t.Errorf("%s is there", name)
		}
	}
}

// TestAgentsArePinned: what follows a moving target is another program tomorrow.
func TestAgentsArePinned(t *testing.T) {
	for _, e := range Shipped() {
		for _, p := range e.NPMPackages {
			if at := strings.LastIndex(p, "@"); at < 1 || !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(p[at+1:]) {
				t.Errorf("%s: %s has no exact version", e.Alias, p)
			}
		}
	}
}

// Architecture is what would make an entry another on another machine.
var architecture = regexp.MustCompile(`(?i)amd64|arm64|x86|x64|aarch|i386|armv|dpkg --print|uname`)

func TestNoShippedEntryNamesAnArchitecture(t *testing.T) {
	for _, e := range Shipped() {
		if found := architecture.FindString(string(Object([]Entry{e}))); found != "" {
			t.Errorf("%s names %q", e.Alias, found)
		}
	}
}

func TestLimitsOfCeilings(t *testing.T) {
	c := Ceilings{MemoryBytes: 2 << 30, SwapBytes: 4 << 30, CPUs: 0.5, CPUShares: 100, PIDs: 512, TmpBytes: 64 << 20, OCIRuntime: "runc"}
	if diff := cmp.Diff(sandboxd.Limits{MemoryBytes: 2 << 30, SwapBytes: 4 << 30, CPUs: 0.5, CPUShares: 100, PIDs: 512, TmpBytes: 64 << 20}, c.Limits()); diff != "" {
		t.Error(diff)
	}
}
