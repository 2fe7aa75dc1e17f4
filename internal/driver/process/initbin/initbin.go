// Package initbin answers the small programs that run inside sandboxes: process 1
// of each, and the prober of the selftest. They are those embedded by a release
// build, otherwise built from this checkout. It neither installs nor runs them.
package initbin

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

//go:embed *
var embedded embed.FS

// Program answers the init's bytes. Building it takes seconds once; the result is
// kept in the user's cache directory under the hash of its sources.
func Program(ctx context.Context) ([]byte, error) {
	return find(ctx, program{name: "init", main: "cmd/init",
		sources: []string{"go.mod", "cmd/init", "internal/isolate/setup", "internal/isolate/spawn", "internal/guest"}})
}

// Prober answers the bytes of internal/isolate/prober, in the same way.
func Prober(ctx context.Context) ([]byte, error) {
	return find(ctx, program{name: "prober", main: "internal/isolate/prober", sources: []string{"go.mod", "internal/isolate/prober"}})
}

// program is one that can be embedded or built. sources are the files and
// directories of the module that it is made of.
type program struct {
	name, main string
	sources    []string
}

func find(ctx context.Context, p program) ([]byte, error) {
	if content, err := embedded.ReadFile(p.name); err == nil {
		return content, nil
	}
	mu.Lock()
	defer mu.Unlock()
	return p.build(ctx)
}

var mu sync.Mutex

func (p program) build(ctx context.Context) ([]byte, error) {
	_, file, _, ok := runtime.Caller(0)
	module := filepath.Join(filepath.Dir(file), "../../../..")
	if !ok || !filepath.IsAbs(module) {
		return nil, fmt.Errorf("the %s is not embedded and this is no checkout: use a release, or run make build", p.name)
	}
	if _, err := os.Stat(filepath.Join(module, p.main, "main.go")); err != nil {
		return nil, fmt.Errorf("the %s is not embedded and its sources are not here: use a release, or run make build", p.name)
	}
	key, err := hashOf(module, p.sources)
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("no place to keep the built %s: %w", p.name, err)
	}
	name := filepath.Join(cache, "sandboxd", p.name+"-"+runtime.GOARCH+"-"+key)
	if content, err := os.ReadFile(name); err == nil {
		return content, nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	tmp := fmt.Sprintf("%s.%d", name, os.Getpid())
	defer os.Remove(tmp)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", tmp, "./"+p.main)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the %s: %w: %s", p.name, err, strings.TrimSpace(string(out)))
	}
	content, err := os.ReadFile(tmp)
	if err != nil {
		return nil, err
	}
	return content, os.Rename(tmp, name)
}

func hashOf(module string, sources []string) (string, error) {
	h := sha256.New()
	for _, dir := range sources {
		err := filepath.WalkDir(filepath.Join(module, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			fmt.Fprintln(h, path, runtime.Version())
			_, err = io.Copy(h, f)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}
