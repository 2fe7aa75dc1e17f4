package meta

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/licences.md anew")

const (
	inventory = "docs/licences.md"
	foreword  = "# Licences\n\nWhat is compiled into `bin/sandboxd` and its init beside the Go standard library (BSD-3-Clause), by the\n" +
		"licence that comes with each module. `go test ./internal/meta -run Licences -update` writes this page; a test\n" +
		"compares it with `go.mod`, `go.sum` and the modules themselves.\n\n| module | version | licence |\n|---|---|---|\n"
)

// licences are known by words that only one of them has; the first that fits is it.
var licences = []struct{ name, words string }{
	{"Apache-2.0", "Apache License"},
	{"MPL-2.0", "Mozilla Public License"},
	{"ISC", "distribute this software for any purpose"},
	{"MIT", "Permission is hereby granted, free of charge"},
	{"BSD-3-Clause", "Neither the name"},
	{"BSD-3-Clause", "may not be used to endorse"},
	{"BSD-2-Clause", "Redistributions in binary form must reproduce"},
}

// module is what go list says of one.
type module struct {
	Path, Version, Dir string
	Main               bool
	Replace            *module
}

// TestLicences: the inventory has each module that is compiled in, with the version that
// go.mod and go.sum pin and the licence that lies in it. One whose licence nobody here has
// looked at has none to be written.
func TestLicences(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-json=Module", "./cmd/sandboxd", "./cmd/init")
	cmd.Dir, cmd.Env = rootDir(), append(os.Environ(), "GOOS=linux")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	pinned := read(t, "go.sum")
	rows := map[string]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var pkg struct {
			Module *module
		}
		if err := dec.Decode(&pkg); err != nil {
			t.Fatal(err)
		}
		m := pkg.Module
		if m == nil || m.Main || rows[m.Path] != "" {
			continue
		}
		if m.Replace != nil {
			m.Path, m.Version = m.Replace.Path, m.Replace.Version
		}
		if !strings.Contains(pinned, fmt.Sprintf("%s %s h1:", m.Path, m.Version)) {
			t.Errorf("go.sum: it does not pin %s %s", m.Path, m.Version)
		}
		rows[m.Path] = fmt.Sprintf("| `%s` | %s | %s |\n", m.Path, m.Version, licenceOf(t, m.Path, m.Dir))
	}
	var want strings.Builder
	want.WriteString(foreword)
	var paths []string
	for path := range rows {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		want.WriteString(rows[path])
	}
	file := filepath.Join(rootDir(), inventory)
	if *update {
		if err := os.WriteFile(file, []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	is := read(t, inventory)
	for _, line := range strings.SplitAfter(want.String(), "\n") {
		if !strings.Contains(is, line) {
			t.Errorf("%s: it lacks %q; go test ./internal/meta -run Licences -update writes it anew", inventory, line)
		}
	}
	for _, line := range strings.SplitAfter(is, "\n") {
		if !strings.Contains(want.String(), line) {
			t.Errorf("%s: it has %q, which is not compiled in", inventory, line)
		}
	}
}

// licenceOf reads the licence that lies in a module.
func licenceOf(t *testing.T, path, dir string) string {
	t.Helper()
	for _, name := range []string{"LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		text := strings.Join(strings.Fields(string(raw)), " ")
		for _, l := range licences {
			if strings.Contains(text, l.words) {
				return l.name
			}
		}
	}
	t.Errorf("%s: nobody knows its licence", path)
	return "unknown"
}
