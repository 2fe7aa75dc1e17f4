package process

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sandboxd"
)

// What an environment has on the machine, its cgroups, socket and log, is named by
// its id. That of one that came from the pool keeps the name it was made under, for
// on cgroup version 2 a group cannot get another; a link in the run directory says
// which that is. The link is the one durable step of a hand-over: before it a member
// is nobody's, after it the sandbox's.

const (
	memberPrefix = "pool-" // no id has it
	linkSuffix   = ".link"
)

func (d *Driver) linkPath(id string) string { return filepath.Join(d.cfg.RunDir, id+linkSuffix) }

// onDisk answers the name of an id's environment as the run directory has it.
func (d *Driver) onDisk(id string) string {
	name, err := os.Readlink(d.linkPath(id))
	if err != nil || !strings.HasPrefix(name, memberPrefix) {
		return id
	}
	return name
}

// nameOf is onDisk for an environment that may be held here.
func (d *Driver) nameOf(id string) string {
	d.mu.Lock()
	e := d.envs[id]
	name := ""
	if e != nil {
		name = e.name
	}
	d.mu.Unlock()
	if name == "" {
		name = d.onDisk(id)
	}
	return name
}

// clear removes all that there is of an id.
func (d *Driver) clear(ctx context.Context, id string) error {
	name := d.onDisk(id)
	if err := d.clean(ctx, name); err != nil {
		return err
	}
	if name == id {
		return nil
	}
	// Last, so that an interrupted one is found again.
	return errors.Join(d.clean(ctx, id), os.Remove(d.linkPath(id)))
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
