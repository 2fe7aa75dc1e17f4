package workspacetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
)

func paths(entries []sandboxd.FileInfo) string {
	var list []string
	for _, e := range entries {
		list = append(list, e.Path)
	}
	return strings.Join(list, " ")
}

func testList(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	l, err := f.List(ctx, "", sandboxd.ListOptions{})
	if err != nil || l.Entries == nil || len(l.Entries) != 0 {
		t.Errorf("empty: %#v, %v", l, err)
	}
	for _, p := range []string{"b/two/x", "b/one", "a", "b/two/y", "c/d/e/f"} {
		Put(t, f, p, p)
	}
	for _, c := range []struct {
		path      string
		opts      sandboxd.ListOptions
		want      string
		truncated bool
	}{
		{"", sandboxd.ListOptions{}, "a b c", false},
		{"b", sandboxd.ListOptions{}, "b/one b/two", false},
		{"", sandboxd.ListOptions{Depth: 2}, "a b c b/one b/two c/d", true},
		{"", sandboxd.ListOptions{Depth: 4}, "a b c b/one b/two c/d b/two/x b/two/y c/d/e c/d/e/f", false},
		{"", sandboxd.ListOptions{Depth: 4, MaxEntries: 4}, "a b c b/one", true},
		{"", sandboxd.ListOptions{MaxEntries: 3}, "a b c", false},
	} {
		l, err := f.List(ctx, c.path, c.opts)
		if err != nil || paths(l.Entries) != c.want || l.Truncated != c.truncated || l.Incomplete {
			t.Errorf("list %q %+v: %s truncated %v, %v; want %s %v", c.path, c.opts, paths(l.Entries), l.Truncated, err, c.want, c.truncated)
		}
	}
	_, err = f.List(ctx, "a", sandboxd.ListOptions{})
	WantClass(t, "list of a file", err, sandboxd.ClassInvalid)
	_, err = f.List(ctx, "none", sandboxd.ListOptions{})
	WantClass(t, "list of nothing", err, sandboxd.ClassNotFound)
	var walked []sandboxd.FileInfo
	incomplete, err := f.Walk(ctx, "b", func(i sandboxd.FileInfo) error { walked = append(walked, i); return nil })
	if err != nil || incomplete || paths(walked) != "b/one b/two b/two/x b/two/y" {
		t.Errorf("walk: %s, %v, %v", paths(walked), incomplete, err)
	}
	stop := fmt.Errorf("enough")
	if _, err := f.Walk(ctx, "", func(sandboxd.FileInfo) error { return stop }); err != stop {
		t.Errorf("the error of fn came back as %v", err)
	}
}

func testRename(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "a", "A")
	Put(t, f, "b", "B")
	Put(t, f, "d/in", "in")
	if err := f.Mkdir(ctx, "empty"); err != nil {
		t.Fatal(err)
	}
	if err := f.Rename(ctx, "a", "b"); err != nil || Get(t, f, "b") != "A" {
		t.Errorf("file over file: %v", err)
	}
	if err := f.Rename(ctx, "d", "e"); err != nil || Get(t, f, "e/in") != "in" {
		t.Errorf("directory: %v", err)
	}
	WantClass(t, "gone", f.Rename(ctx, "d", "x"), sandboxd.ClassNotFound)
	WantClass(t, "file over directory", f.Rename(ctx, "b", "e"), sandboxd.ClassConflict)
	WantClass(t, "directory over file", f.Rename(ctx, "e", "b"), sandboxd.ClassConflict)
	WantClass(t, "directory over empty directory", f.Rename(ctx, "e", "empty"), sandboxd.ClassConflict)
	WantClass(t, "into itself", f.Rename(ctx, "e", "e/in2"), sandboxd.ClassConflict)
	WantClass(t, "no parent", f.Rename(ctx, "b", "none/b"), sandboxd.ClassNotFound)
	if err := f.Rename(ctx, "b", "b"); err != nil {
		t.Errorf("to itself: %v", err)
	}
}

