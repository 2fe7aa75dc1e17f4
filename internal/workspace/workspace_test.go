package workspace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/captest"
	wst "sandboxd/internal/workspace/workspacetest"
)

const sandboxUID = 231999

// newWorkspace is an empty workspace, of another uid where the test may do that.
func newWorkspace(t testing.TB) (*Workspace, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ws")
	uid := uint32(os.Geteuid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if uid == 0 {
		uid = sandboxUID
		if err := os.Chown(dir, sandboxUID, sandboxUID); err != nil {
			t.Fatal(err)
		}
	}
	w, err := New(dir, uid)
	if err != nil {
		t.Fatal(err)
	}
	return w, dir
}

func TestContract(t *testing.T) {
	wst.Run(t, func(t testing.TB) wst.Harness {
		w, dir := newWorkspace(t)
		return wst.Harness{Files: w, Plant: func(t testing.TB, target, name string) {
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}}
	})
}

func ownerOf(t testing.TB, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

func TestEverythingMadeBelongsToTheSandbox(t *testing.T) {
	captest.Root(t)
	w, dir := newWorkspace(t)
	wst.Put(t, w, "a/b/f", "x")
	if err := w.Mkdir(t.Context(), "m/n"); err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(t.TempDir(), "x.tar")
	writeTar(t, src, 3)
	f, err := os.Open(src)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := w.TarIn(t.Context(), "tar", f, sandboxd.TarLimits{}); err != nil {
		t.Fatal(err)
	}
	n := 0
	err = filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if n++; ownerOf(t, p) != sandboxUID {
			t.Errorf("%s belongs to %d", p, ownerOf(t, p))
		}
		return err
	})
	if err != nil || n < 10 {
		t.Errorf("%d entries, %v", n, err)
	}
}

func TestTheHostsFilesAreNeverGivenAwayOrAppendedTo(t *testing.T) {
	captest.Root(t)
	w, dir := newWorkspace(t)
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(canary, filepath.Join(dir, "hard")); err != nil {
		t.Fatal(err)
	}
	_, err := w.Write(t.Context(), "hard", strings.NewReader("x"), sandboxd.WriteOptions{Append: true, Size: -1})
	wst.WantClass(t, "append to a hard link of the host's", err, sandboxd.ClassForbidden)
	wst.Put(t, w, "hard", "replaced")
	if b, err := os.ReadFile(canary); err != nil || string(b) != "canary" || ownerOf(t, canary) != 0 {
		t.Errorf("the canary is %q of %d, %v", b, ownerOf(t, canary), err)
	}
}

