// Package names knows by what name the environment of a sandbox is found on its machine.
// It is its sandbox's id, but for one that came from the pool: that keeps the name which
// it was made under, for a cgroup of version 2 cannot be renamed and a container cannot be
// labelled anew. A link in the driver's run directory says which that is. The link is the
// one durable step of a hand-over: before it a member is nobody's, after it the sandbox's.
// What has the name, the package does not know.
package names

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sandboxd"
)

// MemberPrefix begins the name of what is made for the pool; no id begins so.
const MemberPrefix = "pool-"

const linkSuffix = ".link"

// IsMember says whether a name was given for the pool.
func IsMember(name string) bool { return strings.HasPrefix(name, MemberPrefix) }

// Dir is the directory that has the links of a driver.
type Dir string

func (d Dir) link(id string) string { return filepath.Join(string(d), id+linkSuffix) }

// Of answers the name of an id's environment.
func (d Dir) Of(id string) string {
	name, err := os.Readlink(d.link(id))
	if err != nil || !IsMember(name) {
		return id
	}
	return name
}

// Link gives a member to an id, which must have none.
func (d Dir) Link(id, member string) error { return os.Symlink(member, d.link(id)) }

// Unlink takes back what Link did, if it did.
func (d Dir) Unlink(id string) error {
	if err := os.Remove(d.link(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Clear removes all that there is of an id. clean removes what has a name, and finds
// nothing wrong in that there is nothing.
func (d Dir) Clear(id string, clean func(name string) error) error {
	name := d.Of(id)
	if err := clean(name); err != nil || name == id {
		return err
	}
	if err := clean(id); err != nil {
		return err
	}
	return d.Unlink(id) // last, so that an interrupted one is found again
}

// IDs answers by their names the ids of those environments that came from the pool.
func (d Dir) IDs() (map[string]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ids := map[string]string{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), linkSuffix)
		if !ok || !sandboxd.ValidID(id) {
			continue
		}
		if name := d.Of(id); name != id {
			ids[name] = id
		}
	}
	return ids, nil
}
