package workspace

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
	wst "sandboxd/internal/workspace/workspacetest"
)

// idle fails the test unless nothing is watched any more.
func idle(t *testing.T) {
	t.Helper()
	if n, m := watching.watchers.Load(), watching.watches.Load(); n != 0 || m != 0 {
		t.Errorf("%d watchers and %d watches are left", n, m)
	}
}

// descriptors counts what this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// crowd makes n directories in one.
func crowd(t *testing.T, dir string, n int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for i := range n {
		if err := unix.Mkdirat(fd, fmt.Sprint(i), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAWatchOfTooManyDirectoriesIsRefused(t *testing.T) {
	w, dir := newWorkspace(t)
	many := 100_000
	if testing.Short() {
		many = sandboxd.WatchDirs + 10
	}
	crowd(t, dir, many)
	before := descriptors(t)
	began := time.Now()
	_, err := w.Watch(t.Context(), "")
	wst.WantClass(t, "a watch of 100,000 directories", err, sandboxd.ClassTooLarge)
	t.Logf("refused after %v: %v", time.Since(began), err)
	idle(t)
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestATreeThatGrowsTooLargeEndsItsWatch(t *testing.T) {
	w, dir := newWorkspace(t)
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := w.Watch(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	crowd(t, filepath.Join(dir, "d"), sandboxd.WatchDirs)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for err == nil {
		_, err = r.Next(ctx)
	}
	wst.WantClass(t, "a tree that grew", err, sandboxd.ClassTooLarge)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	idle(t)
}

// told follows a watcher until it told of path.
func told(t *testing.T, r sandboxd.Watcher, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		events, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Info.Path == path {
				return
			}
		}
	}
}

// until asks for a change again and again, because a resync swallows what came
// before it.
func until(t *testing.T, w *Workspace, r sandboxd.Watcher, path string) {
	t.Helper()
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			wst.Put(t, w, path, "x")
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	told(t, r, path)
	close(done)
	<-stopped
}

func TestTooManyChangesAreOneResync(t *testing.T) {
	w, dir := newWorkspace(t)
	r, err := w.Watch(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()

	// A reader that does not read.
	for i := range 2 * maxPending {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	resynced(t, r)
	until(t, w, r, "after")

	// A kernel that drops events, because nobody takes them: all turns are taken.
	for range cap(turns) {
		turns <- struct{}{}
	}
	for i := range 40_000 {
		if err := os.Chmod(filepath.Join(dir, fmt.Sprint("f", i%(2*maxPending))), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	crowd(t, dir, 50)
	for range cap(turns) {
		<-turns
	}
	resynced(t, r)
	// Directories whose making was dropped are watched all the same.
	until(t, w, r, "49/again")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	idle(t)
}

// resynced waits for a resync.
func resynced(t *testing.T, r sandboxd.Watcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		events, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == sandboxd.ChangeResync {
				return
			}
		}
	}
}

// A sandbox that moves its directories about keeps one watcher busy, and no more
// than its share of the machine.
func TestMovingTreesAboutKeepsTheWatchRight(t *testing.T) {
	w, dir := newWorkspace(t)
	wst.Put(t, w, "a/b/c/f", "x")
	wst.Put(t, w, "z/keep", "x")
	r, err := w.Watch(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 500 {
		for _, move := range [][2]string{{"a/b", "z/b"}, {"z/b", "a/b"}, {"a", "q"}, {"q", "a"}} {
			if err := os.Rename(filepath.Join(dir, move[0]), filepath.Join(dir, move[1])); err != nil {
				t.Fatal(err)
			}
		}
	}
	until(t, w, r, "a/b/c/f")
	until(t, w, r, "z/keep")
	for range 101 {
		if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "a"), unix.AT_FDCWD, filepath.Join(dir, "z"), unix.RENAME_EXCHANGE); err != nil {
			t.Fatal(err)
		}
	}
	until(t, w, r, "z/b/c/f")
	until(t, w, r, "a/keep")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	idle(t)
}

// What is forgotten is what a look through all paths would find, whatever came before.
func TestAWatchForgetsWhatIsBelow(t *testing.T) {
	w, dir := newWorkspace(t)
	top, err := beneath.OpenTrusted(dir)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := newWatchTree(w, top, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	path := func() string {
		var names []string
		for range random.IntN(5) {
			names = append(names, string(rune('a'+random.IntN(3))))
		}
		return strings.Join(names, "/")
	}
	want := map[string]int{}
	for step := range 20_000 {
		p := path()
		switch random.IntN(8) {
		case 0:
			tree.forget(p)
			for dir := range want {
				if dir == p || p == "" || strings.HasPrefix(dir, p+"/") {
					delete(want, dir)
				}
			}
		case 1:
			if num, ok := want[p]; ok {
				tree.drop(num, p)
				delete(want, p)
			}
		default:
			num := random.IntN(60)
			if err := tree.know(num, p); err != nil {
				t.Fatal(err)
			}
			for dir, n := range want {
				if n == num {
					delete(want, dir)
				}
			}
			want[p] = num
		}
		if !maps.Equal(tree.nums, want) {
			t.Fatalf("step %d: %v, want %v", step, tree.nums, want)
		}
	}
	tree.forget("")
	if len(tree.nums)+len(tree.subs) != 0 {
		t.Errorf("left: %v, %v", tree.nums, tree.subs)
	}
	if err := tree.file.Close(); err != nil {
		t.Error(err)
	}
	tree.close()
	idle(t)
}

// What is watched moves away with everything above it.
func TestAMovedWorkspaceEndsItsWatch(t *testing.T) {
	root, err := OpenRoot(Places(t.TempDir(), ""))
	if err != nil {
		t.Fatal(err)
	}
	meta := Meta{ID: sandboxd.NewID(), Key: "k", UID: uint32(os.Geteuid())}
	if err := root.Create(meta); err != nil {
		t.Fatal(err)
	}
	w, err := root.Files("k", meta.UID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Mkdir(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	r, err := w.Watch(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := root.Trash("k", meta.ID); err != nil { // nothing is removed yet
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for err == nil {
		_, err = r.Next(ctx)
	}
	wst.WantClass(t, "a workspace in the trash", err, sandboxd.ClassGone)
	_, err = w.Watch(t.Context(), "d")
	wst.WantClass(t, "a watch of it", err, sandboxd.ClassGone)
}

func TestTheBudgetOfAllWatchersIsOne(t *testing.T) {
	w, dir := newWorkspace(t)
	crowd(t, dir, 100)
	watching.watches.Add(allWatches - 50)
	_, err := w.Watch(t.Context(), "")
	watching.watches.Add(50 - allWatches)
	wst.WantClass(t, "beyond the budget", err, sandboxd.ClassCapacity)
	idle(t)
}
