package meta

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// goPackage is what the rules read of `go list -json`.
type goPackage struct {
	Dir          string
	ImportPath   string
	Name         string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
}

// path is the import path below the module; the root package is ".".
func (p goPackage) path() string { return below(p.ImportPath) }

func below(importPath string) string {
	if importPath == "sandboxd" {
		return "."
	}
	return strings.TrimPrefix(importPath, "sandboxd/")
}

// rootDir is the repository's root: the package's directory is two below.
var rootDir = sync.OnceValue(func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
})

// packages lists the tree, with -e: a package that does not compile fails elsewhere,
// with the compiler's message.
var packages = sync.OnceValues(func() ([]goPackage, error) {
	cmd := exec.Command("go", "list", "-e", "-json=Dir,ImportPath,Name,GoFiles,TestGoFiles,XTestGoFiles,Imports", "./...")
	cmd.Dir = rootDir()
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func allPackages(t *testing.T) []goPackage {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if len(all) == 0 {
		t.Fatal("go list found no package")
	}
	return all
}

// source is one parsed file.
type source struct {
	path string // below the root
	pkg  goPackage
	test bool
	file *ast.File
	fset *token.FileSet
}

// at names a position for a message.
func (s source) at(pos token.Pos) string {
	p := s.fset.Position(pos)
	return s.path + ":" + strconv.Itoa(p.Line)
}

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	for _, p := range allPackages(t) {
		for i, names := range [][]string{p.GoFiles, p.TestGoFiles, p.XTestGoFiles} {
			for _, name := range names {
				fset := token.NewFileSet()
				file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
				if err != nil {
					t.Fatal(err)
				}
				rel, err := filepath.Rel(rootDir(), filepath.Join(p.Dir, name))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, source{path: rel, pkg: p, test: i > 0, file: file, fset: fset})
			}
		}
	}
	return all
}

// imports lists a file's imports and the local name of each.
func (s source) imports() map[string]string {
	names := map[string]string{}
	for _, spec := range s.file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = path
	}
	return names
}

// trackedFiles are the files that git knows or would add, as the repository is
// going to be.
func trackedFiles(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = rootDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var files []string
	for _, name := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(rootDir(), name)); err == nil {
			files = append(files, name)
		}
	}
	sort.Strings(files)
	return files
}

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(rootDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
