package names

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandboxd"
)

func TestNames(t *testing.T) {
	d, id, cold := Dir(t.TempDir()), sandboxd.NewID(), sandboxd.NewID()
	if got := d.Of(id); got != id {
		t.Errorf("without a link the name is %s", got)
	}
	if err := d.Link(id, MemberPrefix+"one"); err != nil {
		t.Fatal(err)
	}
	if err := d.Link(id, MemberPrefix+"two"); err == nil {
		t.Error("a second member was given to an id")
	}
	if got := d.Of(id); got != MemberPrefix+"one" || !IsMember(got) || IsMember(id) {
		t.Errorf("the name is %s", got)
	}
	// None of these is a link that was made here.
	if err := errors.Join(
		d.Link("no id", MemberPrefix+"three"),
		os.Symlink("../elsewhere", d.link(cold)),
		os.WriteFile(d.link(sandboxd.NewID()), nil, 0o600),
		os.Mkdir(filepath.Join(string(d), cold), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	if got := d.Of(cold); got != cold {
		t.Errorf("a link to something else means %s", got)
	}
	if ids, err := d.IDs(); err != nil || !maps.Equal(ids, map[string]string{MemberPrefix + "one": id}) {
		t.Errorf("ids: %v, %v", ids, err)
	}
	for range 2 {
		if err := d.Unlink(id); err != nil {
			t.Error(err)
		}
	}
	if ids, err := d.IDs(); err != nil || len(ids) != 0 {
		t.Errorf("ids after all: %v, %v", ids, err)
	}
	if ids, err := Dir(filepath.Join(string(d), "none")).IDs(); err != nil || len(ids) != 0 {
		t.Errorf("ids without a directory: %v, %v", ids, err)
	}
}

// What could not be cleared is cleared by the next try: the link stays as long as there
// is something under either name.
func TestClear(t *testing.T) {
	stuck := errors.New("stuck")
	id := sandboxd.NewID()
	for _, test := range []struct {
		what, member, fails string
		cleaned             []string
		links               int
	}{
		{"cold", "", "", []string{id}, 0},
		{"cold and stuck", "", id, []string{id}, 0},
		{"pooled", MemberPrefix + "a", "", []string{MemberPrefix + "a", id}, 0},
		{"pooled, the member's stuck", MemberPrefix + "a", MemberPrefix + "a", []string{MemberPrefix + "a"}, 1},
		{"pooled, the id's stuck", MemberPrefix + "a", id, []string{MemberPrefix + "a", id}, 1},
	} {
		d := Dir(t.TempDir())
		if test.member != "" {
			if err := d.Link(id, test.member); err != nil {
				t.Fatal(err)
			}
		}
		var cleaned []string
		err := d.Clear(id, func(name string) error {
			cleaned = append(cleaned, name)
			if name == test.fails {
				return stuck
			}
			return nil
		})
		if !slices.Equal(cleaned, test.cleaned) || errors.Is(err, stuck) != (test.fails != "") {
			t.Errorf("%s: cleaned %v, %v", test.what, cleaned, err)
		}
		if entries, err := os.ReadDir(string(d)); err != nil || len(entries) != test.links {
			t.Errorf("%s: %d links are left, %v", test.what, len(entries), err)
		}
	}
}
