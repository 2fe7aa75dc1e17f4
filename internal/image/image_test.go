package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/failpoint"
)

// entry is one of an archive, with its body.
type entry struct {
	tar.Header
	body string
}

func dir(name string, mode int64) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}, ""}
}

func file(name, body string, mode int64) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Uid: 1234, Gid: 1234}, body}
}

func files(below string, n int) (many []entry) {
	for i := range n {
		many = append(many, file(fmt.Sprint(below, i), "", 0o644))
	}
	return many
}

func link(name, to string) entry {
	return entry{tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink, Mode: 0o777}, ""}
}

func hard(name, to string) entry {
	return entry{tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeLink, Mode: 0o644}, ""}
}

func device(name string, kind byte) entry {
	return entry{tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
}

func pack(t testing.TB, entries ...entry) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.body))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func gzipped(t testing.TB, plain io.Reader) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.Copy(z, plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// sparse is an archive of one kilobyte that is a file of 1 TiB.
func sparse(t testing.TB) io.Reader { return sparseOf(t, 1<<40) }

func sparseOf(t testing.TB, size int64) io.Reader {
	t.Helper()
	b := pack(t, entry{tar.Header{Name: "holes", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatGNU}, ""}).Bytes()
	b[156] = tar.TypeGNUSparse
	whole := string(binary.BigEndian.AppendUint64([]byte("\x80\x00\x00\x00"), uint64(size))) // in the base-256 form
	copy(b[386:], whole+"00000000000\x00")                                                   // the last piece: offset, length
	copy(b[483:], whole)
	sum := 0
	copy(b[148:], "        ")
	for _, c := range b[:512] {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return bytes.NewReader(b)
}

// bring is an import as a host does it.
func bring(ctx context.Context, s *Store, req sandboxd.ImageImport, archive io.Reader) (sandboxd.Image, error) {
	most := req.Limits.MaxBytes
	if most == 0 {
		most = MaxBytes
	}
	plain, err := Plain(archive, most)
	if err != nil {
		return sandboxd.Image{}, err
	}
	return s.Import(ctx, req, plain)
}

// tree describes what is below a directory.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	seen := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			text = "-> " + target
		case info.Mode().IsRegular():
			body, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(body)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || int(st.Uid) != os.Geteuid() {
			t.Errorf("%s belongs to %d: %v", rel, st.Uid, err)
		}
		seen[rel] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

// Zeros take no disk, and what lies between them is where it was.
func TestHoles(t *testing.T) {
	block := strings.Repeat("\x00", blockSize)
	for name, archive := range map[string]struct {
		r    io.Reader
		want string // empty for zeros alone
		size int64
		most int64 // bytes of disk
	}{
		"holes": {sparseOf(t, 1<<30), "", 1 << 30, 64 << 10},
		"zeros": {pack(t, file("holes", strings.Repeat(block, 1000), 0o644)), strings.Repeat(block, 1000), 1000 * blockSize, 64 << 10},
		"data between zeros": {pack(t, file("holes", block+"a"+strings.Repeat(block, 200)+"b"+block+block, 0o644)),
			block + "a" + strings.Repeat(block, 200) + "b" + block + block, 203*blockSize + 2, 64 << 10},
		"data":  {pack(t, file("holes", strings.Repeat("x", 300_001), 0o644)), strings.Repeat("x", 300_001), 300_001, 400 << 10},
		"empty": {pack(t, file("holes", "", 0o644)), "", 0, 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := In(filepath.Join(t.TempDir(), "images"), "process")
			if _, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "x"}, archive.r); err != nil {
				t.Fatal(err)
			}
			root, release, err := s.Hold("x")
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			path := filepath.Join(root, "holes")
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil || st.Size != archive.size || st.Blocks*512 > archive.most {
				t.Errorf("size %d, %d bytes of disk, %v", st.Size, st.Blocks*512, err)
			}
			if archive.want == "" {
				return
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != archive.want {
				t.Errorf("%d bytes are not those of the archive: %v", len(got), err)
			}
		})
	}
}

