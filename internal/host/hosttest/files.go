package hosttest

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"sandboxd"
)

var fileCases = []testCase{
	{name: "files never start a sandbox", run: filesStayCold},
	{name: "read, seek and describe", run: readAndSeek},
	{name: "conditions of a write", run: conditions},
	{name: "sizes, appends and bytes", run: sizes},
	{name: "list, tree and walk", run: listings},
	{name: "make, move and remove", run: moves},
	{name: "tar out and in", run: tars},
	{name: "names of any bytes", run: names},
	{name: "paths that lead out", run: outside},
	{name: "files outlive the environment", run: filesOutlive},
	{name: "a watch ends with its sandbox", run: watchEnds},
}

func (s *suite) files(req sandboxd.OpenRequest) (sandboxd.Sandbox, sandboxd.Files) {
	s.Helper()
	sb := s.open(req)
	files, err := s.host.Files(s.ctx, sb.ID)
	s.must(err)
	return sb, files
}

func (s *suite) write(files sandboxd.Files, path, text string) sandboxd.FileInfo {
	s.Helper()
	info, err := files.Write(s.ctx, path, strings.NewReader(text), sandboxd.WriteOptions{Size: int64(len(text))})
	s.must(err)
	return info
}

// content reads a file; it reports and answers "" when it cannot.
func (s *suite) content(files sandboxd.Files, path string) string {
	s.Helper()
	f, err := files.Open(s.ctx, path)
	if err != nil {
		s.Errorf("open: %v", err)
		return ""
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		s.Errorf("read: %v", err)
	}
	return string(data)
}

func filesStayCold(s *suite) {
	sb, files := s.files(sandboxd.OpenRequest{Start: cold()})
	s.write(files, "a/b.txt", "x")
	s.content(files, "a/b.txt")
	_, err := files.Stat(s.ctx, "a")
	s.must(err)
	_, err = files.List(s.ctx, "", sandboxd.ListOptions{})
	s.must(err)
	_, err = files.Walk(s.ctx, "", func(sandboxd.FileInfo) error { return nil })
	s.must(err)
	s.must(files.Mkdir(s.ctx, "c"))
	s.must(files.Rename(s.ctx, "a/b.txt", "c/d.txt"))
	s.must(files.TarOut(s.ctx, "", io.Discard))
	s.must(files.ZipOut(s.ctx, "", io.Discard))
	_, err = files.Glob(s.ctx, "", sandboxd.GlobOptions{Pattern: "**/*.txt"})
	s.must(err)
	_, err = files.Grep(s.ctx, "", sandboxd.GrepOptions{Pattern: "x"})
	s.must(err)
	_, _, err = files.Edit(s.ctx, "c/d.txt", sandboxd.Edit{Old: "x", New: "y"})
	s.must(err)
	_, err = files.ReadMany(s.ctx, []sandboxd.ReadItem{{Path: "c/d.txt"}})
	s.must(err)
	_, err = files.WriteMany(s.ctx, []sandboxd.WriteItem{{Path: "c/e.txt", Data: []byte("x")}})
	s.must(err)
	_, err = files.Upload(s.ctx, "c/f", sandboxd.UploadPart{ID: "u", Total: 1}, strings.NewReader("x"), sandboxd.WriteOptions{Size: 1})
	s.must(err)
	w, err := files.Watch(s.ctx, "")
	s.must(err)
	s.must(w.Close())
	usage, err := files.Usage(s.ctx)
	s.must(err)
	if usage.Entries < 3 || usage.Bytes == 0 {
		s.Errorf("usage %+v", usage)
	}
	s.must(files.Remove(s.ctx, "c"))
	got, err := s.host.Get(s.ctx, sb.ID)
	s.must(err)
	if got.State != sandboxd.StateCold || got.Generation != 0 {
		s.Fatalf("%+v", got)
	}
}

