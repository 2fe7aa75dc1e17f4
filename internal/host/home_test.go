package host

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/driver/fake"
)

// inHome are the names in the home of a key.
func (w *timed) inHome(key string) []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, "workspaces", key, "home"))
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// imageHas changes what the image has in its home.
func (w *timed) imageHas(entries ...tar.Header) {
	w.t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range entries {
		if err := tw.WriteHeader(&h); err != nil {
			w.t.Fatal(err)
		}
		if h.Size > 1<<20 {
			break // nobody will read what is in it
		}
		if _, err := tw.Write(make([]byte, h.Size)); err != nil {
			w.t.Fatal(err)
		}
	}
	w.world.Configure(func(c *fake.Config) { c.Homes = map[string][]byte{"": b.Bytes()} })
}

func regular(name string, size int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}
}

// What the image has becomes the home of a new sandbox once: not at another start, of
// another image, or after a restart of the host.
func TestAHomeBeginsWithTheImages(t *testing.T) {
	bubble(t, func(t *testing.T, w *timed) {
		w.imageHas(regular(".profile", 3), regular(".npmrc", 0), tar.Header{Typeflag: tar.TypeSymlink, Name: "shadow", Linkname: "/etc/shadow"})
		sb := w.opened(sandboxd.OpenRequest{Key: "k"})
		if got := w.inHome("k"); !slices.Equal(got, []string{".npmrc", ".profile", "shadow"}) {
			t.Fatalf("the home has %q", got)
		}
		home := filepath.Join(w.dir, "workspaces", "k", "home")
		for _, name := range []string{"", "/.profile", "/shadow"} {
			var st unix.Stat_t
			if err := unix.Lstat(home+name, &st); err != nil || st.Uid != testUIDs().First || st.Gid != st.Uid {
				t.Errorf("%s belongs to %d:%d, %v", name, st.Uid, st.Gid, err)
			}
		}
		if err := os.Remove(home + "/.profile"); err != nil {
			t.Fatal(err)
		}
		w.imageHas(regular(".profile", 3), regular("new", 1))
		w.down()
		w.up()
		for range 2 {
			if _, err := w.host.Stop(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
			if _, err := w.host.Start(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
			if got := w.inHome("k"); !slices.Equal(got, []string{".npmrc", "shadow"}) {
				t.Fatalf("the home has %q", got)
			}
		}
		w.opened(sandboxd.OpenRequest{Key: "other"})
		if got := w.inHome("other"); !slices.Equal(got, []string{".profile", "new"}) {
			t.Fatalf("another's home has %q", got)
		}
	})
}

// An image whose home does not fit is refused by name, and nothing of it stays.
func TestAHomeThatDoesNotFit(t *testing.T) {
	for name, entry := range map[string]tar.Header{
		"more than a home may hold": {Typeflag: tar.TypeReg, Name: "big", Mode: 0o644, Size: sandboxd.DefaultLimits().HomeBytes + 1},
		"a way out":                 {Typeflag: tar.TypeReg, Name: "../../../meta.json", Mode: 0o644},
		"a hard link out":           {Typeflag: tar.TypeLink, Name: "x", Linkname: "../meta.json"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *timed) {
				w.imageHas(regular("first", 10), entry)
				_, _, err := w.host.Open(t.Context(), sandboxd.OpenRequest{Key: "k"})
				var e *sandboxd.Error
				if !errors.As(err, &e) || e.Class != sandboxd.ClassInvalid || e.Field != "image" {
					t.Fatalf("%v", err)
				}
				synctest.Wait()
				for _, dir := range []string{"workspaces", "trash"} {
					if left, err := os.ReadDir(filepath.Join(w.dir, dir)); err != nil || len(left) > 0 {
						t.Errorf("in %s are %v, %v", dir, left, err)
					}
				}
			})
		})
	}
}
