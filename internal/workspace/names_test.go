package workspace

import (
	"archive/zip"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
	wst "sandboxd/internal/workspace/workspacetest"
)

// deep makes directories with the longest names, one in the other, and a file in each.
func deep(t *testing.T, dir string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", beneath.NameMax)
	for range levels {
		f, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(f)
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	unix.Close(at)
}

// A sandbox can make paths of 50,000 bytes; nothing keeps as much for each of its files.
func TestPathsThatNobodyCanNameAreNotWalked(t *testing.T) {
	w, dir := newWorkspace(t)
	deep(t, dir, 50)
	found, err := w.Glob(t.Context(), "", sandboxd.GlobOptions{Pattern: "**"})
	if err != nil || !found.Incomplete || len(found.Entries) == 0 {
		t.Fatalf("%d entries, incomplete %t, %v", len(found.Entries), found.Incomplete, err)
	}
	short := func(what, path string) {
		if len(path) > beneath.PathMax+1+beneath.NameMax {
			t.Errorf("%s tells of a path of %d bytes", what, len(path))
		}
	}
	for _, info := range found.Entries {
		short("glob", info.Path)
	}
	var packed bytes.Buffer
	if err := w.ZipOut(t.Context(), "", &packed); err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(bytes.NewReader(packed.Bytes()), int64(packed.Len()))
	if err != nil || len(z.File) == 0 {
		t.Fatal(err)
	}
	for _, f := range z.File {
		short("zip", f.Name)
	}
	_, err = w.Watch(t.Context(), "")
	wst.WantClass(t, "a watch", err, sandboxd.ClassTooLarge)
}

func TestLongLinksAreBoundedTogether(t *testing.T) {
	w, dir := newWorkspace(t)
	const links = 6000
	target := strings.Repeat("x", 4000)
	for i := range links {
		if err := os.Symlink(target, filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	for what, get := range map[string]func(context.Context) (sandboxd.Listing, error){
		"list": func(ctx context.Context) (sandboxd.Listing, error) { return w.List(ctx, "", sandboxd.ListOptions{}) },
		"glob": func(ctx context.Context) (sandboxd.Listing, error) {
			return w.Glob(ctx, "", sandboxd.GlobOptions{Pattern: "*", MaxEntries: links})
		},
	} {
		l, err := get(t.Context())
		if err != nil || !l.Truncated || len(l.Entries) < links/2 || len(l.Entries)*len(target) > listBytes {
			t.Errorf("%s: %d entries, truncated %t, %v", what, len(l.Entries), l.Truncated, err)
		}
	}
}

func TestAZipHoldsABoundedDirectory(t *testing.T) {
	z := &zipOut{ctx: t.Context(), zw: zip.NewWriter(io.Discard), left: 2*zipEntry + 3}
	for i, want := range []sandboxd.Class{"", "", sandboxd.ClassTooLarge} {
		_, err := z.entry("f", &unix.Stat_t{}, 0)
		if (err != nil) != (want != "") || err != nil && sandboxd.ClassOf(err) != want {
			t.Errorf("entry %d: %v", i, err)
		}
	}
}
