package workspacetest

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
)

func testGlob(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	for _, p := range []string{"main.go", "src/a.go", "src/deep/er/b.go", "src/c.txt", ".git/x.go", "src/.hidden.go", "\xff.go", "new\nline.go"} {
		Put(t, f, p, p)
	}
	for _, c := range []struct {
		path string
		opts sandboxd.GlobOptions
		want string
	}{
		{"", sandboxd.GlobOptions{Pattern: "*.go"}, "main.go new\nline.go \xff.go"},
		{"", sandboxd.GlobOptions{Pattern: "**/*.go", SkipHidden: true}, "main.go new\nline.go src/a.go src/deep/er/b.go \xff.go"},
		{"", sandboxd.GlobOptions{Pattern: "src/**"}, "src/.hidden.go src/a.go src/c.txt src/deep src/deep/er src/deep/er/b.go"},
		{"src", sandboxd.GlobOptions{Pattern: "*.{go,txt}"}, "src/.hidden.go src/a.go src/c.txt"},
		{"/workspace/src", sandboxd.GlobOptions{Pattern: "deep/*/?.go"}, "src/deep/er/b.go"},
		{"", sandboxd.GlobOptions{Pattern: "none/*"}, ""},
	} {
		l, err := f.Glob(ctx, c.path, c.opts)
		if err != nil || paths(l.Entries) != c.want || l.Truncated || l.Incomplete || l.Entries == nil {
			t.Errorf("glob %q of %q: %q, %+v, %v; want %q", c.opts.Pattern, c.path, paths(l.Entries), l, err, c.want)
		}
	}
	l, err := f.Glob(ctx, "", sandboxd.GlobOptions{Pattern: "**", MaxEntries: 3})
	if err != nil || len(l.Entries) != 3 || !l.Truncated {
		t.Errorf("bounded: %s, %t, %v", paths(l.Entries), l.Truncated, err)
	}
	for _, pattern := range []string{"", "/a", "[a", "\xff"} {
		_, err := f.Glob(ctx, "", sandboxd.GlobOptions{Pattern: pattern})
		WantClass(t, "pattern "+pattern, err, sandboxd.ClassInvalid)
	}
	_, err = f.Glob(ctx, "none", sandboxd.GlobOptions{Pattern: "*"})
	WantClass(t, "of nothing", err, sandboxd.ClassNotFound)
	_, err = f.Glob(ctx, "main.go", sandboxd.GlobOptions{Pattern: "*"})
	WantClass(t, "of a file", err, sandboxd.ClassInvalid)
}

// shown is a result in short: path:line:column:text.
func shown(r sandboxd.GrepResult) string {
	var list []string
	for _, m := range r.Matches {
		list = append(list, fmt.Sprintf("%s:%d:%d:%s", m.Path, m.Line, m.Column, m.Text))
	}
	return strings.Join(list, "|")
}

