package docker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sandboxd"
)

// A container and the directory of files bound into it are named by the sandbox's id.
// One that came from the pool keeps the name and the labels that it was made with, for
// a container cannot be labelled anew; a link in the run directory says which it is. The
// link is the one durable step of a hand-over: before it a member is nobody's, after it
// the sandbox's.

const (
	memberPrefix = "pool-" // no id has it
	linkSuffix   = ".link"
)

func isMember(name string) bool { return strings.HasPrefix(name, memberPrefix) }

func (d *Driver) linkPath(id string) string { return filepath.Join(d.cfg.RunDir, id+linkSuffix) }

// onDisk answers the name of an id's container as the run directory has it.
func (d *Driver) onDisk(id string) string {
	name, err := os.Readlink(d.linkPath(id))
	if err != nil || !isMember(name) {
		return id
	}
	return name
}

// clear removes all that there is of an id.
func (d *Driver) clear(ctx context.Context, id string) error {
	name := d.onDisk(id)
	if err := d.clean(ctx, name); err != nil || name == id {
		return err
	}
	if err := d.clean(ctx, id); err != nil {
		return err
	}
	return os.Remove(d.linkPath(id)) // last, so that an interrupted one is found again
}

// links answers the ids of environments from the pool by their names.
func (d *Driver) links() (map[string]string, error) {
	entries, err := os.ReadDir(d.cfg.RunDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ids := map[string]string{}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), linkSuffix); ok && sandboxd.ValidID(id) {
			ids[d.onDisk(id)] = id
		}
	}
	return ids, nil
}