// What becomes of each kind of entry.
func TestUnpack(t *testing.T) {
	capable := file("usr/bin/capable", "c", 0o755)
	capable.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}
	archive := pack(t,
		dir("./", 0o777), dir("./usr/", 0o777), file("./usr/bin/su", "s", 0o4755), file("usr/bin/group", "g", 0o2775), capable,
		link("bin", "usr/bin"), file("bin/sh", "sh", 0o755), // through a link of the archive
		link("abs", "/usr/lib"), dir("usr/lib", 0o500), file("abs/x", "x", 0o600), // through an absolute one
		hard("usr/bin/su2", "./usr/bin/su"), hard("usr/bin/su3", "/bin/su"), // an absolute name begins at the root
		link("etc", "/etc"), link("proc", "../../../proc"), // kept, looked up by whoever is inside
		file("missing/parents/f", "f", 0o666),
		file("twice", "first", 0o644), file("twice", "second", 0o640), link("twice2", "x"), file("twice2", "third", 0o644),
		link("dirlater", "usr"), dir("dirlater", 0o755), dir("usr/lib", 0o755),
		dir("dev", 0o755), device("dev/null", tar.TypeChar), device("dev/sda", tar.TypeBlock), device("pipe", tar.TypeFifo),
		file("/from/the/root", "r", 0o644), file("sticky", "", 0o1644),
	)
	size := int64(archive.Len())
	for _, kind := range []string{"plain", "gzipped"} {
		t.Run(kind, func(t *testing.T) {
			data := t.TempDir()
			s := In(filepath.Join(data, "images"), "process")
			source := io.Reader(bytes.NewReader(archive.Bytes()))
			if kind == "gzipped" {
				source = gzipped(t, source)
			}
			made, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "tools:latest"}, source)
			if err != nil {
				t.Fatal(err)
			}
			if made.Name != "tools" || made.Dropped != 3 || made.Bytes <= 0 || made.Bytes >= size || !strings.HasPrefix(made.ID, "sha256:") || !made.Imported {
				t.Errorf("made %+v", made)
			}
			root, release, err := s.Hold("tools")
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			want := map[string]string{
				"usr": "drwxr-xr-x", "usr/bin": "drwxr-xr-x", "usr/bin/su": "-rwxr-xr-x s", "usr/bin/group": "-rwxr-xr-x g", "usr/bin/capable": "-rwxr-xr-x c",
				"bin": "-> usr/bin", "usr/bin/sh": "-rwxr-xr-x sh", "abs": "-> /usr/lib", "usr/lib": "drwxr-xr-x", "usr/lib/x": "-rw------- x",
				"usr/bin/su2": "-rwxr-xr-x s", "usr/bin/su3": "-rwxr-xr-x s", "etc": "-> /etc", "proc": "-> ../../../proc",
				"missing": "drwxr-xr-x", "missing/parents": "drwxr-xr-x", "missing/parents/f": "-rw-r--r-- f",
				"twice": "-rw-r----- second", "twice2": "-rw-r--r-- third", "dirlater": "drwxr-xr-x", "dev": "drwxr-xr-x",
				"from": "drwxr-xr-x", "from/the": "drwxr-xr-x", "from/the/root": "-rw-r--r-- r", "sticky": "-rw-r--r-- ",
			}
			got := tree(t, root)
			for name, text := range want {
				if got[name] != text {
					t.Errorf("%s: %q, want %q", name, got[name], text)
				}
				delete(got, name)
			}
			for name, text := range got {
				t.Errorf("not expected: %s %s", name, text)
			}
			if n, err := unix.Getxattr(filepath.Join(root, "usr/bin/capable"), "security.capability", nil); err == nil {
				t.Errorf("a program kept its capabilities: %d bytes", n)
			}
			info, err := os.Stat(filepath.Join(data, "images"))
			if err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("others may enter: %v, %v", info.Mode(), err)
			}
		})
	}
}