func testGrep(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "a.txt", "one\ntwo needle\r\nthree\nfour Needle needle\nlast needle")
	Put(t, f, "b/c.go", "func needle() {}\n")
	Put(t, f, "b/latin", "caf\xe9 needle\n")
	Put(t, f, "b/blob", "needle\x00needle\n")
	Put(t, f, "b/late", strings.Repeat("needle......\n", 900)+"\x00")
	Put(t, f, ".git/x", "needle\n")
	Put(t, f, "empty", "")
	for _, c := range []struct {
		path string
		opts sandboxd.GrepOptions
		want string
	}{
		{"", sandboxd.GrepOptions{Pattern: "needle", SkipHidden: true}, "a.txt:2:5:two needle|a.txt:4:13:four Needle needle|a.txt:5:6:last needle|b/c.go:1:6:func needle() {}|b/latin:1:6:caf\uFFFD needle"},
		{"a.txt", sandboxd.GrepOptions{Pattern: "needle"}, "a.txt:2:5:two needle|a.txt:4:13:four Needle needle|a.txt:5:6:last needle"},
		{"", sandboxd.GrepOptions{Pattern: "NEEDLE$", IgnoreCase: true, Glob: "*.txt"}, "a.txt:2:5:two needle|a.txt:4:13:four Needle needle|a.txt:5:6:last needle"},
		{"", sandboxd.GrepOptions{Pattern: "needle()", Literal: true}, "b/c.go:1:6:func needle() {}"},
		{"", sandboxd.GrepOptions{Pattern: `^(one|t\w+e)$`}, "a.txt:1:1:one|a.txt:3:1:three"},
		{"", sandboxd.GrepOptions{Pattern: "needle", Glob: "b/*.go"}, "b/c.go:1:6:func needle() {}"},
		{"b", sandboxd.GrepOptions{Pattern: "needle", Glob: "*.go"}, "b/c.go:1:6:func needle() {}"},
		{"", sandboxd.GrepOptions{Pattern: "x{0}nothing"}, ""},
	} {
		r, err := f.Grep(ctx, c.path, c.opts)
		if err != nil || shown(r) != c.want || r.Truncated || r.Incomplete || r.Matches == nil {
			t.Errorf("grep %+v of %q: %s, truncated %t, %v; want %s", c.opts, c.path, shown(r), r.Truncated, err, c.want)
		}
	}
	r, err := f.Grep(ctx, "", sandboxd.GrepOptions{Pattern: "needle"})
	if err != nil || r.Binary != 2 || r.Files != 5 || r.Bytes < 80 {
		t.Errorf("counted %+v, %v", r, err)
	}
	for _, o := range []sandboxd.GrepOptions{{}, {Pattern: "("}, {Pattern: "\xff"}, {Pattern: strings.Repeat("a", 1001)}, {Pattern: "(((a{100}){10}){10}){10}"},
		{Pattern: "x", Before: 21}, {Pattern: "x", After: 21}, {Pattern: "x", Glob: "["}} {
		_, err := f.Grep(ctx, "", o)
		WantClass(t, fmt.Sprintf("grep %.40q", o.Pattern), err, sandboxd.ClassInvalid)
	}
	_, err = f.Grep(ctx, "none", sandboxd.GrepOptions{Pattern: "x"})
	WantClass(t, "grep of nothing", err, sandboxd.ClassNotFound)
}