func testRemove(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "keep", "x")
	Put(t, f, "t/a/b", "x")
	Put(t, f, strings.Repeat("t/deep/", 150)+"f", "x")
	for _, p := range []string{"t/a/b", "t"} {
		if err := f.Remove(ctx, p); err != nil {
			t.Fatalf("remove %s: %v", p, err)
		}
		WantClass(t, "second remove of "+p, f.Remove(ctx, p), sandboxd.ClassNotFound)
	}
	l, err := f.List(ctx, "", sandboxd.ListOptions{})
	if err != nil || paths(l.Entries) != "keep" {
		t.Errorf("left: %s, %v", paths(l.Entries), err)
	}
}

func testLinks(t *testing.T, h Harness) {
	captest.Need(t, "planted-links", h.Plant != nil, "this implementation cannot plant links")
	f, ctx := h.Files, t.Context()
	Put(t, f, "real/file", "body")
	h.Plant(t, "/workspace/real", "abs")
	h.Plant(t, "real/../real/file", "rel")
	h.Plant(t, "/etc", "out")
	h.Plant(t, "../../etc/passwd", "up")
	h.Plant(t, "loop", "loop")
	h.Plant(t, "/workspace/../etc/passwd", "sly")
	h.Plant(t, "/workspace", "self")
	h.Plant(t, "gone", "dangling")
	for _, p := range []string{"abs/file", "rel", "self/abs/file", "self/self/rel", "/workspace/self/real/file"} {
		if got := Get(t, f, p); got != "body" {
			t.Errorf("%s holds %q", p, got)
		}
	}
	for _, p := range []string{"out/passwd", "up", "sly", "self/out/passwd"} {
		_, err := f.Open(ctx, p)
		WantClass(t, "open "+p, err, sandboxd.ClassForbidden)
		_, err = f.Write(ctx, p, strings.NewReader("x"), sandboxd.WriteOptions{Size: -1})
		WantClass(t, "write "+p, err, sandboxd.ClassForbidden)
	}
	WantClass(t, "mkdir", f.Mkdir(ctx, "out/x/y"), sandboxd.ClassForbidden)
	_, err := f.List(ctx, "out", sandboxd.ListOptions{})
	WantClass(t, "list", err, sandboxd.ClassForbidden)
	_, err = f.Open(ctx, "loop")
	WantClass(t, "loop", err, sandboxd.ClassInvalid)
	_, err = f.Open(ctx, "dangling")
	WantClass(t, "dangling", err, sandboxd.ClassNotFound)
	if info, err := f.Stat(ctx, "out"); err != nil || info.Type != sandboxd.TypeLink || info.Target != "/etc" {
		t.Errorf("stat of a link: %+v, %v", info, err)
	}
	Put(t, f, "rel", "through the link")
	if Get(t, f, "real/file") != "through the link" {
		t.Error("a write did not follow the link")
	}
	Put(t, f, "dangling", "x")
	if Get(t, f, "gone") != "x" {
		t.Error("a write did not make what the link names")
	}
	if err := f.Remove(ctx, "abs"); err != nil || Get(t, f, "real/file") == "" {
		t.Errorf("removing a link: %v", err)
	}
}

func testTar(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	var src bytes.Buffer
	tw := tar.NewWriter(&src)
	long := strings.Repeat("l", 255)
	want := map[string]string{"a": "A", "d/b\n\xff": "B", "d/" + long + "/" + long: "L", "x": strings.Repeat("z", 600_000), "dup": "second"}
	add := func(hd *tar.Header, body string) {
		hd.Size = int64(len(body))
		if err := tw.WriteHeader(hd); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, body); err != nil {
			t.Fatal(err)
		}
	}
	add(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, "")
	add(&tar.Header{Name: "dup", Mode: 0o600}, "first")
	for name, body := range want {
		add(&tar.Header{Name: name, Mode: 0o751}, body)
	}
	add(&tar.Header{Name: "e/", Typeflag: tar.TypeDir, Mode: 0o700}, "")
	add(&tar.Header{Name: "ln", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, "")
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	res, err := f.TarIn(ctx, "in/here", &src, sandboxd.TarLimits{})
	if err != nil || res.Files != 6 || res.Links != 1 || res.Dirs != 1 {
		t.Fatalf("tar in: %+v, %v", res, err)
	}
	for name, body := range want {
		if Get(t, f, "in/here/"+name) != body {
			t.Errorf("%.20q differs", name)
		}
	}
	if info, err := f.Stat(ctx, "in/here/a"); err != nil || info.Mode != 0o751 {
		t.Errorf("mode %v, %v", info.Mode, err)
	}
	var out bytes.Buffer
	if err := f.TarOut(ctx, "in/here", &out); err != nil {
		t.Fatal(err)
	}
	var names []string
	for tr := tar.NewReader(&out); ; {
		hd, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, hd.Name)
		body, err := io.ReadAll(tr)
		if err != nil || hd.Typeflag == tar.TypeReg && string(body) != want[hd.Name] {
			t.Errorf("%.20q came out as %d bytes, %v", hd.Name, len(body), err)
		}
		if hd.Name == "ln" && (hd.Typeflag != tar.TypeSymlink || hd.Linkname != "/etc/passwd") {
			t.Errorf("the link came out as %c %s", hd.Typeflag, hd.Linkname)
		}
	}
	if len(names) != len(want)+4 || !slices.Contains(names, "e/") {
		t.Errorf("names %.200q", names)
	}
}

