package docker

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"sandboxd"
)

// What an image has at HomeDir only the engine can tell, of a container that was never
// started, which takes longer than a start from the pool. So it is asked once for each
// image, by its id, and the answer kept as a tar of our own in the data directory; that
// of an image with nothing there has no entry.

const (
	seedDir = "seeds"
	newSeed = "new-" // begins the names of those that are not whole
	// seedBytes bounds all seeds that are kept, but for the newest.
	seedBytes = 4 << 30
	// endOfTar is the size of a tar without an entry.
	endOfTar = 1024
)

// seed has the home of a new sandbox made, with what its image has there.
func (d *Driver) seed(ctx context.Context, img image, spec sandboxd.EnvironmentSpec) error {
	f, err := d.seedOf(ctx, img, cmp.Or(spec.Limits.HomeBytes, sandboxd.DefaultLimits().HomeBytes))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() <= endOfTar {
		return spec.Seed.SeedHome(ctx, nil)
	}
	return spec.Seed.SeedHome(ctx, f)
}

// seedOf opens the seed of an image, making it, of so many bytes at most, where it is not
// kept.
func (d *Driver) seedOf(ctx context.Context, img image, most int64) (*os.File, error) {
	sum := sha256.Sum256([]byte(img.id))
	path := filepath.Join(d.cfg.DataDir, seedDir, hex.EncodeToString(sum[:])+".tar")
	f, err := os.Open(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	select {
	case d.seeding <- struct{}{}:
		defer func() { <-d.seeding }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f, err = os.Open(path); !errors.Is(err, fs.ErrNotExist) {
		return f, err // somebody made it meanwhile
	}
	if err := d.makeSeed(ctx, img, path, most); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// makeSeed asks the engine and keeps the answer.
func (d *Driver) makeSeed(ctx context.Context, img image, path string, most int64) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := prune(dir); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, newSeed)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	// It has the name of a member of the pool: one that a dead server left is removed as
	// those are.
	name := d.own + sandboxd.NewID()
	opts := d.options(sandboxd.EnvironmentSpec{ID: name, UID: 1, Limits: sandboxd.DefaultLimits()}, img, "none")
	id, err := d.engine.create(ctx, opts)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		err = errors.Join(err, d.engine.remove(ctx, id))
	}()
	if err := d.engine.copyHome(ctx, id, &atMost{f, most, most}); err != nil {
		return err
	}
	return f.Sync() // half of one would be taken for a whole one
}

// prune removes what is not whole, and the oldest seeds beyond what may be kept.
func prune(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var kept []fs.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(e.Name(), newSeed):
			err = os.Remove(filepath.Join(dir, e.Name()))
		default:
			kept = append(kept, info)
		}
		if err != nil {
			return err
		}
	}
	slices.SortFunc(kept, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	left := int64(seedBytes)
	for _, info := range kept {
		if left -= max(info.Size(), 1<<20); left >= 0 { // a bound of their number, too
			continue
		}
		if err := os.Remove(filepath.Join(dir, info.Name())); err != nil {
			return err
		}
	}
	return nil
}

// copyHome writes what a container has at HomeDir, as a tar of ours. It may take long,
// but not be silent for longer than any call.
func (e *engine) copyHome(ctx context.Context, id string, to io.Writer) error {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(e.limit, cancel)
	defer silent.Stop()
	copied, err := e.api.CopyFromContainer(limited, id, client.CopyFromContainerOptions{SourcePath: sandboxd.HomeDir + "/."})
	if err == nil {
		defer copied.Content.Close()
		err = rewrite(&heard{copied.Content, func() { silent.Reset(e.limit) }}, to)
	}
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return e.silent(err)
	}
	err = e.explain(err)
	if isClass(err, sandboxd.ClassNotFound) {
		// The directory, or the container.
		if _, err := e.inspect(ctx, id); err != nil {
			return err
		}
		return tar.NewWriter(to).Close()
	}
	return err
}

// heard tells of every piece that came.
type heard struct {
	r    io.Reader
	told func()
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	if n > 0 {
		h.told()
	}
	return n, err
}

// rewrite copies the archive of a directory, which begins with the directory itself, with
// names relative to it and without all that nobody unpacks. What is no directory has
// nothing below it.
func rewrite(from io.Reader, to io.Writer) error {
	tr, tw := tar.NewReader(from), tar.NewWriter(to)
	top, err := tr.Next()
	if err != nil && err != io.EOF {
		return err
	}
	if err == io.EOF || top.Typeflag != tar.TypeDir {
		return tw.Close()
	}
	// As "sandbox/" or, where that is a link, "./".
	plain := func(name string) string { return strings.TrimPrefix(name, "./") }
	prefix := plain(top.Name)
	below := func(name string) (string, error) {
		if name, ok := strings.CutPrefix(plain(name), prefix); ok && name != "" {
			return name, nil
		}
		return "", sandboxd.Errorf(sandboxd.ClassUnavailable, "the container engine's archive of a directory names what is elsewhere")
	}
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		own := &tar.Header{Typeflag: h.Typeflag, Linkname: h.Linkname, Mode: h.Mode & 0o777, ModTime: h.ModTime}
		switch h.Typeflag {
		case tar.TypeDir, tar.TypeSymlink:
		case tar.TypeReg:
			own.Size = h.Size
		case tar.TypeLink:
			own.Linkname, err = below(h.Linkname)
		default:
			continue
		}
		if err == nil {
			own.Name, err = below(h.Name)
		}
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(own); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
}

// atMost fails when more is written.
type atMost struct {
	w          io.Writer
	left, most int64
}

func (a *atMost) Write(p []byte) (int, error) {
	if a.left -= int64(len(p)); a.left < 0 {
		return 0, &sandboxd.Error{Class: sandboxd.ClassInvalid, Field: "image", Hint: "raise limits.home_bytes, or name another image",
			Message: fmt.Sprintf("it has more than %d bytes in %s", a.most, sandboxd.HomeDir)}
	}
	return a.w.Write(p)
}
