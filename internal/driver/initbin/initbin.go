// Package initbin answers the small programs that run inside sandboxes: process 1
// of each, and the prober of the selftest. They are those embedded by a release
// build, otherwise built from this checkout. It puts the init where it is executed
// from and runs none of them.
package initbin

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
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
		sources: []string{"go.mod", "cmd/init", "internal/isolate/setup", "internal/isolate/spawn", "internal/guest", "internal/relay"}})
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
	module := filepath.Join(filepath.Dir(file), "../../..")
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

// Place is the directory that an init is executed from. Make it with In; it is
// safe for concurrent use.
type Place struct {
	dir    string
	suffix string
	mode   fs.FileMode

	mu   sync.Mutex
	path string // of the init, once it is there
}

// In names the directory; nothing is made before the first Install. The init there
// is not readable for others: so the kernel never lets a sandbox look into its
// process 1.
func In(dir string) *Place { return &Place{dir: dir, mode: 0o711} }

// ReadableIn is In for kernels that execute only what the user may read, as
// gVisor's. The init then keeps others out by its first call.
func ReadableIn(dir string) *Place { return &Place{dir: dir, suffix: "-readable", mode: 0o755} }

// Install puts the init there, under a name with its hash, and answers its path.
func (p *Place) Install(ctx context.Context) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.path != "" {
		if _, err := os.Lstat(p.path); err == nil {
			return p.path, nil
		}
	}
	program, err := Program(ctx)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(program)
	path := filepath.Join(p.dir, "init-"+hex.EncodeToString(sum[:8])+p.suffix)
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return "", err
	}
	if have, err := os.ReadFile(path); err != nil || sha256.Sum256(have) != sum {
		f, err := os.CreateTemp(p.dir, ".init-")
		if err != nil {
			return "", err
		}
		defer os.Remove(f.Name())
		_, werr := f.Write(program)
		if err := errors.Join(werr, f.Chmod(p.mode), f.Close(), os.Rename(f.Name(), path)); err != nil {
			return "", err
		}
	}
	p.path = path
	return path, nil
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