func testHostileTar(t *testing.T, h Harness) {
	f, ctx := h.Files, t.Context()
	Put(t, f, "t/dir/f", "x")
	Put(t, f, "t/file", "x")
	Put(t, f, "outside", "safe")
	reg := func(name string) tar.Header { return tar.Header{Name: name, Mode: 0o644} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
	}
	for what, headers := range map[string][]tar.Header{
		"up":             {reg("../bad")},
		"up inside":      {reg("a/../bad")},
		"absolute":       {reg("/workspace/bad")},
		"through link":   {link("l", ".."), reg("l/bad")},
		"through abs":    {link("m", "/"), reg("m/bad")},
		"dir over link":  {link("n", ".."), {Name: "n/bad", Typeflag: tar.TypeDir}},
		"device":         {{Name: "bad", Typeflag: tar.TypeChar}},
		"fifo":           {{Name: "bad", Typeflag: tar.TypeFifo}},
		"hard link":      {{Name: "bad", Typeflag: tar.TypeLink, Linkname: "../outside"}},
		"empty target":   {link("bad", "")},
		"file over dir":  {reg("dir")},
		"dir over file":  {{Name: "file/bad", Typeflag: tar.TypeDir}},
		"below a file":   {reg("file/bad")},
		"long name":      {reg(strings.Repeat("bad", 100))},
		"reserved":       {reg(".sandboxd-tmp-bad")},
		"too many":       {reg("1"), reg("2"), reg("3"), reg("4"), reg("bad")},
		"too many bytes": {{Name: "bad", Size: 1001}},
	} {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		for _, hd := range headers {
			if err := tw.WriteHeader(&hd); err != nil {
				t.Fatal(err)
			}
		}
		_ = tw.Flush()
		_, err := f.TarIn(ctx, "t", &buf, sandboxd.TarLimits{MaxEntries: 4, MaxBytes: 1000})
		WantClass(t, what, err, sandboxd.ClassInvalid)
		if err != nil && !strings.Contains(err.Error(), headers[len(headers)-1].Name[:3]) {
			t.Errorf("%s: the error does not name the entry: %v", what, err)
		}
		for _, p := range []string{"bad", "t/bad"} {
			if _, err := f.Stat(ctx, p); err == nil {
				t.Errorf("%s: %s exists", what, p)
			}
		}
	}
	_, err := f.TarIn(ctx, "t", strings.NewReader(strings.Repeat("garbage", 400)), sandboxd.TarLimits{})
	WantClass(t, "garbage", err, sandboxd.ClassInvalid)
	if Get(t, f, "outside") != "safe" {
		t.Error("written outside the target")
	}
}

func testUsage(t *testing.T, h Harness) {
	before, err := h.Files.Usage(t.Context())
	if err != nil || before.Entries != 0 {
		t.Fatalf("empty: %+v, %v", before, err)
	}
	Put(t, h.Files, "d/f", strings.Repeat("x", 1<<20))
	u, err := h.Files.Usage(t.Context())
	if err != nil || u.Entries != 2 || u.Bytes < 1<<20 || u.Bytes > 1<<20+64<<10 || u.Incomplete {
		t.Errorf("%+v, %v", u, err)
	}
}
