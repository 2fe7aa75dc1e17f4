package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/failpoint"
	"sandboxd/internal/workspace/beneath"
)

// The layout: <dir>/<name>/{root,image.json}. What is being made or removed has a name
// that no image can have.
const (
	rootDir   = "root"
	aboutFile = "image.json"
	newPrefix = ".new-"
	oldPrefix = ".old-"
)

// The places between the durable steps of an import and of a removal.
var (
	fpUnpacked = failpoint.New("image.unpacked")
	fpRemoved  = failpoint.New("image.removed")
)

// Store is a directory of images. Make it with In; its methods are safe for concurrent
// use. The directory is made with the first image.
type Store struct {
	dir    string
	driver string

	// making is held until a new directory is locked: what is not is swept.
	making sync.Mutex
	mu     sync.Mutex
	held   map[string]int
}

// In is the store of a directory, whose images are a driver's.
func In(dir, driver string) *Store {
	return &Store{dir: dir, driver: driver, held: map[string]int{}}
}

// Canonical is the name under which an image is kept: the tag latest is none.
func Canonical(name string) string { return strings.TrimSuffix(name, ":latest") }

func (s *Store) path(name ...string) string {
	return filepath.Join(append([]string{s.dir}, name...)...)
}

func absent(name string) error {
	if !sandboxd.ValidImageName(name) {
		name = "of this name"
	}
	return &sandboxd.Error{Class: sandboxd.ClassNotFound, Field: "image", Message: "there is no image " + name + " here",
		Hint: "sandboxd image list says which there are; sandboxd image import makes one of a root file system"}
}

// Get describes an image. ClassNotFound with Field "image".
func (s *Store) Get(name string) (sandboxd.Image, error) {
	name = Canonical(name)
	if !sandboxd.ValidImageName(name) {
		return sandboxd.Image{}, absent(name)
	}
	text, err := os.ReadFile(s.path(name, aboutFile))
	if errors.Is(err, fs.ErrNotExist) {
		return sandboxd.Image{}, absent(name)
	}
	var about sandboxd.Image
	if err == nil {
		err = json.Unmarshal(text, &about)
	}
	if err != nil {
		return sandboxd.Image{}, sandboxd.Wrap(sandboxd.ClassInternal, err, "the image %s cannot be read", name)
	}
	about.Name, about.Driver = name, s.driver
	return about, nil
}

// List describes every image, by name. One that cannot be read is left out.
func (s *Store) List() ([]sandboxd.Image, error) {
	list := []sandboxd.Image{}
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return list, sandboxd.Wrap(sandboxd.ClassInternal, err, "the images cannot be listed")
	}
	for _, e := range entries {
		if about, err := s.Get(e.Name()); err == nil {
			list = append(list, about)
		}
	}
	return list, nil
}

// Hold answers the root of an image for an environment, which keeps it from being
// removed until release. release may be called once.
func (s *Store) Hold(name string) (root string, release func(), err error) {
	name = Canonical(name)
	release = s.Keep(name)
	if _, err = s.Get(name); err != nil {
		release()
		return "", nil, err
	}
	return s.path(name, rootDir), release, nil
}

// Keep is Hold for an environment that runs already.
func (s *Store) Keep(name string) (release func()) {
	name = Canonical(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[name]--; s.held[name] == 0 {
			delete(s.held, name)
		}
	}
}

// Remove removes an image that no environment holds.
func (s *Store) Remove(name string) error {
	name = Canonical(name)
	if _, err := s.Get(name); err != nil {
		return err
	}
	old, err := s.setAside(name)
	if err != nil {
		return err
	}
	fpRemoved.Hit()
	// Nobody waits for this but the caller: a tree may be large.
	if err := os.RemoveAll(old); err != nil {
		return sandboxd.Wrap(sandboxd.ClassInternal, err, "the image %s is not there any more, but not all of its files are removed", name)
	}
	return nil
}

// setAside takes the name from an image that no environment holds.
func (s *Store) setAside(name string) (old string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[name] > 0 {
		return "", sandboxd.Errorf(sandboxd.ClassConflict, "the image %s is in use: %d environments run in it", name, s.held[name]).
			WithHint("stop the sandboxes that run in it first")
	}
	old = s.path(oldPrefix + sandboxd.NewID())
	if err := os.Rename(s.path(name), old); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", absent(name)
		}
		return "", sandboxd.Wrap(sandboxd.ClassInternal, err, "the image %s cannot be removed", name)
	}
	return old, nil
}