func testGrepBounds(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "ctx", "1\n2\n3 x\n4 x\n5\n6\n7\n")
	r, err := f.Grep(ctx, "ctx", sandboxd.GrepOptions{Pattern: "x", Before: 2, After: 3})
	if err != nil || len(r.Matches) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	for i, want := range []string{"1,2;4 x,5,6", "2,3 x;5,6,7"} {
		if got := strings.Join(r.Matches[i].Before, ",") + ";" + strings.Join(r.Matches[i].After, ","); got != want {
			t.Errorf("match %d has %q around it, want %q", i, got, want)
		}
	}
	if r, err = f.Grep(ctx, "ctx", sandboxd.GrepOptions{Pattern: ".", MaxMatches: 3}); err != nil || len(r.Matches) != 3 || !r.Truncated {
		t.Errorf("of matches: %+v, %v", r, err)
	}
	if r, err = f.Grep(ctx, "ctx", sandboxd.GrepOptions{Pattern: "7", MaxBytes: 6}); err != nil || len(r.Matches) != 0 || !r.Truncated || r.Bytes > 10 {
		t.Errorf("of bytes: %+v, %v", r, err)
	}
	// Lines of any length: what is shown is around the match and valid text.
	Put(t, f, "long", strings.Repeat("ü", 5000)+"needle"+strings.Repeat("ü", 400_000)+"\nneedle\n")
	r, err = f.Grep(ctx, "long", sandboxd.GrepOptions{Pattern: "needle"})
	if err != nil || len(r.Matches) != 2 || r.Matches[0].Column != 10001 || !r.Matches[0].Cut || !strings.Contains(r.Matches[0].Text, "üneedleü") ||
		len(r.Matches[0].Text) > sandboxd.GrepLineBytes || strings.Contains(r.Matches[0].Text, "\uFFFD") || r.Matches[1].Line != 2 || r.Matches[1].Cut {
		t.Errorf("long lines: %+v, %v", r, err)
	}
	if r, err = f.Grep(ctx, "long", sandboxd.GrepOptions{Pattern: "nothing", MaxBytes: 300_000}); err != nil || !r.Truncated || r.Bytes > 600_000 {
		t.Errorf("one line beyond the bound: %+v, %v", r, err)
	}
	Put(t, f, "nul", strings.Repeat("x", 300_000)+"needle\x00"+strings.Repeat("x", 300_000)+"\nneedle\n")
	if r, err = f.Grep(ctx, "nul", sandboxd.GrepOptions{Pattern: "needle"}); err != nil || len(r.Matches) != 0 || r.Binary != 1 || r.Files != 0 {
		t.Errorf("a NUL far into a line: %+v, %v", r, err)
	}
	// The text of an answer is bounded as a whole.
	Put(t, f, "wide", strings.Repeat(strings.Repeat("y", 900)+"\n", 9000))
	r, err = f.Grep(ctx, "wide", sandboxd.GrepOptions{Pattern: "y", MaxMatches: sandboxd.GrepMatches, Before: 2})
	size := 0
	for _, m := range r.Matches {
		size += len(m.Text) + len(strings.Join(m.Before, ""))
	}
	if err != nil || !r.Truncated || size > sandboxd.GrepTextBytes+10_000 || size < sandboxd.GrepTextBytes/2 {
		t.Errorf("of text: %d bytes, truncated %t, %v", size, r.Truncated, err)
	}
	// An expression that takes its time is cut off by the clock.
	Put(t, f, "slow", strings.Repeat(strings.Repeat("ab", 20_000)+"\n", 400))
	began := time.Now()
	r, err = f.Grep(ctx, "slow", sandboxd.GrepOptions{Pattern: "(a|b|ab)*[cd]|(a?b?){20}[ef]", MaxTime: time.Second})
	if took := time.Since(began); err != nil || !r.Truncated || took > 10*time.Second {
		t.Errorf("of time: %v, truncated %t, %v", took, r.Truncated, err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := f.Grep(gone, "", sandboxd.GrepOptions{Pattern: "x"}); err == nil {
		t.Error("a cancelled search answered")
	}
}

func testSearchLinks(t *testing.T, h Harness) {
	captest.Need(t, "planting links", h.Plant != nil, "the harness cannot plant links")
	f, ctx := h.Files, t.Context()
	Put(t, f, "in/file", "needle\n")
	for name, target := range map[string]string{"out": "/etc", "up": "../..", "loop": ".", "same": "in", "file": "/etc/passwd"} {
		h.Plant(t, target, name)
	}
	r, err := f.Grep(ctx, "", sandboxd.GrepOptions{Pattern: "needle|root"})
	if err != nil || shown(r) != "in/file:1:1:needle" {
		t.Errorf("grep through links: %s, %v", shown(r), err)
	}
	l, err := f.Glob(ctx, "", sandboxd.GlobOptions{Pattern: "**/{file,passwd}"})
	if err != nil || paths(l.Entries) != "file in/file" {
		t.Errorf("glob through links: %s, %v", paths(l.Entries), err)
	}
	r, err = f.Grep(ctx, "same", sandboxd.GrepOptions{Pattern: "needle"})
	if err != nil || shown(r) != "same/file:1:1:needle" {
		t.Errorf("grep of a link inside: %s, %v", shown(r), err)
	}
	for _, path := range []string{"out", "out/passwd", "up", "file"} {
		_, err := f.Grep(ctx, path, sandboxd.GrepOptions{Pattern: "x"})
		WantClass(t, "grep "+path, err, sandboxd.ClassForbidden)
		_, _, err = f.Edit(ctx, path, sandboxd.Edit{Old: "root", New: "x", All: true})
		WantClass(t, "edit "+path, err, sandboxd.ClassForbidden)
		_, err = f.Watch(ctx, path)
		WantClass(t, "watch "+path, err, sandboxd.ClassForbidden)
		WantClass(t, "zip "+path, f.ZipOut(ctx, path, io.Discard), sandboxd.ClassForbidden)
		got, err := f.ReadMany(ctx, []sandboxd.ReadItem{{Path: path}})
		if err != nil || len(got) != 1 {
			t.Fatalf("read %s: %+v, %v", path, got, err)
		}
		WantClass(t, "read "+path, got[0].Err, sandboxd.ClassForbidden)
	}
}

func testZip(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	big := strings.Repeat("big content ", 50_000)
	Put(t, f, "src/one", "1")
	Put(t, f, "src/sub/two", big)
	Put(t, f, "src/\xff", "")
	if _, err := f.Write(ctx, "src/tool", strings.NewReader("#!"), sandboxd.WriteOptions{Executable: true, Size: 2}); err != nil {
		t.Fatal(err)
	}
	want := []string{"one=1", "sub/=", "sub/two=" + big, "tool=#!", "\xff="}
	if h.Plant != nil {
		h.Plant(t, "/etc/passwd", "src/link")
		want = slices.Insert(want, 0, "link=/etc/passwd")
	}
	var buf bytes.Buffer
	if err := f.ZipOut(ctx, "src", &buf); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(buf.Bytes()), int64(buf.Len()))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range r.File {
		body, err := e.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Name+"="+string(data))
		mode := map[string]fs.FileMode{"tool": 0o755, "sub/": fs.ModeDir | 0o755, "one": 0o644}[e.Name]
		if mode != 0 && e.Mode() != mode || e.Name == "link" && e.Mode()&fs.ModeType != fs.ModeSymlink {
			t.Errorf("%s has mode %v", e.Name, e.Mode())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the zip has %.200q, want %.200q", got, want)
	}
	buf.Reset()
	if err := f.ZipOut(ctx, "src/one", &buf); err != nil {
		t.Errorf("zip of a file: %v", err)
	}
	WantClass(t, "zip of nothing", f.ZipOut(ctx, "none", io.Discard), sandboxd.ClassNotFound)
}