// What is refused says why, is never seen, leaves nothing, and reached nothing outside.
func TestRefused(t *testing.T) {
	outside := t.TempDir()
	canary := filepath.Join(outside, "canary")
	if err := os.WriteFile(canary, []byte("alive"), 0o644); err != nil {
		t.Fatal(err)
	}
	good := pack(t, file("bin/sh", strings.Repeat("x", 10_000), 0o755)).Bytes()
	bomb := pack(t, file("zeros", strings.Repeat("\x00", 8<<20), 0o644))
	many := []entry{}
	for i := range 50 {
		many = append(many, file(fmt.Sprint("f", i), "", 0o644))
	}
	for _, test := range []struct {
		name    string
		archive io.Reader
		limits  sandboxd.TarLimits
		says    string
	}{
		{"a name with ..", pack(t, file("a/../../../"+canary, "dead", 0o644)), sandboxd.TarLimits{}, "leaves the image by '..'"},
		{"a hard link outwards", pack(t, file("a", "a", 0o644), hard("b", "../../"+canary)), sandboxd.TarLimits{}, "leaves the image by '..'"},
		{"a hard link by the machine's path", pack(t, file("a", "a", 0o644), hard("b", canary)), sandboxd.TarLimits{}, "not in the archive before it"},
		{"a hard link through a link", pack(t, link("out", outside), hard("b", "out/canary")), sandboxd.TarLimits{}, "not in the archive before it"},
		{"a hard link to a directory", pack(t, dir("d", 0o755), hard("b", "d")), sandboxd.TarLimits{}, "only a file"},
		{"a file through a link outwards", pack(t, link("out", outside), file("out/canary", "dead", 0o644)), sandboxd.TarLimits{}, "entry out/canary"},
		{"a file through a climbing link", pack(t, link("out", strings.Repeat("../", 20)+outside), file("out/canary", "dead", 0o644)), sandboxd.TarLimits{}, "entry out/canary"},
		{"a file through itself", pack(t, link("loop", "loop"), file("loop/f", "dead", 0o644)), sandboxd.TarLimits{}, "entry loop/f"},
		{"a file for a directory", pack(t, dir("d", 0o755), file("d/x", "x", 0o644), file("d", "x", 0o644)), sandboxd.TarLimits{}, "a directory of the archive has this name"},
		{"many names at the top", pack(t, files("", MaxNames+1)...), sandboxd.TarLimits{}, "its directory / has more than 900 names"},
		{"many names in etc", pack(t, append(files("names/", MaxNames+1), link("etc", "/names"))...), sandboxd.TarLimits{}, "its directory /etc has more than 900 names"},
		{"a file for the root", pack(t, file(".", "x", 0o644)), sandboxd.TarLimits{}, "the root is a directory"},
		{"too deep", pack(t, file(strings.Repeat("d/", 300)+"f", "x", 0o644)), sandboxd.TarLimits{}, "deeper than"},
		{"too deep by a link", pack(t, dir(strings.Repeat("d/", 190), 0o755), link("l", strings.Repeat("d/", 190)), file("l/"+strings.Repeat("e/", 100)+"f", "x", 0o644)), sandboxd.TarLimits{}, "deeper than"},
		{"too many entries", pack(t, many...), sandboxd.TarLimits{MaxEntries: 20}, "more than 20 entries"},
		{"too many bytes", bytes.NewReader(bomb.Bytes()), sandboxd.TarLimits{MaxBytes: 1 << 20}, "more than 1048576 bytes"},
		{"a bomb", gzipped(t, bytes.NewReader(bomb.Bytes())), sandboxd.TarLimits{MaxBytes: 1 << 20}, "more than 1048576 bytes"},
		{"a bomb of nothing after the end", gzipped(t, io.MultiReader(bytes.NewReader(good), bytes.NewReader(make([]byte, 8<<20)))), sandboxd.TarLimits{MaxBytes: 1 << 20}, "more than 1048576 bytes"},
		{"cut short", bytes.NewReader(good[:5000]), sandboxd.TarLimits{}, "damaged or cut short"},
		{"cut short in gzip", bytes.NewReader(gzipped(t, bytes.NewReader(bomb.Bytes())).Bytes()[:2000]), sandboxd.TarLimits{}, "damaged or cut short"},
		{"no tar", strings.NewReader(strings.Repeat("hello ", 1000)), sandboxd.TarLimits{}, "neither a tar nor a gzipped one"},
		{"another compression", bytes.NewReader(append([]byte{0x28, 0xb5, 0x2f, 0xfd}, make([]byte, 1000)...)), sandboxd.TarLimits{}, "neither a tar nor a gzipped one"},
		{"nothing", strings.NewReader(""), sandboxd.TarLimits{}, "there is nothing in it"},
		{"no entry", pack(t), sandboxd.TarLimits{}, "nothing in it that could run"},
		{"devices only", pack(t, dir("dev", 0o755), device("dev/null", tar.TypeChar)), sandboxd.TarLimits{}, "nothing in it that could run"},
		{"what docker save writes", pack(t, dir(strings.Repeat("0a", 32)+"/", 0o755), file("manifest.json", "[]", 0o644)), sandboxd.TarLimits{}, "docker save"},
		{"what OCI tools write", pack(t, dir("blobs/", 0o755), dir("blobs/sha256/", 0o755)), sandboxd.TarLimits{}, "layers of an image"},
		{"a link without a target", pack(t, entry{tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Mode: 0o777}, ""}), sandboxd.TarLimits{}, "its target is not a path"},
		{"an entry of an unknown kind", pack(t, entry{tar.Header{Name: "v", Typeflag: 'V', Mode: 0o644}, ""}), sandboxd.TarLimits{}, "kind that is not known"},
		{"a file of holes", sparse(t), sandboxd.TarLimits{}, "has more than 17179869184 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := In(filepath.Join(t.TempDir(), "images"), "process")
			_, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "bad", Limits: test.limits}, test.archive)
			if sandboxd.ClassOf(err) != sandboxd.ClassInvalid || !strings.Contains(fmt.Sprint(err), test.says) {
				t.Errorf("class %s: %v", sandboxd.ClassOf(err), err)
			}
			if entries, _ := os.ReadDir(s.dir); len(entries) > 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
	if body, err := os.ReadFile(canary); string(body) != "alive" {
		t.Errorf("the file outside: %q, %v", body, err)
	}
	if list, err := os.ReadDir(outside); len(list) != 1 {
		t.Errorf("outside there is %v, %v", list, err)
	}
}

