package workspace

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	wst "sandboxd/internal/workspace/workspacetest"
)

func testRoot(t *testing.T) (*Root, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "workspaces")
	r, err := OpenRoot(dir, filepath.Join(filepath.Dir(dir), "trash"))
	if err != nil {
		t.Fatal(err)
	}
	return r, dir
}

func testMeta(key string) Meta {
	uid := uint32(os.Geteuid())
	if uid == 0 {
		uid = sandboxUID
	}
	return Meta{ID: sandboxd.NewID(), Key: key, UID: uid, CreatedAt: time.Unix(1e9, 5).UTC(), Runtime: "machine", Driver: "process",
		Limits: sandboxd.DefaultLimits(), Labels: map[string]string{"a": "b"}}
}

func TestLifeOfAKey(t *testing.T) {
	r, dir := testRoot(t)
	meta := testMeta("trash") // keys that look like the layout's own names are keys
	for range 2 {
		if err := r.Create(meta); err != nil {
			t.Fatal(err)
		}
	}
	other := testMeta("trash")
	wst.WantClass(t, "create with another id", r.Create(other), sandboxd.ClassConflict)
	if got, err := r.ReadMeta("trash"); err != nil || !reflect.DeepEqual(got, meta) {
		t.Errorf("read %+v, %v; want %+v", got, err, meta)
	}
	if r.HasHome("trash") {
		t.Error("it has a home before its first environment")
	}
	if err := r.MakeHome(t.Context(), "trash", meta.ID, meta.UID, nil); err != nil || !r.HasHome("trash") {
		t.Fatal(err)
	}
	ws, home := r.Dirs("trash")
	for p, mode := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "trash"): 0o700, ws: 0o755, home: 0o700, filepath.Join(dir, "trash", metaFile): 0o600} {
		if st, err := os.Stat(p); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %v", p, st, err, mode)
		}
	}
	if ownerOf(t, ws) != meta.UID || ownerOf(t, home) != meta.UID {
		t.Error("the directories do not belong to the sandbox")
	}
	f, err := r.Files("trash", meta.UID)
	if err != nil {
		t.Fatal(err)
	}
	wst.Put(t, f, "a/b", "x")
	left := filepath.Join(ws, "a", tempPrefix+"left")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.SweepTemp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(left); err == nil {
		t.Error("not swept")
	}
	// As a power cut may leave it.
	if err := os.Truncate(filepath.Join(dir, "trash", metaFile), 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Create(meta); err != nil || !r.Exists("trash", meta.ID) {
		t.Errorf("a damaged record is not written anew: %v", err)
	}
	if metas, err := r.Metas(); err != nil || len(metas) != 1 || !reflect.DeepEqual(metas[0], meta) {
		t.Errorf("metas %+v, %v", metas, err)
	}
	if err := r.Trash("trash", other.ID); err != nil || !r.Exists("trash", meta.ID) {
		t.Errorf("trashing another id: %v", err)
	}
	for range 2 {
		if err := r.Trash("trash", meta.ID); err != nil {
			t.Fatal(err)
		}
	}
	if r.Exists("trash", meta.ID) {
		t.Error("it exists after Trash")
	}
	_, err = f.Open(t.Context(), "a/b")
	wst.WantClass(t, "open after Trash", err, sandboxd.ClassGone)
	if err := r.Create(other); err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(t.Context(), "a/b", strings.NewReader("x"), sandboxd.WriteOptions{Size: -1})
	wst.WantClass(t, "write into the next life", err, sandboxd.ClassGone)
	if err := r.EmptyTrash(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(filepath.Dir(dir), "trash")); err != nil || len(left) != 0 {
		t.Errorf("the trash has %v, %v", left, err)
	}
	if !r.Exists("trash", other.ID) {
		t.Error("emptying the trash took a living workspace")
	}
}

