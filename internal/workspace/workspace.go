// Package workspace is the files of sandboxes on the host's disk: sandboxd.Files
// on a directory whose content a hostile sandbox changes at the same time, and
// the layout of the directory that holds all workspaces.
//
// It trusts nothing below a workspace: every path goes through package beneath,
// ownership is given by descriptor, and nothing is followed out. It is not a
// mechanism of isolation, starts nothing, and knows no sandbox but by key and
// uid.
package workspace

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

// tempPrefix begins the names of files that are being written and of trees that
// are being removed.
const tempPrefix = ".sandboxd-tmp-"

// Workspace is sandboxd.Files on a host directory. It holds no descriptor
// between calls, but for its watchers.
type Workspace struct {
	dir      string
	owner    uint32
	seize    bool // files of ours and of the sandbox have different owners
	dev      uint64
	ino      uint64
	uploads  uploads
	watchers atomic.Int32
}

var _ sandboxd.Files = (*Workspace)(nil)

// New serves the directory dir, which exists, and gives what it makes to owner.
// When the directory is later replaced by another, every method is ClassGone.
func New(dir string, owner uint32) (*Workspace, error) {
	w := &Workspace{dir: dir, owner: owner, seize: os.Geteuid() == 0 && owner != 0, uploads: uploads{now: time.Now}}
	root, err := beneath.OpenTrusted(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root), &st); err != nil {
		return nil, beneath.Error(err)
	}
	w.dev, w.ino = st.Dev, st.Ino
	return w, nil
}

// key is that of the sandbox whose files these are: its directory's name.
func (w *Workspace) key() string { return filepath.Base(filepath.Dir(w.dir)) }

// root opens the workspace for one call.
func (w *Workspace) root(ctx context.Context) (beneath.Dir, error) {
	if err := ctx.Err(); err != nil {
		return -1, err
	}
	root, err := beneath.OpenTrusted(w.dir)
	if beneath.NotFound(err) {
		return -1, sandboxd.Errorf(sandboxd.ClassGone, "the workspace was deleted")
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root), &st); err != nil || st.Dev != w.dev || st.Ino != w.ino {
		root.Close()
		return -1, sandboxd.Errorf(sandboxd.ClassGone, "the workspace was replaced")
	}
	return root, nil
}

// hidden says whether an entry is one of our own, on its way in or out. A
// sandbox cannot make one, because it cannot give a file to us.
func (w *Workspace) hidden(name string, uid uint32) bool {
	return strings.HasPrefix(name, tempPrefix) && (!w.seize || uid != w.owner)
}

// creatable cleans a path that is going to be made.
func creatable(path string) (string, error) {
	rel, err := beneath.Clean(path)
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(rel, tempPrefix) || strings.Contains(rel, "/"+tempPrefix) {
		return "", sandboxd.Invalid("path", "names that begin with %s are reserved", tempPrefix)
	}
	return rel, nil
}

// file is an open regular file.
type file struct {
	*os.File
	info sandboxd.FileInfo
}

func (f *file) Info() sandboxd.FileInfo { return f.info }

// Open implements sandboxd.Files.
func (w *Workspace) Open(ctx context.Context, path string) (sandboxd.FileReader, error) {
	rel, err := beneath.Clean(path)
	if err != nil {
		return nil, err
	}
	root, err := w.root(ctx)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, st, err := root.Open(rel, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd)
		return nil, beneath.Error(unix.EISDIR)
	}
	return &file{os.NewFile(uintptr(fd), rel), infoOf(rel, &st, "")}, nil
}

// Stat implements sandboxd.Files.
func (w *Workspace) Stat(ctx context.Context, path string) (sandboxd.FileInfo, error) {
	rel, err := beneath.Clean(path)
	if err != nil {
		return sandboxd.FileInfo{}, err
	}
	root, err := w.root(ctx)
	if err != nil {
		return sandboxd.FileInfo{}, err
	}
	defer root.Close()
	return stat(root, rel)
}

func stat(root beneath.Dir, rel string) (sandboxd.FileInfo, error) {
	fd, st, err := root.Open(rel, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return sandboxd.FileInfo{}, err
	}
	defer unix.Close(fd)
	target := ""
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if target, err = beneath.Readlink(fd, ""); err != nil {
			return sandboxd.FileInfo{}, beneath.Error(err)
		}
	}
	return infoOf(rel, &st, target), nil
}

func infoOf(path string, st *unix.Stat_t, target string) sandboxd.FileInfo {
	info := sandboxd.FileInfo{
		Path:    path,
		Type:    typeOf(st),
		Size:    st.Size,
		Mode:    fs.FileMode(st.Mode & 0o777),
		ModTime: time.Unix(st.Mtim.Unix()).UTC(),
		ETag:    etagOf(st),
		Target:  target,
	}
	if path == "." {
		info.Path = ""
	}
	return info
}

func typeOf(st *unix.Stat_t) sandboxd.FileType {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return sandboxd.TypeFile
	case unix.S_IFDIR:
		return sandboxd.TypeDir
	case unix.S_IFLNK:
		return sandboxd.TypeLink
	}
	return sandboxd.TypeOther
}

// etagOf changes with every write: the change time counts even edits that put
// the modification time back, the inode two writes within one tick.
func etagOf(st *unix.Stat_t) string {
	return fmt.Sprintf("\"%x-%x-%x-%x\"", st.Ctim.Nano(), st.Size, st.Ino, st.Mtim.Nano())
}