func readAndSeek(s *suite) {
	_, files := s.files(sandboxd.OpenRequest{Start: cold()})
	wrote := s.write(files, "data.txt", "0123456789")
	f, err := files.Open(s.ctx, "data.txt")
	s.must(err)
	defer f.Close()
	info := f.Info()
	if info.Size != 10 || info.Type != sandboxd.TypeFile || info.ETag == "" || info.ETag != wrote.ETag || info.ModTime.IsZero() {
		s.Fatalf("%+v, written as %+v", info, wrote)
	}
	stat, err := files.Stat(s.ctx, "data.txt")
	s.must(err)
	if stat.ETag != info.ETag || stat.Mode != info.Mode || !stat.ModTime.Equal(info.ModTime) || stat.Path != "data.txt" {
		s.Fatalf("stat %+v, open %+v", stat, info)
	}
	for _, step := range []struct {
		offset int64
		whence int
		want   string
	}{{4, io.SeekStart, "456"}, {-2, io.SeekCurrent, "567"}, {-3, io.SeekEnd, "789"}, {0, io.SeekStart, "012"}} {
		_, err := f.Seek(step.offset, step.whence)
		s.must(err)
		buf := make([]byte, 3)
		_, err = io.ReadFull(f, buf)
		s.must(err)
		if string(buf) != step.want {
			s.Fatalf("after seek %d: %q, want %q", step.offset, buf, step.want)
		}
	}
	_, err = f.Seek(0, io.SeekEnd)
	s.must(err)
	if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		s.Fatalf("at the end: %d, %v", n, err)
	}
	_, err = files.Open(s.ctx, "nothing")
	s.wants(err, sandboxd.ClassNotFound)
	s.must(files.Mkdir(s.ctx, "dir"))
	_, err = files.Open(s.ctx, "dir")
	s.wants(err, sandboxd.ClassInvalid)
}

