package meta

import (
	"bytes"
	"go/ast"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mostLines      = 600
	mostParameters = 4
)

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	said := map[string][]string{}
	words := map[string]int{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if _, known := said[s.pkg.path()]; !known {
			said[s.pkg.path()] = nil
		}
		if s.file.Doc != nil {
			said[s.pkg.path()] = append(said[s.pkg.path()], s.path)
			words[s.pkg.path()] += len(strings.Fields(s.file.Doc.Text()))
		}
	}
	for pkg, files := range said {
		switch {
		case len(files) == 0:
			t.Errorf("%s has no package comment", pkg)
		case len(files) > 1:
			t.Errorf("%s has %d package comments: %v", pkg, len(files), files)
		case words[pkg] < 12:
			t.Errorf("%s: the package comment says nothing: what is it, and what not?", pkg)
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(rootDir(), s.path))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(raw, []byte("\n")); n > mostLines {
			t.Errorf("%s has %d lines, at most %d: split it by idea", s.path, n, mostLines)
		}
	}
}

func TestFunctionsTakeFewParameters(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			var typ *ast.FuncType
			switch f := n.(type) {
			case *ast.FuncDecl:
				typ = f.Type
			case *ast.FuncLit:
				typ = f.Type
			default:
				return true
			}
			count := 0
			for _, field := range typ.Params.List {
				if sel, ok := field.Type.(*ast.SelectorExpr); ok && sel.Sel.Name == "Context" {
					continue
				}
				count += max(1, len(field.Names))
			}
			if count > mostParameters {
				t.Errorf("%s: %d parameters beside the context, at most %d: use a struct", s.at(n.Pos()), count, mostParameters)
			}
			return true
		})
	}
}

// guarded are the packages in which a path may come from a caller, an archive or
// a sandbox. There, only internal/workspace/beneath opens things by name.
var guarded = []string{"internal/workspace", "internal/host", "internal/api", "internal/mcp", "internal/image"}

// hostPaths are files of guarded packages whose paths a sandbox cannot
// influence, each with the reason.
var hostPaths = map[string]string{
	"internal/image/store.go":      "directories that only root enters, named by checked names and made-up ones; what an archive says is below them",
	"internal/host/lifecycle.go":   "journals are named by ids, below a directory that only the host enters",
	"internal/workspace/layout.go": "directories that only root enters, named by checked keys and ids; what a sandbox owns is below them",
}

// byName are the calls that follow a path.
var byName = map[string]map[string]bool{
	"os": set("Open", "OpenFile", "OpenInRoot", "OpenRoot", "Create", "CreateTemp", "ReadFile", "WriteFile", "ReadDir", "Stat", "Lstat",
		"Mkdir", "MkdirAll", "MkdirTemp", "Remove", "RemoveAll", "Rename", "Chmod", "Chown", "Lchown", "Chtimes", "Truncate",
		"Link", "Symlink", "Readlink", "DirFS", "CopyFS"),
	"filepath": set("Walk", "WalkDir", "Glob", "EvalSymlinks"),
	"unix": set("Open", "Creat", "Stat", "Lstat", "Mkdir", "Rmdir", "Unlink", "Rename", "Chmod", "Chown", "Lchown",
		"Truncate", "Link", "Symlink", "Readlink", "Mknod", "Setxattr", "Getxattr"),
}

func set(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

func TestPathsOfSandboxesAreOpenedBeneath(t *testing.T) {
	usedReasons := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || !isGuarded(s.pkg.path()) {
			continue
		}
		local := s.imports()
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			path := local[pkg.Name]
			if !byName[path[strings.LastIndexByte(path, '/')+1:]][sel.Sel.Name] {
				return true
			}
			if hostPaths[s.path] != "" {
				usedReasons[s.path] = true
				return true
			}
			t.Errorf("%s: %s.%s follows a path; use internal/workspace/beneath", s.at(n.Pos()), pkg.Name, sel.Sel.Name)
			return true
		})
	}
	for name := range hostPaths {
		if !usedReasons[name] {
			t.Errorf("%s needs no exception any more", name)
		}
	}
}

func isGuarded(pkg string) bool {
	if pkg == "internal/workspace/beneath" || strings.HasSuffix(pkg, "test") {
		return false
	}
	for _, g := range guarded {
		if pkg == g || strings.HasPrefix(pkg, g+"/") {
			return true
		}
	}
	return false
}

// TestSkipsAreNamed: a test that cannot run says which capability it lacks.
func TestSkipsAreNamed(t *testing.T) {
	forEachTestCall(t, func(s source, call *ast.SelectorExpr) {
		switch call.Sel.Name {
		case "Skip", "Skipf", "SkipNow":
			t.Errorf("%s: skips go through internal/captest, by the name of a capability", s.at(call.Pos()))
		}
	})
}

// TestEverySuiteLooksForLeaks: those of test/ do it by test/server.
func TestEverySuiteLooksForLeaks(t *testing.T) {
	looks, suites := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if pkg := s.pkg.path(); !s.test || !strings.HasPrefix(pkg, "internal/") && !strings.HasPrefix(pkg, "cmd/") && pkg != "client" {
			continue
		}
		suites[s.pkg.path()] = true
		ast.Inspect(s.file, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name != "TestMain" {
				return false
			}
			if call, ok := n.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Main" {
					if x, ok := sel.X.(*ast.Ident); ok && x.Name == "leaktest" {
						looks[s.pkg.path()] = true
					}
				}
			}
			return true
		})
	}
	for pkg := range suites {
		// The package of leaktest itself calls Main by its own name.
		if !looks[pkg] && pkg != "internal/leaktest" {
			t.Errorf("%s has tests and no TestMain that calls leaktest.Main", pkg)
		}
	}
}

// TestNoTestSleeps: a test waits for a condition, or time is injected.
func TestNoTestSleeps(t *testing.T) {
	forEachTestCall(t, func(s source, call *ast.SelectorExpr) {
		if x, ok := call.X.(*ast.Ident); ok && s.imports()[x.Name] == "time" && call.Sel.Name == "Sleep" {
			t.Errorf("%s: time.Sleep in a test", s.at(call.Pos()))
		}
	})
}

// TestTheHostCountsByNoWallClock: a wall clock can be set, so the host compares no
// times with it: what is kept goes through internal/clock, and durations are those
// of the runtime's clock.
func TestTheHostCountsByNoWallClock(t *testing.T) {
	wall := set("Unix", "UnixNano", "UnixMicro", "UnixMilli", "Before", "After", "Sub", "Compare")
	for _, s := range sources(t) {
		if s.test || s.pkg.path() != "internal/host" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || !wall[sel.Sel.Name] {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && s.imports()[x.Name] == "time" && sel.Sel.Name == "After" {
				return true // a timer
			}
			t.Errorf("%s: %s reads a time as the wall clock has it; use internal/clock or Host.uptime", s.at(n.Pos()), sel.Sel.Name)
			return true
		})
	}
}

// forEachTestCall visits every selector of test files and of the suites.
func forEachTestCall(t *testing.T, visit func(source, *ast.SelectorExpr)) {
	for _, s := range sources(t) {
		if !s.test && !strings.HasSuffix(s.pkg.Name, "test") || s.pkg.path() == "internal/captest" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
					visit(s, sel)
				}
			}
			return true
		})
	}
}
