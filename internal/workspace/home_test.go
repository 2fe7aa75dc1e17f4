package workspace

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/failpoint"
	"sandboxd/internal/workspace/beneath"
	wst "sandboxd/internal/workspace/workspacetest"
)

// keyed is a root with one key, and the path of its home.
func keyed(t *testing.T) (r *Root, meta Meta, home string) {
	t.Helper()
	r, _ = testRoot(t)
	meta = testMeta("k")
	if err := r.Create(meta); err != nil {
		t.Fatal(err)
	}
	_, home = r.Dirs(meta.Key)
	return r, meta, home
}

// beginWith makes a file of what a home begins with.
func beginWith(name, text string) func(beneath.Dir) error {
	return func(d beneath.Dir) error {
		fd, err := unix.Openat(int(d), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte(text))
		return err
	}
}

// names are those of a key's directory and of its home.
func namesOf(t *testing.T, home string) string {
	t.Helper()
	var all []string
	for _, dir := range []string{filepath.Dir(home), home} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
	}
	return strings.Join(all, " ")
}

// A home is made once: what a sandbox removed in it does not come back.
func TestAHomeIsMadeOnce(t *testing.T) {
	r, meta, home := keyed(t)
	for range 2 {
		if err := r.MakeHome(t.Context(), meta.Key, meta.ID, meta.UID, beginWith(".profile", "x")); err != nil {
			t.Fatal(err)
		}
		if got := namesOf(t, home); got != "home meta.json workspace .profile" {
			t.Fatalf("there are %s", got)
		}
	}
	if err := os.Remove(filepath.Join(home, ".profile")); err != nil {
		t.Fatal(err)
	}
	if err := r.MakeHome(t.Context(), meta.Key, meta.ID, meta.UID, beginWith(".profile", "x")); err != nil {
		t.Fatal(err)
	}
	if got := namesOf(t, home); got != "home meta.json workspace" {
		t.Errorf("there are %s", got)
	}
	wst.WantClass(t, "the home of another sandbox", r.MakeHome(t.Context(), meta.Key, sandboxd.NewID(), meta.UID, nil), sandboxd.ClassNotFound)
	wst.WantClass(t, "the home of no key", r.MakeHome(t.Context(), "../k", meta.ID, meta.UID, nil), sandboxd.ClassNotFound)
}

// What cannot be filled is no home, and the next try begins anew.
func TestAHomeThatCannotBeFilled(t *testing.T) {
	r, meta, home := keyed(t)
	fails := func(d beneath.Dir) error {
		return errors.Join(beginWith("half", "x")(d), unix.Mkdirat(int(d), "dir", 0o500), errors.New("damaged"))
	}
	if err := r.MakeHome(t.Context(), meta.Key, meta.ID, meta.UID, fails); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Fatal(err)
	}
	if got := namesOf(t, home); got != "meta.json workspace" || r.HasHome(meta.Key) {
		t.Errorf("there are %s", got)
	}
}

// A host that dies leaves a whole home or none.
func TestAHomeWhenTheHostDies(t *testing.T) {
	for point, whole := range map[string]bool{"home.filled": false, "home.placed": true} {
		t.Run(point, func(t *testing.T) {
			r, meta, home := keyed(t)
			died := make(chan struct{})
			disarm := failpoint.Arm(func(name string) {
				if name == point {
					close(died)
					runtime.Goexit() // nothing after the point runs
				}
			})
			go func() { _ = r.MakeHome(t.Context(), meta.Key, meta.ID, meta.UID, beginWith("first", "x")) }()
			<-died
			disarm()
			if r.HasHome(meta.Key) != whole {
				t.Fatalf("a home is there: %v", !whole)
			}
			if err := r.MakeHome(t.Context(), meta.Key, meta.ID, meta.UID, beginWith("second", "x")); err != nil {
				t.Fatal(err)
			}
			want := "home meta.json workspace second"
			if whole {
				want = "home meta.json workspace first"
			}
			if got := namesOf(t, home); got != want || ownerOf(t, home) != meta.UID {
				t.Errorf("there are %s, want %s; of user %d", got, want, ownerOf(t, home))
			}
		})
	}
}

// While a home is made its sandbox is deleted, and another one gets the key: nothing of
// the first comes into it.
func TestAHomeOfWhatIsDeletedMeanwhile(t *testing.T) {
	r, meta, home := keyed(t)
	other := testMeta(meta.Key)
	if err := r.MakeHome(t.Context(), meta.Key, meta.ID, meta.UID, func(d beneath.Dir) error {
		return errors.Join(r.Trash(meta.Key, meta.ID), r.Create(other), beginWith("first", "x")(d))
	}); err != nil {
		t.Fatal(err)
	}
	if got := namesOf(t, home); got != "meta.json workspace" {
		t.Errorf("there are %s", got)
	}
}