func TestNames(t *testing.T) {
	s := In(filepath.Join(t.TempDir(), "images"), "process")
	for _, name := range []string{"", ".", "..", "../x", "a/b", "Upper", ".new-x", "_x", "-x", "a:", "a:b:c", "a:b:latest", "a:../b", strings.Repeat("a", 65), "a\x00b"} {
		_, err := bring(t.Context(), s, sandboxd.ImageImport{Name: name}, pack(t, file("f", "x", 0o644)))
		if sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
			t.Errorf("import as %q: %v", name, err)
		}
		if _, err := s.Get(name); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
			t.Errorf("get %q: %v", name, err)
		}
		if err := s.Remove(name); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
			t.Errorf("remove %q: %v", name, err)
		}
	}
	for _, name := range []string{"tools", "tools:1", "a.b_c-d:V1.2-x"} {
		if _, err := bring(t.Context(), s, sandboxd.ImageImport{Name: name}, pack(t, file("f", "x", 0o644))); err != nil {
			t.Errorf("import as %q: %v", name, err)
		}
	}
	list, err := s.List()
	var names []string
	for _, img := range list {
		names = append(names, img.Name)
	}
	if err != nil || !slices.Equal(names, []string{"a.b_c-d:V1.2-x", "tools", "tools:1"}) {
		t.Errorf("list %q, %v", names, err)
	}
	if _, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "tools:latest"}, pack(t, file("f", "x", 0o644))); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Errorf("import over another: %v", err)
	}
}

