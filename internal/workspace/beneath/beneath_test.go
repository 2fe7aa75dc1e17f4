package beneath

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd"
)

func TestLinksThatStayAndLinksThatLeave(t *testing.T) {
	base := t.TempDir()
	in := filepath.Join(base, "in")
	for p, body := range map[string]string{"canary": "canary", "in/real/f": "body", "in/sub/x": "x", "in/outside": "inner"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(base, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, p), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"abs": "/workspace/real/f", "absdir": "/workspace/real", "twice": "absdir/../abs", "rel": "sub/../real/f",
		"up": "../canary", "sub/up": "..", "sub/up2": "../..", "host": base + "/canary", "proc": "/proc/self/root/etc/passwd",
		"loop": "loop2", "loop2": "loop", "absloop": "/workspace/absloop", "dangling": "nowhere", "absdangling": "/workspace/nowhere",
		"work": "/workspace", "lookalike": "/workspaces/x", "climb": "/workspace/sub/../../canary", "slash": "/",
	} {
		if err := os.Symlink(target, filepath.Join(in, link)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := OpenTrusted(in)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for path, want := range map[string]string{
		"abs": "body", "absdir/f": "body", "twice": "body", "rel": "body", "work/absdir/f": "body", "work/work/abs": "body",
		"sub/up/outside": "inner", "up": "", "sub/up2/canary": "", "host": "", "proc": "", "lookalike": "", "climb": "", "slash/etc/passwd": "",
	} {
		fd, _, err := root.Open(path, unix.O_RDONLY)
		if want == "" {
			if err == nil || sandboxd.ClassOf(err) != sandboxd.ClassForbidden {
				t.Errorf("%s: %v; want forbidden", path, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		f := os.NewFile(uintptr(fd), path)
		if b, err := io.ReadAll(f); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
		_ = f.Close()
	}
	for path, class := range map[string]sandboxd.Class{
		"loop": sandboxd.ClassInvalid, "absloop": sandboxd.ClassInvalid, "dangling": sandboxd.ClassNotFound,
		"absdangling": sandboxd.ClassNotFound, "abs/x": sandboxd.ClassNotFound, "nothing": sandboxd.ClassNotFound,
	} {
		if _, _, err := root.Open(path, unix.O_RDONLY); err == nil || sandboxd.ClassOf(err) != class {
			t.Errorf("%s: %v; want %s", path, err, class)
		}
	}
	for _, path := range []string{"absdir/f", "rel", "sub/up/outside"} {
		if _, _, err := root.OpenStrict(path, unix.O_RDONLY); err == nil {
			t.Errorf("%s opened strictly", path)
		}
	}
	before := countFDs(t)
	for range 10 {
		if fd, _, err := root.Open("work/twice", unix.O_RDONLY); err == nil {
			_ = unix.Close(fd)
		}
		_, _, _ = root.Open("absloop", unix.O_RDONLY)
	}
	if after := countFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