// Import makes an image of a plain tar; see Plain. It is seen when it is whole.
func (s *Store) Import(ctx context.Context, req sandboxd.ImageImport, archive io.Reader) (sandboxd.Image, error) {
	var none sandboxd.Image
	name := Canonical(req.Name)
	if !sandboxd.ValidImageName(req.Name) {
		return none, sandboxd.Invalid("name", "must be up to 64 of a-z 0-9 . _ - and begin with a letter or digit, perhaps with a tag as in tools:1")
	}
	if _, err := s.Get(name); err == nil {
		return none, taken(name)
	}
	s.Sweep()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return none, sandboxd.Wrap(sandboxd.ClassInternal, err, "the images' directory cannot be made")
	}
	made, lock, err := s.begin()
	if err != nil {
		return none, sandboxd.Wrap(sandboxd.ClassInternal, err, "the image's directory cannot be made")
	}
	defer lock.Close()
	about, err := s.fill(ctx, made, req.Limits, archive)
	if err == nil {
		fpUnpacked.Hit()
		// On the disk before it is seen: half an image would be taken for a whole one.
		if err = beneath.Error(unix.Syncfs(int(lock.Fd()))); err == nil {
			err = unix.Renameat2(unix.AT_FDCWD, made, unix.AT_FDCWD, s.path(name), unix.RENAME_NOREPLACE)
		}
		if err == unix.EEXIST {
			err = taken(name)
		}
	}
	if err != nil {
		// Nobody waits for the removal with less than a whole tree to remove.
		return none, errors.Join(err, os.RemoveAll(made))
	}
	about.Name = name
	return about, nil
}

func taken(name string) error {
	return sandboxd.Errorf(sandboxd.ClassConflict, "there is an image %s already", name).
		WithHint("choose another name or tag, or remove it first: sandboxd image remove %s", name)
}

// begin makes a directory that is this process's while lock is open.
func (s *Store) begin() (path string, lock *os.File, err error) {
	s.making.Lock()
	defer s.making.Unlock()
	path = s.path(newPrefix + sandboxd.NewID())
	if err := os.Mkdir(path, 0o755); err != nil {
		return "", nil, err
	}
	if lock, err = os.Open(path); err != nil {
		return "", nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Mkdir(filepath.Join(path, rootDir), 0o755)
	}
	if err != nil {
		lock.Close()
	}
	return path, lock, err
}

func (s *Store) fill(ctx context.Context, path string, limits sandboxd.TarLimits, archive io.Reader) (sandboxd.Image, error) {
	root, err := beneath.OpenTrusted(filepath.Join(path, rootDir))
	if err != nil {
		return sandboxd.Image{}, err
	}
	defer root.Close()
	sum := sha256.New()
	got, dropped, err := Unpack(ctx, root, io.TeeReader(archive, sum), limits, uint32(os.Geteuid()))
	if err != nil {
		return sandboxd.Image{}, err
	}
	if got.Files+got.Links == 0 {
		return sandboxd.Image{}, sandboxd.Invalid("archive", "there is nothing in it that could run")
	}
	for _, dir := range []string{".", "etc"} {
		if many, err := manyNames(root, dir); err != nil {
			return sandboxd.Image{}, err
		} else if many {
			return sandboxd.Image{}, sandboxd.Invalid("archive", "its directory /%s has more than %d names", strings.TrimPrefix(dir, "."), MaxNames)
		}
	}
	about := sandboxd.Image{Driver: s.driver, ID: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Bytes: got.Bytes,
		CreatedAt: time.Now().UTC().Truncate(time.Second), Imported: true, Dropped: dropped}
	text, err := json.Marshal(about)
	if err != nil {
		return sandboxd.Image{}, err
	}
	return about, os.WriteFile(filepath.Join(path, aboutFile), text, 0o600)
}

// manyNames says whether a directory of a root has more than MaxNames. One that is not
// there, or is none, has no names.
func manyNames(root beneath.Dir, dir string) (bool, error) {
	fd, _, err := root.OpenInRoot(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return false, nil
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, err := f.Readdirnames(MaxNames + 1)
	if err == io.EOF {
		err = nil
	}
	return len(names) > MaxNames, err
}

// Sweep removes what imports and removals left that ended with their process.
func (s *Store) Sweep() {
	s.making.Lock()
	defer s.making.Unlock()
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		path := s.path(e.Name())
		switch {
		case strings.HasPrefix(e.Name(), oldPrefix):
			_ = os.RemoveAll(path)
		case strings.HasPrefix(e.Name(), newPrefix):
			lock, err := os.Open(path)
			if err != nil {
				continue
			}
			if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				_ = os.RemoveAll(path)
			}
			lock.Close()
		}
	}
}

// Any says whether there is an image.
func (s *Store) Any() bool {
	entries, _ := os.ReadDir(s.dir)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return sandboxd.ValidImageName(e.Name()) })
}