func testEdit(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "f", "a b b c\x00\xff")
	first, n, err := f.Edit(ctx, "f", sandboxd.Edit{Old: "a", New: "A"})
	if err != nil || n != 1 || Get(t, f, "f") != "A b b c\x00\xff" || first.Path != "f" || first.Size != 9 {
		t.Errorf("once: %+v, %d, %v", first, n, err)
	}
	_, _, err = f.Edit(ctx, "f", sandboxd.Edit{Old: "b", New: "x"})
	WantClass(t, "twice", err, sandboxd.ClassConflict)
	if err == nil || !strings.Contains(err.Error(), "2 times") {
		t.Errorf("the refusal does not say how often: %v", err)
	}
	_, _, err = f.Edit(ctx, "f", sandboxd.Edit{Old: "zz", New: "x"})
	WantClass(t, "not there", err, sandboxd.ClassConflict)
	_, _, err = f.Edit(ctx, "f", sandboxd.Edit{Old: "b", New: "x", Count: 3})
	WantClass(t, "another count", err, sandboxd.ClassConflict)
	if _, n, err := f.Edit(ctx, "f", sandboxd.Edit{Old: "b", New: "", Count: 2}); err != nil || n != 2 || Get(t, f, "f") != "A   c\x00\xff" {
		t.Errorf("with the count: %d, %v, %q", n, err, Get(t, f, "f"))
	}
	if _, n, err := f.Edit(ctx, "f", sandboxd.Edit{Old: " ", New: "\xfe", All: true, Synced: true}); err != nil || n != 3 || Get(t, f, "f") != "A\xfe\xfe\xfec\x00\xff" {
		t.Errorf("all: %d, %v, %q", n, err, Get(t, f, "f"))
	}
	_, _, err = f.Edit(ctx, "f", sandboxd.Edit{Old: "A", New: "B", IfMatch: first.ETag})
	WantClass(t, "an old version", err, sandboxd.ClassPrecondition)
	for what, e := range map[string]sandboxd.Edit{"no text": {New: "x"}, "both": {Old: "A", Count: 1, All: true}, "negative": {Old: "A", Count: -1}} {
		_, _, err := f.Edit(ctx, "f", e)
		WantClass(t, what, err, sandboxd.ClassInvalid)
	}
	_, _, err = f.Edit(ctx, "none", sandboxd.Edit{Old: "a", New: "b"})
	WantClass(t, "nothing", err, sandboxd.ClassNotFound)
	_, _, err = f.Edit(ctx, "../f", sandboxd.Edit{Old: "a", New: "b"})
	WantClass(t, "outside", err, sandboxd.ClassInvalid)
	Put(t, f, "blown", strings.Repeat("a", 4<<20))
	_, _, err = f.Edit(ctx, "blown", sandboxd.Edit{Old: "a", New: strings.Repeat("b", 1<<20), All: true})
	WantClass(t, "four tebibytes", err, sandboxd.ClassTooLarge)
	Put(t, f, "blown", strings.Repeat("a", sandboxd.EditBytes+1))
	_, _, err = f.Edit(ctx, "blown", sandboxd.Edit{Old: "b", New: "c"})
	WantClass(t, "a large file", err, sandboxd.ClassTooLarge)
	// Edits at the same time are all made.
	Put(t, f, "many", "0123456789")
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for {
				_, _, err := f.Edit(ctx, "many", sandboxd.Edit{Old: fmt.Sprint(i), New: string(rune('a' + i))})
				if sandboxd.ClassOf(err) == sandboxd.ClassBusy && err != nil {
					continue
				}
				if err != nil {
					t.Errorf("at the same time: %v", err)
				}
				return
			}
		})
	}
	wg.Wait()
	if got := Get(t, f, "many"); got != "abcdefghij" {
		t.Errorf("edits were lost: %q", got)
	}
}

