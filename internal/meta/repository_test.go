package meta

import (
	"bufio"
	"bytes"
	"encoding/json"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const mostDependencies = 35

type modFile struct {
	Require []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

func goMod(t *testing.T, file string) modFile {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json", file)
	cmd.Dir = rootDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit %s: %v", file, err)
	}
	var m modFile
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

var dependencyLine = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.+) \\|$")

func TestDependenciesAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, m := range dependencyLine.FindAllStringSubmatch(read(t, "docs/dependencies.md"), -1) {
		if listed[m[1]] {
			t.Errorf("docs/dependencies.md lists %s twice", m[1])
		}
		listed[m[1]] = true
	}
	direct := 0
	for _, r := range goMod(t, "go.mod").Require {
		if r.Indirect {
			continue
		}
		direct++
		if !listed[r.Path] {
			t.Errorf("docs/dependencies.md has no line for %s", r.Path)
		}
		delete(listed, r.Path)
	}
	for path := range listed {
		t.Errorf("docs/dependencies.md lists %s, which is no direct dependency", path)
	}
	if direct == 0 || direct > mostDependencies {
		t.Errorf("%d direct dependencies, at most %d", direct, mostDependencies)
	}
}

// TestSQLiteHasItsOwnLibc: modernc.org/sqlite is generated against one version
// of modernc.org/libc and is correct with that one only.
func TestSQLiteHasItsOwnLibc(t *testing.T) {
	const sqlite, libc = "modernc.org/sqlite", "modernc.org/libc"
	version := func(module string) (dir, version string) {
		cmd := exec.Command("go", "list", "-m", "-json", module)
		cmd.Dir = rootDir()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list -m %s: %v", module, err)
		}
		var m struct {
			GoMod, Version string
			Replace        *struct{ Version string }
		}
		if err := json.Unmarshal(out, &m); err != nil {
			t.Fatal(err)
		}
		if m.Replace != nil {
			m.Version = m.Replace.Version
		}
		return m.GoMod, m.Version
	}
	sqliteMod, _ := version(sqlite)
	_, have := version(libc)
	for _, r := range goMod(t, sqliteMod).Require {
		if r.Path == libc && r.Version != have {
			t.Errorf("%s %s is built with; %s wants %s: pin it in go.mod", libc, have, sqlite, r.Version)
		} else if r.Path == libc {
			return
		}
	}
	if !t.Failed() {
		t.Errorf("%s no longer requires %s: this rule and the pin can go", sqlite, libc)
	}
}

func TestModuleFilesAreTidy(t *testing.T) {
	cmd := exec.Command("go", "mod", "tidy", "-diff")
	cmd.Dir = rootDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("go mod tidy would change something: %v\n%s", err, out)
	}
}

// unwanted are words that no file of the repository contains. They are spelled
// so that this file does not either.
var unwanted = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b|` +
	`(?i:regist` + `ry\.npmjs|proxy\.gol` + `ang|deb\.deb` + `ian|pypi\.o` + `rg|pythonhos` + `ted|crates\.i` + `o)|` +
	`(^|[^A-Za-z0-9_.-])/(wo` + `rk|fa` + `rm)/[a-z.]`)

func TestNothingIsLeftUnfinishedOrLocal(t *testing.T) {
	for _, name := range trackedFiles(t) {
		raw, err := os.ReadFile(filepath.Join(rootDir(), name))
		if err != nil || bytes.IndexByte(raw, 0) >= 0 {
			continue
		}
		if strings.HasSuffix(name, "go.sum") {
			continue
		}
		lines := bufio.NewScanner(bytes.NewReader(raw))
		lines.Buffer(nil, 16<<20)
		for n := 1; lines.Scan(); n++ {
			if found := unwanted.Find(lines.Bytes()); found != nil {
				t.Errorf("%s:%d: %q: finish it, or write it down in ROADMAP.md; name no mirror and no path of one machine", name, n, found)
			}
		}
	}
}

func TestTrackedFilesAreSmall(t *testing.T) {
	for _, name := range trackedFiles(t) {
		if st, err := os.Lstat(filepath.Join(rootDir(), name)); err == nil && st.Size() > 1<<20 {
			t.Errorf("%s has %d bytes", name, st.Size())
		}
	}
}

func TestReadmeShowsTheTwoCommands(t *testing.T) {
	readme := read(t, "README.md")
	for _, command := range []string{"make run", "make test"} {
		if !strings.Contains(readme, command) {
			t.Errorf("README.md does not show %q", command)
		}
	}
	if !strings.Contains(read(t, ".ci/run"), "make test") {
		t.Error(".ci/run does not call the README's test command")
	}
}

// link is a relative link of a Markdown page.
var link = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)

func TestLinksOfThePagesLead(t *testing.T) {
	for _, name := range trackedFiles(t) {
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(read(t, name), -1) {
			if _, err := os.Stat(filepath.Join(rootDir(), filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	}
}

var requirementRow = regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \| (.+) \| (.+) \|$`)

var testName = regexp.MustCompile("`([A-Za-z0-9_/.-]+)\\.((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)`")

// TestRequirementsHaveTheirTests: each row of docs/requirements.md names tests
// that exist, as `package.TestName` with the package below the module.
func TestRequirementsHaveTheirTests(t *testing.T) {
	have := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				have[s.pkg.path()+"."+f.Name.Name] = true
			}
		}
	}
	rows := requirementRow.FindAllStringSubmatch(read(t, "docs/requirements.md"), -1)
	if len(rows) < 20 {
		t.Fatalf("docs/requirements.md has %d rows", len(rows))
	}
	seen := map[string]bool{}
	for _, row := range rows {
		if seen[row[1]] {
			t.Errorf("row %s is there twice", row[1])
		}
		seen[row[1]] = true
		tests := testName.FindAllStringSubmatch(row[3], -1)
		if len(tests) == 0 {
			t.Errorf("row %s names no test", row[1])
		}
		for _, m := range tests {
			if !have[m[1]+"."+m[2]] {
				t.Errorf("row %s names %s.%s, which does not exist", row[1], m[1], m[2])
			}
		}
	}
}
