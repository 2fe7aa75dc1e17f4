package workspace

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	wst "sandboxd/internal/workspace/workspacetest"
)

// writeTar makes an archive of n small files in directories of 100.
func writeTar(t testing.TB, path string, n int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tw := tar.NewWriter(f)
	body := strings.Repeat("x", 1000)
	for i := range n {
		if i%100 == 0 {
			if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/", i/100), Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Unix(1e9, 0)}); err != nil {
				t.Fatal(err)
			}
		}
		h := &tar.Header{Name: fmt.Sprintf("d%d/f%d", i/100, i), Mode: 0o644, Size: int64(len(body)), ModTime: time.Unix(1e9, 0)}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkTarIn10000(b *testing.B) {
	src := filepath.Join(b.TempDir(), "x.tar")
	writeTar(b, src, 10_000)
	w, dir := newWorkspace(b)
	b.Run("workspace", func(b *testing.B) {
		for i := range b.N {
			f, err := os.Open(src)
			if err != nil {
				b.Fatal(err)
			}
			to := fmt.Sprint("w", i)
			if _, err := w.TarIn(b.Context(), to, f, sandboxd.TarLimits{}); err != nil {
				b.Fatal(err)
			}
			_ = f.Close()
			b.StopTimer()
			_ = os.RemoveAll(filepath.Join(dir, to))
			b.StartTimer()
		}
	})
	b.Run("tar", func(b *testing.B) {
		if _, err := exec.LookPath("tar"); err != nil {
			captest.Need(b, "tar", false, err.Error())
		}
		for i := range b.N {
			to := filepath.Join(dir, fmt.Sprint("t", i))
			if err := os.Mkdir(to, 0o755); err != nil {
				b.Fatal(err)
			}
			if out, err := exec.Command("tar", "-x", "--no-same-owner", "-f", src, "-C", to).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			b.StopTimer()
			_ = os.RemoveAll(to)
			b.StartTimer()
		}
	})
}

func BenchmarkWrite1KiB(b *testing.B) {
	w, dir := newWorkspace(b)
	body := strings.Repeat("x", 1024)
	for _, synced := range []bool{false, true} {
		b.Run(fmt.Sprintf("workspace/synced=%v", synced), func(b *testing.B) {
			for range b.N {
				if _, err := w.Write(b.Context(), "f", strings.NewReader(body), sandboxd.WriteOptions{Size: 1024, Synced: synced}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("bare/synced=%v", synced), func(b *testing.B) {
			for range b.N {
				f, err := os.CreateTemp(dir, "bare")
				if err != nil {
					b.Fatal(err)
				}
				_, err = f.WriteString(body)
				if err == nil {
					err = f.Chown(int(w.owner), int(w.owner))
				}
				if err == nil && synced {
					err = f.Sync()
				}
				if err == nil {
					err = f.Close()
				}
				if err == nil {
					err = os.Rename(f.Name(), filepath.Join(dir, "g"))
				}
				if err == nil && synced {
					d, openErr := os.Open(dir)
					if openErr != nil {
						b.Fatal(openErr)
					}
					err = d.Sync()
					_ = d.Close()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWriteRead8MiB(b *testing.B) {
	w, _ := newWorkspace(b)
	body := strings.Repeat("x", 8<<20)
	b.SetBytes(8 << 20)
	for range b.N {
		wst.Put(b, w, "f", body)
		if len(wst.Get(b, w, "f")) != len(body) {
			b.Fatal("short")
		}
	}
}

func TestRemoveOfALargeTree(t *testing.T) {
	w, dir := newWorkspace(t)
	for d := range 40 {
		at := filepath.Join(dir, fmt.Sprintf("t/%d", d))
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range 1000 {
			if err := os.WriteFile(filepath.Join(at, fmt.Sprint(f)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	start := time.Now()
	if err := w.Remove(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("removing 40,000 files took %s", took)
	} else {
		t.Logf("removed 40,000 files in %s", took)
	}
}