func testBatches(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	wrote, err := f.WriteMany(ctx, []sandboxd.WriteItem{
		{Path: "a", Data: []byte("text\x00")}, {Path: "d/\xff", Data: []byte("\xfe")}, {Path: "../x", Data: []byte("x")},
		{Path: "a", Data: []byte("no"), Options: sandboxd.WriteOptions{IfNoneMatch: true}}, {Path: "d", Data: []byte("no")},
		{Path: "e", Options: sandboxd.WriteOptions{Executable: true}}, {Path: "big", Data: make([]byte, sandboxd.BatchBytes)},
	})
	if err != nil || len(wrote) != 7 {
		t.Fatalf("%+v, %v", wrote, err)
	}
	for i, class := range []sandboxd.Class{"", "", sandboxd.ClassInvalid, sandboxd.ClassPrecondition, sandboxd.ClassConflict, "", sandboxd.ClassTooLarge} {
		if class == "" && wrote[i].Err != nil || class != "" && (wrote[i].Err == nil || sandboxd.ClassOf(wrote[i].Err) != class) {
			t.Errorf("write %d: %v, want %q", i, wrote[i].Err, class)
		}
	}
	if wrote[1].Info.Path != "d/\xff" || wrote[5].Info.Mode != 0o755 || Get(t, f, "a") != "text\x00" {
		t.Errorf("%+v", wrote)
	}
	Put(t, f, "big", strings.Repeat("x", sandboxd.BatchBytes+1))
	read, err := f.ReadMany(ctx, []sandboxd.ReadItem{{Path: "a"}, {Path: "d/\xff"}, {Path: "none"}, {Path: "d"}, {Path: "e"}, {Path: "big"},
		{Path: "big", Offset: 10, Length: 3}, {Path: "a", Offset: 99}, {Path: "a", Offset: 2, Length: 99}, {Path: "/etc/passwd"}, {Path: "a", Offset: -1}})
	if err != nil || len(read) != 11 {
		t.Fatalf("%+v, %v", read, err)
	}
	for i, want := range []any{"text\x00", "\xfe", sandboxd.ClassNotFound, sandboxd.ClassInvalid, "", sandboxd.ClassTooLarge, "xxx", "", "xt\x00",
		sandboxd.ClassInvalid, sandboxd.ClassInvalid} {
		switch want := want.(type) {
		case string:
			if read[i].Err != nil || string(read[i].Data) != want {
				t.Errorf("read %d: %q, %v; want %q", i, read[i].Data, read[i].Err, want)
			}
		case sandboxd.Class:
			WantClass(t, fmt.Sprint("read ", i), read[i].Err, want)
		}
	}
	_, err = f.ReadMany(ctx, make([]sandboxd.ReadItem, sandboxd.BatchItems+1))
	WantClass(t, "too many to read", err, sandboxd.ClassInvalid)
	_, err = f.WriteMany(ctx, make([]sandboxd.WriteItem, sandboxd.BatchItems+1))
	WantClass(t, "too many to write", err, sandboxd.ClassInvalid)
}

