// Package workspacetest is the contract suite of sandboxd.Files. Every
// implementation runs it; it knows none of them.
package workspacetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"sandboxd"
)

// Harness is one empty workspace under test. Plant makes, as the sandbox would,
// a symbolic link, and may be nil where that is impossible.
type Harness struct {
	Files sandboxd.Files
	Plant func(t testing.TB, target, name string)
}

// Run runs the suite; open answers a new empty workspace each time.
func Run(t *testing.T, open func(t testing.TB) Harness) {
	for name, fn := range map[string]func(*testing.T, Harness){
		"sizes": testSizes, "names": testNames, "paths": testPaths, "conditions": testConditions,
		"race": testRace, "whole versions": testWhole, "append": testAppend, "modes": testModes,
		"list": testList, "rename": testRename, "remove": testRemove, "links": testLinks,
		"tar": testTar, "hostile tar": testHostileTar, "usage": testUsage, "size check": testSizeCheck,
		"cancelled": testCancelled, "glob": testGlob, "grep": testGrep, "grep bounds": testGrepBounds, "searches and links": testSearchLinks,
		"zip": testZip, "edit": testEdit, "batches": testBatches, "upload": testUpload, "watch": testWatch, "watch ends": testWatchEnds,
	} {
		t.Run(name, func(t *testing.T) { fn(t, open(t)) })
	}
}

// Put writes bytes of unannounced size and fails the test when it cannot.
func Put(t testing.TB, f sandboxd.Files, path, body string) sandboxd.FileInfo {
	t.Helper()
	info, err := f.Write(context.Background(), path, strings.NewReader(body), sandboxd.WriteOptions{Size: -1})
	if err != nil {
		t.Fatalf("write %.60q: %v", path, err)
	}
	return info
}

// Get reads a whole file and fails the test when it cannot.
func Get(t testing.TB, f sandboxd.Files, path string) string {
	t.Helper()
	r, err := f.Open(context.Background(), path)
	if err != nil {
		t.Fatalf("open %.60q: %v", path, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %.60q: %v", path, err)
	}
	return string(b)
}

// WantClass fails the test unless err has the class.
func WantClass(t testing.TB, what string, err error, want sandboxd.Class) {
	t.Helper()
	if err == nil || sandboxd.ClassOf(err) != want {
		t.Errorf("%s: %v; want class %s", what, err, want)
	}
}

// pattern is a stream of n bytes in which every value occurs and no block repeats.
func pattern(n int64) io.Reader { return io.LimitReader(&patternReader{}, n) }

type patternReader struct{ at uint64 }

func (p *patternReader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(p.at) ^ byte(p.at>>8) ^ byte(p.at>>16)*31
		p.at++
	}
	return len(b), nil
}