// TestProveOwners: root may give files to every user of a pool, an ordinary user to
// nobody but itself, and root of a user namespace with a hole not to the one user
// who is missing. The last two are shown by this test run again as those.
func TestProveOwners(t *testing.T) {
	const dirOf, firstOf = "SANDBOXD_TEST_OWNERS_DIR", "SANDBOXD_TEST_OWNERS_FIRST"
	if dir := os.Getenv(dirOf); dir != "" {
		first, err := strconv.Atoi(os.Getenv(firstOf))
		if err != nil {
			t.Fatal(err)
		}
		r, err := OpenRoot(dir, filepath.Join(filepath.Dir(dir), "trash"))
		if err != nil {
			t.Fatal(err)
		}
		pool := sandboxd.UIDPool{First: uint32(first), Last: uint32(first) + 4}
		one := sandboxd.UIDPool{First: pool.First, Last: pool.First}
		if err := r.ProveOwners(one); err != nil {
			t.Errorf("to the first: %v", err)
		}
		wst.WantClass(t, "to each", r.ProveOwners(pool), sandboxd.ClassUnavailable)
		left, err := os.ReadDir(filepath.Join(filepath.Dir(dir), "trash"))
		if err != nil || len(left) != 0 {
			t.Errorf("the proof left %v, %v", left, err)
		}
		return
	}
	captest.Root(t)
	r, _ := testRoot(t)
	began := time.Now()
	if err := r.ProveOwners(sandboxd.UIDPool{First: 200000, Last: 265535}); err != nil {
		t.Errorf("root: %v", err)
	}
	t.Logf("65536 users in %v", time.Since(began))

	// The test's own program may lie where only root reaches it.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	const first, hole = 200000, 200002
	holed := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: first, HostID: first, Size: hole - first},
		{ContainerID: hole + 1, HostID: hole + 1, Size: 100}}
	for _, as := range []struct {
		name  string
		owner int
		first int
		attr  *syscall.SysProcAttr
	}{
		{"an ordinary user", sandboxUID, sandboxUID, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: sandboxUID, Gid: sandboxUID}}},
		{"root of a namespace with a hole", 0, first, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: holed, GidMappings: holed}},
	} {
		t.Run(as.name, func(t *testing.T) {
			if as.attr.Cloneflags != 0 {
				// A kernel allows none where the root is a chroot's.
				probe := exec.Command("true")
				probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: as.attr.Cloneflags}
				err := probe.Run()
				captest.Need(t, "userns", err == nil, fmt.Sprint("no user namespace can be made: ", err))
			}
			// Below the temporary directory itself: those of a test are root's alone.
			dir, err := os.MkdirTemp("", "owners-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Chown(dir, as.owner, as.owner); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/fd/3", "-test.run=^TestProveOwners$", "-test.v")
			cmd.ExtraFiles = []*os.File{self}
			cmd.Dir = "/"
			cmd.Env = []string{dirOf + "=" + filepath.Join(dir, "workspaces"), firstOf + "=" + strconv.Itoa(as.first)}
			cmd.SysProcAttr = as.attr
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestProveOwners") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestDamagedRecordsDoNotHideTheOthers(t *testing.T) {
	r, dir := testRoot(t)
	for _, key := range []string{"b", "a", "broken"} {
		if err := r.Create(testMeta(key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "broken", metaFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	metas, err := r.Metas()
	if err == nil || len(metas) != 2 || metas[0].Key != "a" || metas[1].Key != "b" {
		t.Errorf("metas %+v, %v", metas, err)
	}
	_, err = r.ReadMeta("none")
	wst.WantClass(t, "read of nothing", err, sandboxd.ClassNotFound)
	for _, key := range []string{"", "..", "a/b", "-x"} {
		m := testMeta(key)
		wst.WantClass(t, "create "+key, r.Create(m), sandboxd.ClassInvalid)
		if ws, home := r.Dirs(key); ws != "" || home != "" {
			t.Errorf("%q has the directories %q and %q", key, ws, home)
		}
	}
}

func TestOfManyCreatesOneWins(t *testing.T) {
	r, _ := testRoot(t)
	var wg sync.WaitGroup
	won := make([]bool, 10)
	metas := make([]Meta, len(won))
	for i := range won {
		metas[i] = testMeta("k")
		wg.Go(func() { won[i] = r.Create(metas[i]) == nil })
	}
	wg.Wait()
	n := 0
	for i, w := range won {
		if w {
			n++
			if !r.Exists("k", metas[i].ID) {
				t.Error("the winner's record is not there")
			}
		}
	}
	if n != 1 {
		t.Errorf("%d winners", n)
	}
}

// A directory that another service filled is refused as it is.
func TestADirectoryOfOthers(t *testing.T) {
	for name, made := range map[string]string{"another's": "", "a file system's": "lost+found", "a host's": "key"} {
		dir := filepath.Join(t.TempDir(), "root")
		trash := filepath.Join(dir, "~trash")
		entry := filepath.Join(dir, cmp.Or(made, "chat-1"))
		if err := os.MkdirAll(filepath.Join(entry, "workspace"), 0o755); err != nil {
			t.Fatal(err)
		}
		if made == "key" {
			if err := os.WriteFile(filepath.Join(entry, metaFile), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := OpenRoot(dir, trash)
		if (err != nil) != (made == "") {
			t.Errorf("%s directory: %v", name, err)
		}
		if made != "" {
			continue
		}
		info, statErr := os.Stat(dir)
		if _, err := os.Lstat(trash); statErr != nil || info.Mode().Perm() != 0o755 || err == nil {
			t.Errorf("what was refused is %v, %v; its trash: %v", info, statErr, err)
		}
		if sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			t.Errorf("refused with %v", err)
		}
	}
}
