package cli

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"sandboxd"
)

// send packs a local directory into directory `to` of the workspace. Links are
// sent as links; sockets, devices and pipes are left out.
func send(ctx context.Context, p Process, files sandboxd.Files, dir, to string) (err error) {
	m := measure(p, "copying "+shown(dir), -1)
	defer func() { m.end(err) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return localError(err)
	}
	defer root.Close()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(root, w)
		w.CloseWithError(err)
		packed <- err
	}()
	_, err = files.TarIn(ctx, to, m.reader(r), sandboxd.TarLimits{})
	r.CloseWithError(errors.New("the server stopped reading"))
	if perr := <-packed; perr != nil && err == nil {
		err = localError(perr)
	}
	return err
}

func pack(root *os.Root, w io.Writer) error {
	out := tar.NewWriter(w)
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		target := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if target, err = root.Readlink(name); err != nil {
				return err
			}
		case !info.Mode().IsRegular() && !info.IsDir():
			return nil
		}
		head, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		head.Name = name
		if info.IsDir() {
			head.Name += "/"
		}
		head.Uname, head.Gname, head.Uid, head.Gid = "", "", 0, 0
		if err := out.WriteHeader(head); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(out, f)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// destination is where a file of a sandbox is put: under root, never outside.
type destination struct {
	root *os.Root
	name string
	mode fs.FileMode // only its execute bits count

	meter *meter // of what is put there; nil for none
}

// fetch copies one regular file out, whole or not at all. changed is false when
// the same bytes were there already.
func fetch(ctx context.Context, files sandboxd.Files, from string, to destination) (changed bool, err error) {
	r, err := files.Open(ctx, from)
	if err != nil {
		return false, err
	}
	defer r.Close()
	return to.put(to.meter.reader(r))
}

func (to destination) put(r io.Reader) (changed bool, err error) {
	perm := fs.FileMode(0o644)
	if to.mode&0o111 != 0 {
		perm = 0o755
	}
	tmp := path.Join(path.Dir(to.name), ".sandboxd-"+sandboxd.NewID())
	f, err := to.root.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return false, localError(err)
	}
	defer func() { _ = to.root.Remove(tmp) }() // after the rename there is nothing to remove
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, sum), r); err != nil {
		return false, err
	}
	if to.holds(sum) {
		return false, nil
	}
	if err := f.Close(); err != nil {
		return false, localError(err)
	}
	if err := to.root.Rename(tmp, to.name); err != nil {
		return false, localError(err)
	}
	return true, nil
}

// holds says whether a regular file with this hash is there.
func (to destination) holds(sum hash.Hash) bool {
	info, err := to.root.Lstat(to.name)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := to.root.Open(to.name)
	if err != nil {
		return false
	}
	defer f.Close()
	present := sha256.New()
	if _, err := io.Copy(present, f); err != nil {
		return false
	}
	return string(present.Sum(nil)) == string(sum.Sum(nil))
}

// link makes a symbolic link if it stays under the root by its own text, and
// says whether it did. Nothing that is there is replaced but another link.
func (to destination) link(target string) (made bool, err error) {
	if target == "" || path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(to.name), target)) {
		return false, nil
	}
	info, err := to.root.Lstat(to.name)
	switch {
	case err == nil && info.Mode()&fs.ModeSymlink == 0:
		return false, nil
	case err == nil:
		if err := to.root.Remove(to.name); err != nil {
			return false, localError(err)
		}
	}
	if err := to.root.Symlink(target, to.name); err != nil {
		return false, localError(err)
	}
	return true, nil
}

// receive unpacks a directory of the workspace into a local one.
func receive(ctx context.Context, p Process, files sandboxd.Files, from, to string) (err error) {
	m := measure(p, "copying "+shown(from), -1)
	defer func() { m.end(err) }()
	if err := os.MkdirAll(to, 0o755); err != nil {
		return localError(err)
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return localError(err)
	}
	defer root.Close()
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := files.TarOut(ctx, from, w)
		w.CloseWithError(err)
		sent <- err
	}()
	err = unpack(p, root, m.reader(r))
	r.CloseWithError(errors.New("unpacking stopped"))
	if serr := <-sent; serr != nil && (err == nil || errors.Is(err, serr)) {
		return serr
	}
	return err
}

func unpack(p Process, root *os.Root, r io.Reader) error {
	in := tar.NewReader(r)
	for {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			// Past the end marker lies padding; the sender waits until it is read.
			_, err := io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return err
		}
		name := path.Clean(head.Name)
		if name == "." {
			continue
		}
		if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
			return sandboxd.Errorf(sandboxd.ClassForbidden, "the archive holds %s, which leaves the directory", shown(head.Name))
		}
		if err := unpackEntry(p, destination{root: root, name: name, mode: fs.FileMode(head.Mode)}, head, in); err != nil {
			return err
		}
	}
}

func unpackEntry(p Process, to destination, head *tar.Header, body io.Reader) error {
	if dir := path.Dir(to.name); dir != "." {
		if err := to.root.MkdirAll(dir, 0o755); err != nil {
			return localError(err)
		}
	}
	switch head.Typeflag {
	case tar.TypeDir:
		if err := to.root.MkdirAll(to.name, 0o755); err != nil {
			return localError(err)
		}
	case tar.TypeReg:
		_, err := to.put(body)
		return err
	case tar.TypeSymlink:
		made, err := to.link(head.Linkname)
		if err == nil && !made {
			complain(p.Stderr, "left out the link "+shown(to.name)+" -> "+shown(head.Linkname), "")
		}
		return err
	case tar.TypeLink:
		source, err := to.root.Open(path.Clean(head.Linkname))
		if err != nil {
			return localError(err)
		}
		defer source.Close()
		_, err = to.put(source)
		return err
	default:
		complain(p.Stderr, fmt.Sprintf("left out %s: neither file, directory nor link", shown(to.name)), "")
	}
	return nil
}