func testUpload(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	whole := strings.Repeat("0123456789", 100_000)
	total := int64(len(whole))
	put := func(from, to int64, opts sandboxd.WriteOptions) (sandboxd.UploadState, error) {
		opts.Size = to - from
		return f.Upload(ctx, "up/file", sandboxd.UploadPart{ID: "u1", Offset: from, Total: total}, strings.NewReader(whole[from:to]), opts)
	}
	ask := func() int64 {
		t.Helper()
		state, err := f.Upload(ctx, "up/file", sandboxd.UploadPart{ID: "u1"}, nil, sandboxd.WriteOptions{})
		if err != nil || state.Complete {
			t.Errorf("asked: %+v, %v", state, err)
		}
		return state.Received
	}
	if got := ask(); got != 0 {
		t.Errorf("an unknown upload has %d bytes", got)
	}
	if state, err := put(0, 300_000, sandboxd.WriteOptions{}); err != nil || state.Received != 300_000 || state.Complete {
		t.Errorf("the first piece: %+v, %v", state, err)
	}
	_, err := put(300_001, 400_000, sandboxd.WriteOptions{})
	WantClass(t, "a hole", err, sandboxd.ClassRange)
	_, err = put(1, 400_000, sandboxd.WriteOptions{})
	WantClass(t, "an overlap", err, sandboxd.ClassRange)
	// A piece that breaks off: what arrived is kept.
	broken := io.MultiReader(strings.NewReader(whole[300_000:600_000]), readerFunc(func([]byte) (int, error) { return 0, errors.New("cut") }))
	if _, err := f.Upload(ctx, "up/file", sandboxd.UploadPart{ID: "u1", Offset: 300_000, Total: total}, broken, sandboxd.WriteOptions{Size: 500_000}); err == nil {
		t.Error("a piece that broke off was accepted")
	}
	at := int64(0)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end) && at <= 300_000; {
		at = ask() // over a network the end may be seen a moment later
	}
	if at <= 300_000 || at > 600_000 {
		t.Fatalf("after a broken piece %d bytes are there", at)
	}
	if _, err := f.Stat(ctx, "up/file"); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Errorf("half a file is there: %v", err)
	}
	l, err := f.List(ctx, "", sandboxd.ListOptions{})
	if err != nil || len(l.Entries) != 0 {
		t.Errorf("the upload shows: %s, %v", paths(l.Entries), err)
	}
	var state sandboxd.UploadState
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		state, err = put(at, total, sandboxd.WriteOptions{Executable: true, Synced: true})
		if class := sandboxd.ClassOf(err); err == nil || class != sandboxd.ClassBusy && class != sandboxd.ClassRange {
			break
		}
		at = ask() // the broken piece was not over, and more of it arrived
	}
	if err != nil || !state.Complete || state.Received != total || state.Info.Size != total || state.Info.Mode != 0o755 || Get(t, f, "up/file") != whole {
		t.Fatalf("the last piece: %+v, %v", state, err)
	}
	if got := ask(); got != 0 {
		t.Errorf("a finished upload has %d bytes", got)
	}
	// Conditions hold at the end; an upload may begin anew and may be empty.
	_, err = put(0, total, sandboxd.WriteOptions{IfNoneMatch: true})
	WantClass(t, "onto a file", err, sandboxd.ClassPrecondition)
	if _, err := put(0, 10, sandboxd.WriteOptions{}); err != nil {
		t.Errorf("anew: %v", err)
	}
	if state, err := put(0, total, sandboxd.WriteOptions{IfMatch: state.Info.ETag}); err != nil || !state.Complete {
		t.Errorf("anew with a condition: %+v, %v", state, err)
	}
	if state, err := f.Upload(ctx, "nothing", sandboxd.UploadPart{ID: "e"}, strings.NewReader(""), sandboxd.WriteOptions{}); err != nil || !state.Complete || Get(t, f, "nothing") != "" {
		t.Errorf("of no bytes: %+v, %v", state, err)
	}
	for what, part := range map[string]sandboxd.UploadPart{"id": {ID: "../x", Total: 3}, "beyond": {ID: "a", Total: 2}, "negative": {ID: "a", Offset: -1, Total: 9}} {
		_, err := f.Upload(ctx, "f", part, strings.NewReader("abc"), sandboxd.WriteOptions{Size: 3})
		WantClass(t, what, err, sandboxd.ClassInvalid)
	}
	_, err = f.Upload(ctx, "../f", sandboxd.UploadPart{ID: "a", Total: 3}, strings.NewReader("abc"), sandboxd.WriteOptions{Size: 3})
	WantClass(t, "outside", err, sandboxd.ClassInvalid)
	_, err = f.Upload(ctx, "", sandboxd.UploadPart{ID: "a", Total: 3}, strings.NewReader("abc"), sandboxd.WriteOptions{Size: 3})
	if err == nil {
		t.Error("an upload onto the workspace itself")
	}
	// The unfinished ones are bounded.
	refused := 0
	for i := range 40 {
		_, err := f.Upload(ctx, "many", sandboxd.UploadPart{ID: fmt.Sprint(i), Total: 9}, strings.NewReader("abc"), sandboxd.WriteOptions{Size: 3})
		if err != nil {
			WantClass(t, "too many", err, sandboxd.ClassCapacity)
			refused++
		}
	}
	if refused == 0 || refused > 38 {
		t.Errorf("%d of 40 uploads were refused", refused)
	}
}
