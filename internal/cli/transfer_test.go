package cli

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd"
)

// TestUnpackStaysInside feeds archives that a hostile sandbox could answer.
func TestUnpackStaysInside(t *testing.T) {
	file := func(name, text string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(text)), Mode: 0o600, PAXRecords: map[string]string{"TEST.text": text}}
	}
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
	}
	for name, c := range map[string]struct {
		entries []tar.Header
		fails   bool
		there   string // a file that must be there
	}{
		"plain":                     {[]tar.Header{file("a/b.txt", "x")}, false, "a/b.txt"},
		"parent":                    {[]tar.Header{file("../escaped", "x")}, true, ""},
		"absolute":                  {[]tar.Header{file("/escaped", "x")}, true, ""},
		"through a link":            {[]tar.Header{link("out", ".."), file("out/escaped", "x")}, false, ""},
		"through an absolute link":  {[]tar.Header{link("out", "/"), file("out/escaped", "x")}, false, ""},
		"a link that stays":         {[]tar.Header{file("a/b.txt", "x"), link("l", "a/b.txt")}, false, "l"},
		"deep link that leaves":     {[]tar.Header{link("a/l", "../../escaped")}, false, ""},
		"hard link to the outside":  {[]tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside"}}, true, ""},
		"a device":                  {[]tar.Header{{Name: "d", Typeflag: tar.TypeChar}, file("after", "x")}, false, "after"},
		"link over link, then file": {[]tar.Header{link("l", "a"), link("l", "../.."), file("l", "x")}, false, "l"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "dir")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(parent, "outside"), []byte("canary"), 0o600); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			var archive, errs bytes.Buffer
			w := tar.NewWriter(&archive)
			for _, h := range c.entries {
				text := h.PAXRecords["TEST.text"]
				h.PAXRecords = nil
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			w.Close()
			err = unpack(Process{Stderr: &errs}, root, &archive)
			if (err != nil) != c.fails {
				t.Errorf("unpack: %v", err)
			}
			if c.there != "" {
				if _, err := os.Stat(filepath.Join(dir, c.there)); err != nil {
					t.Error(err)
				}
			}
			entries, err := os.ReadDir(parent)
			if err != nil || len(entries) != 2 {
				t.Errorf("beside the directory: %v, %v", entries, err)
			}
			if _, err := os.Lstat("/escaped"); err == nil {
				t.Error("/escaped is there")
			}
		})
	}
}

func TestPutSaysWhetherAnythingChanged(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	to := destination{root: root, name: "f", mode: 0o755}
	for i, c := range []struct {
		text    string
		changed bool
	}{{"one", true}, {"one", false}, {"two", true}} {
		changed, err := to.put(strings.NewReader(c.text))
		if err != nil || changed != c.changed {
			t.Errorf("step %d: %t, %v", i, changed, err)
		}
	}
	entries, _ := os.ReadDir(dir)
	info, err := os.Stat(filepath.Join(dir, "f"))
	if err != nil || info.Mode().Perm() != 0o755 || len(entries) != 1 {
		t.Errorf("mode %v, %d entries, %v; want 0755 and nothing left over", info.Mode(), len(entries), err)
	}
	_ = root.Mkdir("d", 0o755)
	if _, err := (destination{root: root, name: "d"}).put(strings.NewReader("x")); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
		t.Errorf("over a directory: %v", err)
	}
}