func testSizes(t *testing.T, h Harness) {
	sizes := []int64{0, 1, 256, 17999, 18432, 96 << 10, 1 << 20, 32<<20 + 1}
	if !testing.Short() {
		sizes = append(sizes, 2<<30+1)
	}
	for _, n := range sizes {
		want, got := sha256.New(), sha256.New()
		path := fmt.Sprintf("dir/%d", n)
		info, err := h.Files.Write(t.Context(), path, io.TeeReader(pattern(n), want), sandboxd.WriteOptions{Size: n})
		if err != nil || info.Size != n || info.Type != sandboxd.TypeFile || info.Path != path {
			t.Fatalf("write of %d bytes: %+v, %v", n, info, err)
		}
		r, err := h.Files.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		m, err := io.Copy(got, r)
		if err != nil || m != n || !bytes.Equal(want.Sum(nil), got.Sum(nil)) {
			t.Errorf("%d bytes came back as %d, %v", n, m, err)
		}
		if r.Info().ETag != info.ETag {
			t.Errorf("ETag of the write %s, of the read %s", info.ETag, r.Info().ETag)
		}
		if at, err := r.Seek(n/2, io.SeekStart); err != nil || at != n/2 {
			t.Errorf("seek: %d, %v", at, err)
		}
		_ = r.Close()
		if err := h.Files.Remove(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
}

func testNames(t *testing.T, h Harness) {
	names := []string{"-rf", "a\nb", "\xff\xfe\x80", "n\u00e4", "na\u0308", "%2e%2e", strings.Repeat("x", 255),
		" ", "*", "\\", "\x01\x7f", "'\"", "...", "emoji \U0001f600"}
	for i, name := range names {
		for _, path := range []string{name, name + ".d/" + name} {
			if len(name) == 255 {
				path = name
			}
			body := fmt.Sprint(i, path)
			Put(t, h.Files, path, body)
			if got := Get(t, h.Files, path); got != body {
				t.Errorf("%q holds %q", path, got)
			}
			if info, err := h.Files.Stat(t.Context(), path); err != nil || info.Path != path {
				t.Errorf("stat %q: %q, %v", path, info.Path, err)
			}
		}
	}
	l, err := h.Files.List(t.Context(), "", sandboxd.ListOptions{})
	if err != nil || len(l.Entries) != 2*len(names)-1 {
		t.Errorf("listed %d entries of %d: %v", len(l.Entries), 2*len(names)-1, err)
	}
	_, err = h.Files.Write(t.Context(), strings.Repeat("x", 256), strings.NewReader(""), sandboxd.WriteOptions{Size: -1})
	WantClass(t, "name of 256 bytes", err, sandboxd.ClassInvalid)
}

func testPaths(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "/workspace/a/b", "x")
	if Get(t, f, "./a//b") != "x" || Get(t, f, "a/c/../b") != "x" {
		t.Error("spellings of one path differ")
	}
	for _, path := range []string{"..", "../x", "/etc/passwd", "/", "/workspace/../x", "a/../../x", "nul\x00", "/workspacex"} {
		_, err := f.Open(ctx, path)
		WantClass(t, "open "+path, err, sandboxd.ClassInvalid)
		_, err = f.Write(ctx, path, strings.NewReader("x"), sandboxd.WriteOptions{Size: -1})
		WantClass(t, "write "+path, err, sandboxd.ClassInvalid)
		_, err = f.Stat(ctx, path)
		WantClass(t, "stat "+path, err, sandboxd.ClassInvalid)
		_, err = f.List(ctx, path, sandboxd.ListOptions{})
		WantClass(t, "list "+path, err, sandboxd.ClassInvalid)
		WantClass(t, "mkdir "+path, f.Mkdir(ctx, path), sandboxd.ClassInvalid)
		WantClass(t, "remove "+path, f.Remove(ctx, path), sandboxd.ClassInvalid)
		WantClass(t, "rename from "+path, f.Rename(ctx, path, "z"), sandboxd.ClassInvalid)
		WantClass(t, "rename to "+path, f.Rename(ctx, "a/b", path), sandboxd.ClassInvalid)
		WantClass(t, "tar out "+path, f.TarOut(ctx, path, io.Discard), sandboxd.ClassInvalid)
		_, err = f.TarIn(ctx, path, strings.NewReader(""), sandboxd.TarLimits{})
		WantClass(t, "tar in "+path, err, sandboxd.ClassInvalid)
		_, err = f.Walk(ctx, path, func(sandboxd.FileInfo) error { return nil })
		WantClass(t, "walk "+path, err, sandboxd.ClassInvalid)
		_, err = f.Glob(ctx, path, sandboxd.GlobOptions{Pattern: "*"})
		WantClass(t, "glob "+path, err, sandboxd.ClassInvalid)
		_, err = f.Grep(ctx, path, sandboxd.GrepOptions{Pattern: "x"})
		WantClass(t, "grep "+path, err, sandboxd.ClassInvalid)
	}
	_, err := f.Open(ctx, "missing")
	WantClass(t, "open missing", err, sandboxd.ClassNotFound)
	_, err = f.Stat(ctx, "missing/x")
	WantClass(t, "stat missing", err, sandboxd.ClassNotFound)
	_, err = f.Open(ctx, "a/b/c")
	WantClass(t, "open below a file", err, sandboxd.ClassNotFound)
	_, err = f.Open(ctx, "a")
	WantClass(t, "open a directory", err, sandboxd.ClassInvalid)
	_, err = f.Write(ctx, "a", strings.NewReader("x"), sandboxd.WriteOptions{Size: -1})
	WantClass(t, "write over a directory", err, sandboxd.ClassConflict)
	_, err = f.Write(ctx, "", strings.NewReader("x"), sandboxd.WriteOptions{Size: -1})
	WantClass(t, "write over the workspace", err, sandboxd.ClassConflict)
	_, err = f.Write(ctx, "a/b/c", strings.NewReader("x"), sandboxd.WriteOptions{Size: -1})
	WantClass(t, "write below a file", err, sandboxd.ClassConflict)
	WantClass(t, "mkdir over a file", f.Mkdir(ctx, "a/b"), sandboxd.ClassConflict)
	WantClass(t, "remove the workspace", f.Remove(ctx, "."), sandboxd.ClassInvalid)
	if err := f.Mkdir(ctx, "a"); err != nil {
		t.Errorf("mkdir of what exists: %v", err)
	}
	if info, err := f.Stat(ctx, ""); err != nil || info.Type != sandboxd.TypeDir || info.Path != "" {
		t.Errorf("stat of the workspace: %+v, %v", info, err)
	}
}

func testConditions(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	write := func(opts sandboxd.WriteOptions) (sandboxd.FileInfo, error) {
		opts.Size = -1
		return f.Write(ctx, "f", strings.NewReader("new"), opts)
	}
	_, err := write(sandboxd.WriteOptions{IfMatch: `"x"`})
	WantClass(t, "match of nothing", err, sandboxd.ClassPrecondition)
	one, err := write(sandboxd.WriteOptions{IfNoneMatch: true, Synced: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = write(sandboxd.WriteOptions{IfNoneMatch: true})
	WantClass(t, "none-match of something", err, sandboxd.ClassPrecondition)
	two, err := write(sandboxd.WriteOptions{IfMatch: one.ETag})
	if err != nil {
		t.Fatal(err)
	}
	if one.ETag == two.ETag || !strings.HasPrefix(two.ETag, `"`) || !strings.HasSuffix(two.ETag, `"`) {
		t.Errorf("ETags %s, %s", one.ETag, two.ETag)
	}
	_, err = write(sandboxd.WriteOptions{IfMatch: one.ETag})
	WantClass(t, "match of an old version", err, sandboxd.ClassPrecondition)
	if info, err := f.Stat(ctx, "f"); err != nil || info.ETag != two.ETag {
		t.Errorf("stat %+v, %v; want ETag %s", info, err, two.ETag)
	}
}

func testRace(t *testing.T, h Harness) {
	base := Put(t, h.Files, "match", "base")
	for _, opts := range []sandboxd.WriteOptions{{IfMatch: base.ETag, Size: -1}, {IfNoneMatch: true, Size: -1}} {
		path := "match"
		if opts.IfNoneMatch {
			path = "none"
		}
		var wg sync.WaitGroup
		errs := make([]error, 20)
		for i := range errs {
			wg.Go(func() { _, errs[i] = h.Files.Write(t.Context(), path, strings.NewReader(fmt.Sprint(i)), opts) })
		}
		wg.Wait()
		winner := ""
		for i, err := range errs {
			if err == nil {
				winner += fmt.Sprint(i) + ","
			} else {
				WantClass(t, "loser", err, sandboxd.ClassPrecondition)
			}
		}
		if winner != Get(t, h.Files, path)+"," {
			t.Errorf("winners %s, the file holds %s", winner, Get(t, h.Files, path))
		}
	}
}

func testWhole(t *testing.T, h Harness) {
	version := func(i int) string { return strings.Repeat(string(rune('a'+i)), 300_000) }
	Put(t, h.Files, "f", version(0))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 20 {
				if _, err := h.Files.Write(t.Context(), "f", strings.NewReader(version(i)), sandboxd.WriteOptions{Size: -1}); err != nil {
					t.Errorf("write: %v", err)
				}
			}
		})
		wg.Go(func() {
			for range 20 {
				r, err := h.Files.Open(t.Context(), "f")
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				b, err := io.ReadAll(r)
				_ = r.Close()
				if err != nil || len(b) != 300_000 || strings.Trim(string(b), string(b[:1])) != "" {
					t.Errorf("a mixed or partial version of %d bytes: %v", len(b), err)
				}
			}
		})
	}
	wg.Wait()
	l, err := h.Files.List(t.Context(), "", sandboxd.ListOptions{})
	if err != nil || len(l.Entries) != 1 {
		t.Errorf("left behind: %+v, %v", l.Entries, err)
	}
}