func conditions(s *suite) {
	_, files := s.files(sandboxd.OpenRequest{Start: cold()})
	first, err := files.Write(s.ctx, "f", strings.NewReader("one"), sandboxd.WriteOptions{IfNoneMatch: true, Size: 3})
	s.must(err)
	_, err = files.Write(s.ctx, "f", strings.NewReader("two"), sandboxd.WriteOptions{IfNoneMatch: true, Size: 3})
	s.wants(err, sandboxd.ClassPrecondition)
	second, err := files.Write(s.ctx, "f", strings.NewReader("two"), sandboxd.WriteOptions{IfMatch: first.ETag, Size: -1, Synced: true})
	s.must(err)
	if second.ETag == first.ETag {
		s.Fatal("the ETag did not change")
	}
	_, err = files.Write(s.ctx, "f", strings.NewReader("three"), sandboxd.WriteOptions{IfMatch: first.ETag, Size: 5})
	s.wants(err, sandboxd.ClassPrecondition)
	_, err = files.Write(s.ctx, "f", strings.NewReader("short"), sandboxd.WriteOptions{Size: 50})
	s.wants(err, sandboxd.ClassInvalid)
	_, err = files.Write(s.ctx, "f", strings.NewReader("long"), sandboxd.WriteOptions{Size: 2})
	s.wants(err, sandboxd.ClassInvalid)
	broken := errors.New("the source broke")
	_, err = files.Write(s.ctx, "f", io.MultiReader(strings.NewReader("half"), &failing{broken}), sandboxd.WriteOptions{Size: -1})
	if err == nil {
		s.Fatal("a broken source was written")
	}
	s.must(files.Mkdir(s.ctx, "d"))
	_, err = files.Write(s.ctx, "d", strings.NewReader("x"), sandboxd.WriteOptions{Size: 1})
	s.wants(err, sandboxd.ClassConflict)
	if got := s.content(files, "f"); got != "two" {
		s.Fatalf("a refused write left %q", got)
	}
	found, err := files.List(s.ctx, "", sandboxd.ListOptions{})
	s.must(err)
	if len(found.Entries) != 2 {
		s.Fatalf("a refused write left %+v", found.Entries)
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

func sizes(s *suite) {
	_, files := s.files(sandboxd.OpenRequest{Start: cold()})
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for _, data := range [][]byte{{}, every, bytes.Repeat(every, 20000)} {
		info := s.write(files, "blob", string(data))
		if info.Size != int64(len(data)) {
			s.Fatalf("%d bytes described as %d", len(data), info.Size)
		}
		if got := s.content(files, "blob"); got != string(data) {
			s.Fatalf("%d bytes came back as %d others", len(data), len(got))
		}
	}
	s.write(files, "log", "a\n")
	_, err := files.Write(s.ctx, "log", strings.NewReader("b\n"), sandboxd.WriteOptions{Append: true, Size: -1})
	s.must(err)
	if got := s.content(files, "log"); got != "a\nb\n" {
		s.Fatalf("%q", got)
	}
	info, err := files.Write(s.ctx, "tool", strings.NewReader("#!"), sandboxd.WriteOptions{Executable: true, Size: 2})
	s.must(err)
	if info.Mode&0o111 == 0 {
		s.Fatalf("mode %v", info.Mode)
	}
}

func listings(s *suite) {
	_, files := s.files(sandboxd.OpenRequest{Start: cold()})
	empty, err := files.List(s.ctx, "", sandboxd.ListOptions{})
	s.must(err)
	if empty.Entries == nil || len(empty.Entries) != 0 {
		s.Fatalf("%+v", empty)
	}
	for _, name := range []string{"b", "a/x", "a/y/z"} {
		s.write(files, name, name)
	}
	paths := func(list []sandboxd.FileInfo) []string {
		out := []string{}
		for _, e := range list {
			out = append(out, e.Path)
		}
		return out
	}
	one, err := files.List(s.ctx, "", sandboxd.ListOptions{})
	s.must(err)
	if got := paths(one.Entries); !slices.Equal(got, []string{"a", "b"}) {
		s.Fatalf("%v", got)
	}
	deep, err := files.List(s.ctx, "", sandboxd.ListOptions{Depth: sandboxd.TreeDepth, MaxEntries: sandboxd.TreeEntries})
	s.must(err)
	if got := paths(deep.Entries); !slices.Equal(got, []string{"a", "b", "a/x", "a/y", "a/y/z"}) || deep.Truncated {
		s.Fatalf("%v", got)
	}
	some, err := files.List(s.ctx, "", sandboxd.ListOptions{Depth: 9, MaxEntries: 2})
	s.must(err)
	if len(some.Entries) != 2 || !some.Truncated {
		s.Fatalf("%+v", some)
	}
	var walked []string
	incomplete, err := files.Walk(s.ctx, "a", func(e sandboxd.FileInfo) error {
		walked = append(walked, e.Path)
		return nil
	})
	s.must(err)
	if incomplete || !slices.Equal(walked, []string{"a/x", "a/y", "a/y/z"}) {
		s.Fatalf("%v", walked)
	}
	enough := errors.New("enough")
	if _, err := files.Walk(s.ctx, "", func(sandboxd.FileInfo) error { return enough }); !errors.Is(err, enough) {
		s.Fatalf("%v", err)
	}
	_, err = files.List(s.ctx, "none", sandboxd.ListOptions{})
	s.wants(err, sandboxd.ClassNotFound)
	_, err = files.Walk(s.ctx, "none", func(sandboxd.FileInfo) error { return nil })
	s.wants(err, sandboxd.ClassNotFound)
}

func moves(s *suite) {
	_, files := s.files(sandboxd.OpenRequest{Start: cold()})
	s.must(files.Mkdir(s.ctx, "d/e"))
	s.must(files.Mkdir(s.ctx, "d/e"))
	s.write(files, "f", "f")
	s.write(files, "g", "g")
	s.must(files.Rename(s.ctx, "f", "g"))
	if got := s.content(files, "g"); got != "f" {
		s.Fatalf("%q", got)
	}
	s.must(files.Rename(s.ctx, "d/e", "moved"))
	s.wants(files.Rename(s.ctx, "g", "moved"), sandboxd.ClassConflict)
	s.wants(files.Rename(s.ctx, "none", "x"), sandboxd.ClassNotFound)
	s.write(files, "moved/in", "x")
	s.must(files.Remove(s.ctx, "moved"))
	_, err := files.Stat(s.ctx, "moved")
	s.wants(err, sandboxd.ClassNotFound)
	s.wants(files.Remove(s.ctx, "moved"), sandboxd.ClassNotFound)
}

func tars(s *suite) {
	_, files := s.files(sandboxd.OpenRequest{Start: cold()})
	s.write(files, "src/one", "1")
	s.write(files, "src/sub/two", "22")
	var archive bytes.Buffer
	s.must(files.TarOut(s.ctx, "src", &archive))
	res, err := files.TarIn(s.ctx, "copy", bytes.NewReader(archive.Bytes()), sandboxd.TarLimits{})
	s.must(err)
	if res.Files != 2 || res.Bytes != 3 {
		s.Fatalf("%+v", res)
	}
	if got := s.content(files, "copy/sub/two"); got != "22" {
		s.Fatalf("%q", got)
	}
	_, err = files.TarIn(s.ctx, "small", bytes.NewReader(archive.Bytes()), sandboxd.TarLimits{MaxBytes: 1})
	s.wants(err, sandboxd.ClassTooLarge, sandboxd.ClassInvalid)
	var evil bytes.Buffer
	w := tar.NewWriter(&evil)
	s.must(w.WriteHeader(&tar.Header{Name: "../out", Mode: 0o644, Size: 1, Typeflag: tar.TypeReg}))
	_, err = w.Write([]byte("x"))
	s.must(err)
	s.must(w.Close())
	_, err = files.TarIn(s.ctx, "evil", &evil, sandboxd.TarLimits{})
	s.wants(err, sandboxd.ClassInvalid)
	s.wants(files.TarOut(s.ctx, "none", io.Discard), sandboxd.ClassNotFound)
	full := errors.New("the target is full")
	if err := files.TarOut(s.ctx, "src", &refusing{full}); !errors.Is(err, full) {
		s.Fatalf("%v", err)
	}
}

type refusing struct{ err error }

func (r *refusing) Write([]byte) (int, error) { return 0, r.err }

func names(s *suite) {
	_, files := s.files(sandboxd.OpenRequest{Start: cold()})
	for _, name := range []string{"ünï/cödé", "with space", "per%cent", "plus+and&=?#", "\xff\xfe", "new\nline", strings.Repeat("n", 255), `back\slash`} {
		s.write(files, name, name)
		if got := s.content(files, name); got != name {
			s.Errorf("%q holds %q", name, got)
		}
		info, err := files.Stat(s.ctx, name)
		s.must(err)
		if info.Path != name {
			s.Errorf("%q is described as %q", name, info.Path)
		}
		s.must(files.Rename(s.ctx, name, "dest"))
		s.must(files.Rename(s.ctx, "dest", name))
		s.must(files.Remove(s.ctx, name))
	}
	s.write(files, "\xff", "x")
	found, err := files.List(s.ctx, "", sandboxd.ListOptions{})
	s.must(err)
	ok := false
	for _, e := range found.Entries {
		ok = ok || e.Path == "\xff"
	}
	if !ok {
		s.Errorf("%+v", found.Entries)
	}
}

func outside(s *suite) {
	_, files := s.files(sandboxd.OpenRequest{Start: cold()})
	for _, path := range []string{"../x", "a/../../x", "/etc/passwd", "nul\x00", strings.Repeat("n", 256)} {
		_, err := files.Open(s.ctx, path)
		s.wants(err, sandboxd.ClassInvalid)
		_, err = files.Write(s.ctx, path, strings.NewReader("x"), sandboxd.WriteOptions{Size: 1})
		s.wants(err, sandboxd.ClassInvalid)
		s.wants(files.Remove(s.ctx, path), sandboxd.ClassInvalid)
	}
	s.write(files, sandboxd.WorkDir+"/inside", "x")
	if got := s.content(files, "inside"); got != "x" {
		s.Fatalf("%q", got)
	}
}

func filesOutlive(s *suite) {
	sb, files := s.files(sandboxd.OpenRequest{})
	s.write(files, "note", "kept")
	s.exits(s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("echo", "works")}), sandboxd.CauseExit, 0)
	_, err := s.host.Stop(s.ctx, sb.ID)
	s.must(err)
	if got := s.content(files, "note"); got != "kept" {
		s.Fatalf("%q", got)
	}
	s.must(s.host.Delete(s.ctx, sb.ID))
	_, err = s.host.Files(s.ctx, sb.ID)
	s.wants(err, sandboxd.ClassGone)
}

// watchEnds: a delete ends every watcher, also one that has had no event, and a
// running sandbox's own changes are seen.
func watchEnds(s *suite) {
	sb, files := s.files(sandboxd.OpenRequest{})
	s.must(files.Mkdir(s.ctx, "empty"))
	whole, err := files.Watch(s.ctx, "")
	s.must(err)
	defer whole.Close()
	part, err := files.Watch(s.ctx, "empty")
	s.must(err)
	defer part.Close()
	s.write(files, "note", "x")
	for told := false; !told; {
		events, err := whole.Next(s.ctx)
		s.must(err)
		for _, e := range events {
			told = told || e.Kind == sandboxd.ChangeChanged && e.Info.Path == "note" && e.Info.Size == 1
		}
	}
	s.must(s.host.Delete(s.ctx, sb.ID))
	for _, w := range []sandboxd.Watcher{part, whole} {
		for {
			if _, err = w.Next(s.ctx); err != nil {
				s.wants(err, sandboxd.ClassGone)
				break
			}
		}
	}
}
