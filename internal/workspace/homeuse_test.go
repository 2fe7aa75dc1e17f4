package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A home is counted by the blocks that it takes, whatever it is made of.
func TestHomeUse(t *testing.T) {
	r, meta, home := keyed(t)
	use := func(most int64) HomeUse {
		t.Helper()
		u, err := r.HomeUse(t.Context(), meta.Key, most)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if u := use(10); u != (HomeUse{}) {
		t.Errorf("a home that is not there: %+v", u)
	}
	if err := r.MakeHome(t.Context(), meta.Key, meta.ID, meta.UID, nil); err != nil {
		t.Fatal(err)
	}
	if u := use(10); u != (HomeUse{}) {
		t.Errorf("an empty home: %+v", u)
	}
	at := func(name string) string { return filepath.Join(home, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	must(os.WriteFile(at("holes"), nil, 0o600), os.Truncate(at("holes"), 1<<40), os.Mkdir(at("d"), 0), os.Mkdir(at("e"), 0o700),
		os.WriteFile(at("e/full"), make([]byte, 1<<20), 0o600), os.Link(at("e/full"), at("e/again")), os.Link(at("e/full"), at("third")),
		os.WriteFile(outside, make([]byte, 4<<20), 0o600), os.Symlink(outside, at("file")), os.Symlink(filepath.Dir(outside), at("dir")), os.Symlink("..", at("up")),
		unix.Mkfifo(at("pipe"), 0o600))
	if u := use(100); u.Entries != 10 || u.Bytes < 1<<20 || u.Bytes > 1<<20+64<<10 || u.Partial {
		t.Errorf("%+v", u)
	}
	if u := use(10); u.Entries != 10 || u.Partial {
		t.Errorf("exactly as many as are counted: %+v", u)
	}
	if u := use(9); !u.Partial {
		t.Errorf("more than are counted: %+v", u)
	}
	// Deeper than anybody goes, nothing hides.
	top, err := os.Getwd()
	must(err, os.Chdir(home))
	defer func() { must(os.Chdir(top)) }()
	for range 300 {
		must(os.Mkdir("d255", 0o700), os.Chdir("d255"))
	}
	must(os.WriteFile("deep", make([]byte, 8<<20), 0o600))
	if u := use(1000); !u.Partial {
		t.Errorf("deeper than anybody counts: %+v", u)
	}
}

// BenchmarkHomeUse measures a home of ten thousand files.
func BenchmarkHomeUse(b *testing.B) {
	r, err := OpenRoot(filepath.Join(b.TempDir(), "a", "w"), filepath.Join(b.TempDir(), "t"))
	if err != nil {
		b.Fatal(err)
	}
	meta := testMeta("k")
	if err := errors.Join(r.Create(meta), r.MakeHome(b.Context(), meta.Key, meta.ID, meta.UID, nil)); err != nil {
		b.Fatal(err)
	}
	_, home := r.Dirs(meta.Key)
	for i := range 10_000 {
		dir := filepath.Join(home, fmt.Sprint(i/100))
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte("x"), 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if u, err := r.HomeUse(b.Context(), meta.Key, 1<<20); err != nil || u.Entries != 10_100 {
			b.Fatal(u, err)
		}
	}
}