func testAppend(t *testing.T, h Harness) {
	add := func(body string, size int64) error {
		_, err := h.Files.Write(t.Context(), "log", strings.NewReader(body), sandboxd.WriteOptions{Append: true, Size: size})
		return err
	}
	if err := add("one\n", -1); err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 700_000)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := add(big, int64(len(big))); err != nil {
				t.Errorf("append: %v", err)
			}
		})
	}
	wg.Wait()
	WantClass(t, "append of another size", add("abc", 4), sandboxd.ClassInvalid)
	if got := Get(t, h.Files, "log"); got != "one\n"+big+big+big+big {
		t.Errorf("appended to %d bytes", len(got))
	}
}

func testModes(t *testing.T, h Harness) {
	info, err := h.Files.Write(t.Context(), "d/x", strings.NewReader("#!"), sandboxd.WriteOptions{Executable: true, Size: 2})
	if err != nil || info.Mode != 0o755 {
		t.Fatalf("executable: %v, %v", info.Mode, err)
	}
	if info := Put(t, h.Files, "d/x", "again"); info.Mode != 0o755 {
		t.Errorf("a replaced file lost its mode: %v", info.Mode)
	}
	if info := Put(t, h.Files, "d/y", ""); info.Mode != 0o644 {
		t.Errorf("a new file has mode %v", info.Mode)
	}
	if info, err := h.Files.Stat(t.Context(), "d"); err != nil || info.Mode != 0o755 {
		t.Errorf("a new parent has mode %v, %v", info.Mode, err)
	}
}

func testSizeCheck(t *testing.T, h Harness) {
	Put(t, h.Files, "f", "old")
	for _, size := range []int64{0, 2, 4, 1 << 50} {
		_, err := h.Files.Write(t.Context(), "f", strings.NewReader("new"), sandboxd.WriteOptions{Size: size})
		want := sandboxd.ClassInvalid
		if size == 1<<50 {
			want = sandboxd.ClassNoSpace
		}
		WantClass(t, fmt.Sprint("size ", size), err, want)
	}
	if got := Get(t, h.Files, "f"); got != "old" {
		t.Errorf("it holds %q", got)
	}
}

func testCancelled(t *testing.T, h Harness) {
	ctx, cancel := context.WithCancel(t.Context())
	body := io.MultiReader(strings.NewReader("some"), readerFunc(func([]byte) (int, error) { cancel(); return 1, nil }))
	if _, err := h.Files.Write(ctx, "f", body, sandboxd.WriteOptions{Size: -1}); err == nil {
		t.Error("a cancelled write succeeded")
	}
	l, err := h.Files.List(t.Context(), "", sandboxd.ListOptions{})
	if err != nil || len(l.Entries) != 0 {
		t.Errorf("left behind: %+v, %v", l.Entries, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
