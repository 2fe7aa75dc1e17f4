package workspace

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
)

const secret = "CANARY-7f3a"

// flip exchanges directories and files with links to the outside, as fast as it
// can, until stop is set. It works by descriptor, so that it does not itself walk
// through the links that it makes.
func flip(root, d, top int, stop *atomic.Bool) {
	exchange := func(fromDir int, from, to string) {
		_ = unix.Renameat2(fromDir, from, root, to, unix.RENAME_EXCHANGE) // a method may have taken one away
	}
	for !stop.Load() {
		exchange(root, "d", "dlink")
		exchange(d, "f", "flink")
		exchange(root, "g", "glink")
		exchange(root, "top", "toplink")
		_ = unix.Renameat(top, "n", root, "moved")
		_ = unix.Renameat(root, "moved", top, "n")
	}
}

// unzipped is all that an archive holds.
func unzipped(t *testing.T, raw []byte) []byte {
	r, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Error(err)
		return nil
	}
	var all []byte
	for _, f := range r.File {
		if f.Mode()&os.ModeSymlink != 0 {
			continue // its target is a name of the outside
		}
		if body, err := f.Open(); err == nil {
			data, _ := io.ReadAll(body)
			all = append(all, data...)
		}
	}
	return all
}

func attackTar() []byte {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, name := range []string{"canary", "f", "sub/canary"} {
		if tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 3}) == nil {
			_, _ = io.WriteString(tw, "bad")
		}
	}
	_ = tw.Close()
	return buf.Bytes()
}

