package workspace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	wst "sandboxd/internal/workspace/workspacetest"
)

// piece sends "abc" of a file of 6 bytes at an offset.
func piece(t *testing.T, w *Workspace, id string, offset int64) (sandboxd.UploadState, error) {
	t.Helper()
	return w.Upload(t.Context(), "f", sandboxd.UploadPart{ID: id, Offset: offset, Total: 6}, strings.NewReader("abc"), sandboxd.WriteOptions{Size: 3})
}

// parts are the files of unfinished uploads.
func parts(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, uploadPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestUploadsOutliveTheServerForAnHour(t *testing.T) {
	w, dir := newWorkspace(t)
	for _, id := range []string{"young", "old"} {
		if state, err := piece(t, w, id, 0); err != nil || state.Received != 3 {
			t.Fatalf("%+v, %v", state, err)
		}
	}
	if err := os.Chtimes(filepath.Join(dir, uploadName("old", "f")), time.Time{}, time.Now().Add(-uploadIdle-time.Minute)); err != nil {
		t.Fatal(err)
	}
	next, err := New(dir, w.owner)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.SweepTemp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := piece(t, next, "old", 3); sandboxd.ClassOf(err) != sandboxd.ClassRange {
		t.Errorf("an upload that waited too long goes on: %v", err)
	}
	if state, err := piece(t, next, "young", 3); err != nil || !state.Complete || wst.Get(t, next, "f") != "abcabc" {
		t.Errorf("after the restart: %+v, %v", state, err)
	}
	if left := parts(t, dir); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

func TestUploadsThatGetNothingAreDropped(t *testing.T) {
	w, dir := newWorkspace(t)
	now := time.Now()
	w.uploads.now = func() time.Time { return now }
	for i := range maxUploads {
		if _, err := piece(t, w, fmt.Sprint(i), 0); err != nil {
			t.Fatal(err)
		}
	}
	_, err := piece(t, w, "more", 0)
	wst.WantClass(t, "one more", err, sandboxd.ClassCapacity)
	now = now.Add(uploadIdle - time.Second)
	if _, err := piece(t, w, "3", 0); err != nil {
		t.Error(err)
	}
	w.dropIdle(t.Context())
	if n := len(parts(t, dir)); n != maxUploads {
		t.Errorf("%d are left before their time", n)
	}
	now = now.Add(2 * time.Second)
	w.dropIdle(t.Context())
	if n := len(parts(t, dir)); n != 1 || len(w.uploads.known) != 1 {
		t.Errorf("%d are left, %d known", n, len(w.uploads.known))
	}
	if state, err := piece(t, w, "3", 3); err != nil || !state.Complete {
		t.Errorf("the one in use: %+v, %v", state, err)
	}
	// A wrong offset leaves nothing behind, in memory neither.
	if _, err := piece(t, w, "x", 3); sandboxd.ClassOf(err) != sandboxd.ClassRange || len(w.uploads.known) != 0 {
		t.Errorf("%v, %d known", err, len(w.uploads.known))
	}
}

// A sandbox can remove the file of an upload and put something else there. It wins
// nothing: no byte goes to what it planted, and none of it becomes the file.
func TestWhatIsPutInThePlaceOfAnUploadIsNotUsed(t *testing.T) {
	captest.Root(t)
	for name, plant := range map[string]func(string) error{
		"a file": func(at string) error {
			if err := os.WriteFile(at, []byte("EVIL"), 0o600); err != nil {
				return err
			}
			return os.Chown(at, sandboxUID, sandboxUID)
		},
		"a link":      func(at string) error { return os.Symlink("/etc/passwd", at) },
		"a hard link": func(at string) error { return os.Link(filepath.Join(filepath.Dir(at), "own"), at) },
		"nothing":     func(string) error { return nil },
	} {
		w, dir := newWorkspace(t)
		wst.Put(t, w, "own", "EVIL")
		if _, err := piece(t, w, "u", 0); err != nil {
			t.Fatal(err)
		}
		at := parts(t, dir)[0]
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		if err := plant(at); err != nil {
			t.Fatal(err)
		}
		if _, err := piece(t, w, "u", 3); sandboxd.ClassOf(err) != sandboxd.ClassRange {
			t.Errorf("%s: a piece went on: %v", name, err)
		}
		if _, err := piece(t, w, "u", 0); err != nil {
			t.Errorf("%s: anew: %v", name, err)
		}
		if state, err := piece(t, w, "u", 3); err != nil || !state.Complete || wst.Get(t, w, "f") != "abcabc" || wst.Get(t, w, "own") != "EVIL" {
			t.Errorf("%s: %+v, %v", name, state, err)
		}
	}
}