// An import that goes on is not seen, nor swept away; one that is given up leaves
// nothing, and what a dead process left is swept.
func TestHalfMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	s := In(dir, "process")
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() {
		_, err := bring(ctx, s, sandboxd.ImageImport{Name: "half"}, r)
		over <- err
	}()
	whole := pack(t, file("first", "1", 0o644), file("second", strings.Repeat("2", 100_000), 0o644)).Bytes()
	if _, err := w.Write(whole[:80_000]); err != nil { // more than the reader looks ahead
		t.Fatal(err)
	}
	other := In(dir, "process") // as a second process
	other.Sweep()
	if list, err := other.List(); len(list) != 0 || err != nil || other.Any() {
		t.Errorf("half an image is seen: %v, %v", list, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || !strings.HasPrefix(entries[0].Name(), newPrefix) {
		t.Fatalf("while it goes on there is %v, %v", entries, err)
	}
	cancel()
	w.CloseWithError(context.Canceled)
	if err := <-over; sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Errorf("given up: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
	for _, name := range []string{newPrefix + "dead", oldPrefix + "dead"} {
		if err := os.MkdirAll(filepath.Join(dir, name, rootDir, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	other.Sweep()
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("not swept: %v", entries)
	}
}

// Two imports of one name: one wins and the other says so.
func TestAtOnce(t *testing.T) {
	s := In(filepath.Join(t.TempDir(), "images"), "process")
	errs := make(chan error)
	for i := range 8 {
		go func() {
			_, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "same"}, pack(t, file("f", fmt.Sprint(i), 0o644)))
			errs <- err
		}()
	}
	won := 0
	for range 8 {
		err := <-errs
		if err == nil {
			won++
		} else if sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			t.Error(err)
		}
	}
	if entries, _ := os.ReadDir(s.dir); won != 1 || len(entries) != 1 {
		t.Errorf("%d won, there is %v", won, entries)
	}
}

func TestHeldImagesStay(t *testing.T) {
	s := In(filepath.Join(t.TempDir(), "images"), "process")
	if _, _, err := s.Hold("tools"); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Errorf("hold one that is not there: %v", err)
	}
	if _, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "tools"}, pack(t, file("f", "x", 0o644))); err != nil {
		t.Fatal(err)
	}
	_, first, err := s.Hold("tools:latest")
	if err != nil {
		t.Fatal(err)
	}
	second := s.Keep("tools")
	for _, release := range []func(){first, second} {
		if err := s.Remove("tools"); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			t.Errorf("remove one that is held: %v", err)
		}
		release()
	}
	if err := s.Remove("tools"); err != nil {
		t.Error(err)
	}
	if err := s.Remove("tools"); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Errorf("remove it again: %v", err)
	}
	if entries, _ := os.ReadDir(s.dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// While the files of a removed image go, which takes long for many, environments in
// other images start and end.
func TestRemovalHoldsUpNobody(t *testing.T) {
	s := In(filepath.Join(t.TempDir(), "images"), "process")
	if _, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "tools"}, pack(t, file("f", "x", 0o644))); err != nil {
		t.Fatal(err)
	}
	defer failpoint.Arm(func(name string) {
		if name != "image.removed" {
			return
		}
		held := make(chan struct{})
		go func() {
			s.Keep("other")()
			close(held)
		}()
		select {
		case <-held:
		case <-time.After(5 * time.Second):
			t.Error("another image cannot be held meanwhile")
		}
	})()
	if err := s.Remove("tools"); err != nil {
		t.Error(err)
	}
}

// FuzzUnpack: whatever an archive is, nothing outside changes, and it is an image or
// an error with a class.
func FuzzUnpack(f *testing.F) {
	for _, entries := range [][]entry{
		{file("a", "x", 0o644), hard("b", "a"), link("c", "/etc")},
		{link("out", "../.."), file("out/x", "x", 0o644)},
		{dir("d", 0o755), link("d/l", ".."), file("d/l/f", "x", 0o4755), device("dev", tar.TypeChar)},
	} {
		f.Add(pack(f, entries...).Bytes())
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		data := t.TempDir()
		if err := os.WriteFile(filepath.Join(data, "canary"), []byte("alive"), 0o644); err != nil {
			t.Fatal(err)
		}
		s := In(filepath.Join(data, "images"), "process")
		_, err := bring(t.Context(), s, sandboxd.ImageImport{Name: "x", Limits: sandboxd.TarLimits{MaxEntries: 100, MaxBytes: 1 << 20}}, bytes.NewReader(archive))
		if err != nil && sandboxd.ClassOf(err) == sandboxd.ClassInternal {
			t.Error(err)
		}
		body, rerr := os.ReadFile(filepath.Join(data, "canary"))
		entries, _ := os.ReadDir(data)
		if rerr != nil || string(body) != "alive" || len(entries) > 2 {
			t.Errorf("outside: %q, %v, %v", body, rerr, entries)
		}
		if left, _ := os.ReadDir(s.dir); err != nil && len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}