func TestTempNamesAreHiddenAndSwept(t *testing.T) {
	w, dir := newWorkspace(t)
	wst.Put(t, w, "d/f", "x")
	for _, p := range []string{tempPrefix + "a", "d/" + tempPrefix + "b"} {
		if err := os.WriteFile(filepath.Join(dir, p), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := w.List(t.Context(), "", sandboxd.ListOptions{Depth: 3})
	if err != nil || len(l.Entries) != 2 {
		t.Errorf("listed %+v, %v", l.Entries, err)
	}
	if u, err := w.Usage(t.Context()); err != nil || u.Entries != 2 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if err := w.SweepTemp(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", tempPrefix+"*"))
	if _, statErr := os.Lstat(filepath.Join(dir, tempPrefix+"a")); err != nil || len(left) != 0 || statErr == nil {
		t.Errorf("not swept: %v, %v, %v", left, err, statErr)
	}
	if wst.Get(t, w, "d/f") != "x" {
		t.Error("swept too much")
	}
}

func TestNothingBlocksOnAFIFOSocketOrDevice(t *testing.T) {
	w, dir := newWorkspace(t)
	kinds := map[string]uint32{"fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK}
	if os.Geteuid() == 0 {
		kinds["device"] = unix.S_IFCHR
	}
	for name, kind := range kinds {
		dev := 0
		if kind == unix.S_IFCHR {
			dev = int(unix.Mkdev(5, 0)) // /dev/tty
		}
		if err := unix.Mknod(filepath.Join(dir, name), kind|0o666, dev); err != nil {
			captest.Need(t, "mknod", false, err.Error())
		}
		_, err := w.Open(t.Context(), name)
		wst.WantClass(t, "open "+name, err, sandboxd.ClassInvalid)
		for _, add := range []bool{false, true} {
			_, err = w.Write(t.Context(), name, strings.NewReader("x"), sandboxd.WriteOptions{Append: add, Size: -1})
			wst.WantClass(t, "write "+name, err, sandboxd.ClassInvalid)
		}
		_, _, err = w.Edit(t.Context(), name, sandboxd.Edit{Old: "a", New: "b"})
		wst.WantClass(t, "edit "+name, err, sandboxd.ClassInvalid)
		_, err = w.Grep(t.Context(), name, sandboxd.GrepOptions{Pattern: "a"})
		wst.WantClass(t, "grep "+name, err, sandboxd.ClassInvalid)
		_, err = w.Watch(t.Context(), name)
		wst.WantClass(t, "watch "+name, err, sandboxd.ClassInvalid)
		_, err = w.Upload(t.Context(), name, sandboxd.UploadPart{ID: "u", Total: 1}, strings.NewReader("x"), sandboxd.WriteOptions{Size: 1})
		wst.WantClass(t, "upload "+name, err, sandboxd.ClassInvalid)
		if info, err := w.Stat(t.Context(), name); err != nil || info.Type != sandboxd.TypeOther {
			t.Errorf("stat %s: %+v, %v", name, info, err)
		}
	}
	if err := w.TarOut(t.Context(), "", &strings.Builder{}); err != nil {
		t.Errorf("tar out: %v", err)
	}
	if err := w.ZipOut(t.Context(), "", &strings.Builder{}); err != nil {
		t.Errorf("zip out: %v", err)
	}
	if r, err := w.Grep(t.Context(), "", sandboxd.GrepOptions{Pattern: "a"}); err != nil || r.Files != 0 {
		t.Errorf("grep: %+v, %v", r, err)
	}
	if l, err := w.Glob(t.Context(), "", sandboxd.GlobOptions{Pattern: "*"}); err != nil || len(l.Entries) != len(kinds) {
		t.Errorf("glob: %+v, %v", l, err)
	}
}

func TestAMountInsideIsOutside(t *testing.T) {
	captest.Root(t)
	w, dir := newWorkspace(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "canary"), []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	wst.Put(t, w, "d/mnt/x", "x")
	at := filepath.Join(dir, "d/mnt")
	err := unix.Mount(outside, at, "", unix.MS_BIND, "")
	captest.Need(t, "mount", err == nil, fmt.Sprint(err))
	mounted := at
	t.Cleanup(func() {
		if err := unix.Unmount(mounted, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	_, err = w.Open(t.Context(), "d/mnt/canary")
	wst.WantClass(t, "open", err, sandboxd.ClassForbidden)
	_, err = w.Write(t.Context(), "d/mnt/new", strings.NewReader(""), sandboxd.WriteOptions{Size: -1})
	wst.WantClass(t, "write", err, sandboxd.ClassForbidden)
	wst.WantClass(t, "remove below", w.Remove(t.Context(), "d/mnt/canary"), sandboxd.ClassForbidden)
	if u, err := w.Usage(t.Context()); err != nil || !u.Incomplete {
		t.Errorf("usage %+v, %v", u, err)
	}
	if err := w.Remove(t.Context(), "d"); err == nil {
		t.Error("a tree with a mount was removed")
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "*", "mnt")); len(found) == 0 {
		found, _ = filepath.Glob(filepath.Join(dir, tempPrefix+"*", "mnt"))
		if len(found) == 1 {
			mounted = found[0]
		}
	} else {
		mounted = found[0]
	}
	if _, err := os.Stat(filepath.Join(outside, "canary")); err != nil {
		t.Errorf("the mounted files are gone: %v", err)
	}
}

func TestAFullDiskLeavesNothingHalfWritten(t *testing.T) {
	captest.Root(t)
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m")
	captest.Need(t, "mount", err == nil, fmt.Sprint(err))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	w, err := New(dir, sandboxUID)
	if err != nil {
		t.Fatal(err)
	}
	wst.Put(t, w, "f", "old")
	big := strings.Repeat("x", 2<<20)
	for _, opts := range []sandboxd.WriteOptions{{Size: -1}, {Size: 2 << 20}, {Size: -1, Append: true}} {
		_, err := w.Write(t.Context(), "f", strings.NewReader(big), opts)
		wst.WantClass(t, fmt.Sprintf("write %+v", opts), err, sandboxd.ClassNoSpace)
	}
	// The body fits beside the file once, but not both in the file and beside it.
	_, err = w.Write(t.Context(), "f", strings.NewReader(big[:700<<10]), sandboxd.WriteOptions{Size: -1, Append: true})
	wst.WantClass(t, "append", err, sandboxd.ClassNoSpace)
	if got := wst.Get(t, w, "f"); got != "old" {
		t.Errorf("the file has %d bytes", len(got))
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestASandboxCannotHideFilesBehindTempNames(t *testing.T) {
	captest.Root(t)
	w, dir := newWorkspace(t)
	p := filepath.Join(dir, tempPrefix+"mine")
	if err := os.WriteFile(p, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(p, sandboxUID, sandboxUID); err != nil {
		t.Fatal(err)
	}
	if u, err := w.Usage(t.Context()); err != nil || u.Entries != 1 {
		t.Errorf("usage %+v, %v", u, err)
	}
	if err := w.Remove(t.Context(), tempPrefix+"mine"); err != nil {
		t.Errorf("remove: %v", err)
	}
}

// TestRemoveOfATreeThatIsRefilled plays the sandbox as the user it is: a process
// of another uid keeps making files in a tree while that is removed.
func TestRemoveOfATreeThatIsRefilled(t *testing.T) {
	captest.Root(t)
	w, dir := newWorkspace(t)
	for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	wst.Put(t, w, "t/sub/f", "x")
	cmd := exec.Command("/bin/sh", "-c", "cd t/sub && echo ready && i=0 && while :; do i=$((i+1)); : > f$i || exit 0; mkdir d$i; : > ../g$i; done")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: sandboxUID, Gid: sandboxUID}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove(t.Context(), "t"); err != nil {
		t.Errorf("remove: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
