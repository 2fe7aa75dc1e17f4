package image

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/workspace/beneath"
)

// What is below a directory of an image comes out as it went in, for another owner, and
// nothing beside it.
func TestBelow(t *testing.T) {
	captest.Root(t)
	s := In(filepath.Join(t.TempDir(), "images"), "process")
	home := []entry{dir("h", 0o700), dir("h/d", 0o755), dir("h/d/e", 0o750), file("h/d/run", "#!", 0o4777), hard("h/other", "h/d/run"),
		link("h/out", "/etc/shadow"), link("h/up", "../x"), file("h/secret", "s", 0o600), file("x", "not this", 0o644), hard("h/far", "x"),
		link("l", "/h"), link("nowhere", "/none"), dir("empty", 0o755)}
	if _, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "i"}, pack(t, home...)); err != nil {
		t.Fatal(err)
	}
	for _, nothing := range []string{"empty", "none", "nowhere", "x", "h/out", "h/up/.."} {
		if r, err := s.Below(t.Context(), "i", nothing); r != nil || err != nil && nothing != "h/up/.." {
			t.Errorf("below %s: %v, %v", nothing, r, err)
		}
	}
	for _, name := range []string{"h", "l"} {
		r, err := s.Below(t.Context(), "i:latest", name)
		if err != nil || r == nil {
			t.Fatal(r, err)
		}
		into := t.TempDir()
		top, err := beneath.OpenTrusted(into)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = Unpack(t.Context(), top, r, sandboxd.TarLimits{}, 234567)
		top.Close()
		if err = errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		var got []string
		err = filepath.WalkDir(into, func(path string, d fs.DirEntry, err error) error {
			var st unix.Stat_t
			if err = errors.Join(err, unix.Lstat(path, &st)); err != nil || path == into {
				return err
			}
			if st.Uid != 234567 || st.Gid != 234567 {
				t.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
			}
			target, _ := os.Readlink(path)
			body := []byte(nil)
			if d.Type().IsRegular() {
				body, err = os.ReadFile(path)
			}
			info, ierr := d.Info()
			got = append(got, strings.TrimSpace(strings.TrimPrefix(path, into+"/")+" "+info.Mode().String()+" "+target+string(body)))
			return errors.Join(err, ierr)
		})
		want := "d drwxr-xr-x\nd/e drwxr-x---\nd/run -rwxr-xr-x #!\nfar -rw-r--r-- not this\nother -rwxr-xr-x #!\nout Lrwxrwxrwx /etc/shadow\nsecret -rw------- s\nup Lrwxrwxrwx ../x"
		if err != nil || strings.Join(got, "\n") != want {
			t.Errorf("below %s:\n%s\n%v, want\n%s", name, strings.Join(got, "\n"), err, want)
		}
	}
}

// Who does not read to the end keeps nothing.
func TestBelowIsLeft(t *testing.T) {
	s := In(filepath.Join(t.TempDir(), "images"), "process")
	if _, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "i"}, pack(t, append(files("h/", 500), dir("h/d", 0o755))...)); err != nil {
		t.Fatal(err)
	}
	r, err := s.Below(t.Context(), "i", "h")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tar.NewReader(r).Next(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err == nil {
		t.Error("it is read on after it was closed")
	}
}