// TestARenamingSandboxNeverReachesOutside runs every method against a tree whose
// directories and files turn into links to the outside and back all the time.
func TestARenamingSandboxNeverReachesOutside(t *testing.T) {
	each := 2 * time.Second
	if testing.Short() {
		each = 100 * time.Millisecond
	}
	leaves := []string{"d/canary", "d/f", "g", "d", "top/n/../../d/canary", "d/sub/canary", "top/n/canary", "glink", "dlink/canary"}
	archive := attackTar()
	check := func(t *testing.T, what string, b []byte) {
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s showed the canary", what)
		}
	}
	methods := map[string]func(context.Context, *testing.T, *Workspace, string){
		"open": func(ctx context.Context, t *testing.T, w *Workspace, p string) {
			if r, err := w.Open(ctx, p); err == nil {
				b, _ := io.ReadAll(r)
				check(t, "open "+p, b)
				_ = r.Close()
			}
		},
		"write": func(ctx context.Context, _ *testing.T, w *Workspace, p string) {
			_, _ = w.Write(ctx, p, strings.NewReader("bad"), sandboxd.WriteOptions{Size: 3})
		},
		"append": func(ctx context.Context, _ *testing.T, w *Workspace, p string) {
			_, _ = w.Write(ctx, p, strings.NewReader("bad"), sandboxd.WriteOptions{Size: 3, Append: true})
		},
		"stat": func(ctx context.Context, t *testing.T, w *Workspace, p string) {
			if info, err := w.Stat(ctx, p); err == nil && info.Type == sandboxd.TypeFile && info.Size == int64(len(secret)) {
				t.Errorf("stat %s examined the canary", p)
			}
		},
		"list": func(ctx context.Context, t *testing.T, w *Workspace, _ string) {
			for _, p := range []string{"", "d", "top/n"} {
				l, _ := w.List(ctx, p, sandboxd.ListOptions{Depth: 4})
				for _, e := range l.Entries {
					if strings.HasSuffix(e.Path, "only-outside") {
						t.Errorf("list %s reached %s", p, e.Path)
					}
				}
			}
		},
		"walk": func(ctx context.Context, t *testing.T, w *Workspace, _ string) {
			_, _ = w.Walk(ctx, "", func(i sandboxd.FileInfo) error {
				if strings.HasSuffix(i.Path, "only-outside") {
					t.Errorf("walk reached %s", i.Path)
				}
				return nil
			})
			_, _ = w.Usage(ctx)
		},
		"mkdir": func(ctx context.Context, _ *testing.T, w *Workspace, p string) { _ = w.Mkdir(ctx, p+"/new/newer") },
		"remove": func(ctx context.Context, _ *testing.T, w *Workspace, p string) {
			_ = w.Mkdir(ctx, "top/n/x/y")
			_ = w.Remove(ctx, p)
			_ = w.Remove(ctx, "top/n")
		},
		"rename": func(ctx context.Context, _ *testing.T, w *Workspace, p string) {
			_ = w.Rename(ctx, p, "here")
			_ = w.Rename(ctx, "here", p)
		},
		"tar out": func(ctx context.Context, t *testing.T, w *Workspace, _ string) {
			for _, p := range []string{"", "d"} {
				var buf bytes.Buffer
				_ = w.TarOut(ctx, p, &buf)
				check(t, "tar out", buf.Bytes())
			}
		},
		"zip out": func(ctx context.Context, t *testing.T, w *Workspace, p string) {
			for _, p := range []string{"", "d", p} {
				var buf bytes.Buffer
				if w.ZipOut(ctx, p, &buf) == nil {
					check(t, "zip out", unzipped(t, buf.Bytes()))
				}
			}
		},
		"search": func(ctx context.Context, t *testing.T, w *Workspace, p string) {
			for _, p := range []string{"", "d", p} {
				if r, err := w.Grep(ctx, p, sandboxd.GrepOptions{Pattern: "CANARY"}); err == nil && len(r.Matches) > 0 {
					t.Errorf("grep of %q found %+v", p, r.Matches)
				}
				l, _ := w.Glob(ctx, p, sandboxd.GlobOptions{Pattern: "**/only-outside"})
				for _, e := range l.Entries {
					t.Errorf("glob of %q reached %s", p, e.Path)
				}
			}
		},
		"edit": func(ctx context.Context, t *testing.T, w *Workspace, p string) {
			if _, n, err := w.Edit(ctx, p, sandboxd.Edit{Old: "CANARY", New: "bad", All: true}); err == nil {
				t.Errorf("edit of %s replaced %d", p, n)
			}
			_, _, _ = w.Edit(ctx, p, sandboxd.Edit{Old: "bad", New: "worse", All: true})
		},
		"batch": func(ctx context.Context, t *testing.T, w *Workspace, p string) {
			read, err := w.ReadMany(ctx, []sandboxd.ReadItem{{Path: p}, {Path: p + "/canary"}})
			if err != nil {
				t.Error(err)
			}
			for _, r := range read {
				check(t, "read many "+p, r.Data)
			}
			if _, err := w.WriteMany(ctx, []sandboxd.WriteItem{{Path: p, Data: []byte("bad")}, {Path: p + "/new", Data: []byte("bad")}}); err != nil {
				t.Error(err)
			}
		},
		"upload": func(ctx context.Context, _ *testing.T, w *Workspace, p string) {
			for _, part := range []sandboxd.UploadPart{{ID: "u", Total: 6}, {ID: "u", Offset: 3, Total: 6}} {
				_, _ = w.Upload(ctx, p, part, strings.NewReader("bad"), sandboxd.WriteOptions{Size: 3})
			}
		},
		"watch": func(ctx context.Context, t *testing.T, w *Workspace, p string) {
			for _, p := range []string{"", "d", p} {
				r, err := w.Watch(ctx, p)
				if err != nil {
					continue
				}
				for range 2 {
					soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
					events, _ := r.Next(soon)
					cancel()
					for _, e := range events {
						if strings.HasSuffix(e.Info.Path, "only-outside") || e.Info.Type == sandboxd.TypeFile && e.Info.Size == int64(len(secret)) {
							t.Errorf("watch of %q told of %+v", p, e.Info)
						}
					}
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		},
		"tar in": func(ctx context.Context, _ *testing.T, w *Workspace, _ string) {
			for _, p := range []string{"", "d", "top/n"} {
				_, _ = w.TarIn(ctx, p, bytes.NewReader(archive), sandboxd.TarLimits{})
			}
		},
	}
	for name, method := range methods {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorkspace(t)
			outside := t.TempDir()
			for _, p := range []string{"canary", "f", "sub/canary", "only-outside"} {
				plantFile(t, filepath.Join(outside, p), secret)
			}
			before := snapshot(t, outside)
			plant := func() {
				for _, p := range []string{"d/f", "d/sub/x", "g", "top/n/x"} {
					path := filepath.Join(dir, p)
					_ = os.MkdirAll(filepath.Dir(path), 0o755)
					if f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|os.O_EXCL, 0o644); err == nil {
						_ = f.Close()
					}
				}
				for link, target := range map[string]string{"dlink": outside, "flink": outside + "/canary", "glink": outside + "/canary", "toplink": "../../../../../../../../.." + outside} {
					_ = os.Symlink(target, filepath.Join(dir, link))
				}
			}
			plant()
			var stop atomic.Bool
			var wg sync.WaitGroup
			fds := map[string]int{}
			for _, p := range []string{".", "d", "top"} {
				fd, err := unix.Open(filepath.Join(dir, p), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				fds[p] = fd
			}
			wg.Go(func() { flip(fds["."], fds["d"], fds["top"], &stop) })
			calls := 0
			for end := time.Now().Add(each); time.Now().Before(end) && !t.Failed(); {
				for _, p := range leaves {
					method(t.Context(), t, w, p)
					calls++
				}
			}
			stop.Store(true)
			wg.Wait()
			if after := snapshot(t, outside); after != before {
				t.Errorf("the outside changed:\n%s\n%s", before, after)
			}
			t.Logf("%d calls", calls)
		})
	}
}

func plantFile(t testing.TB, path, body string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
}

// snapshot tells everything about a tree that an attack could change.
func snapshot(t testing.TB, dir string) string {
	t.Helper()
	var s strings.Builder
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		s.WriteString(strings.Join([]string{p, etagOf(&st), time.Unix(st.Ctim.Unix()).String()}, " "))
		if st.Uid != uint32(os.Geteuid()) {
			s.WriteString(" owned by another")
		}
		if d.Type().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			s.Write(b)
		}
		s.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.String()
}
