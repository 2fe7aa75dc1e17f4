package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// findDelegated finds the part of cgroup version 2 that was given to an ordinary user,
// with the server in it: the highest group above the server's own in which this user
// may make groups and move processes. What systemd gives to a user's own manager is
// one, a unit with Delegate= is another. The higher, the further from the server's own
// group, whose end must end no sandbox.
func findDelegated(name string) (*groups, error) {
	none := errors.New("none that this user may use: start the server in a delegated group of version 2, as with systemd-run --user --scope -p Delegate=yes")
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	_, own, ok := strings.Cut("\n"+string(text), "\n0::")
	if !ok {
		return nil, none
	}
	own, _, _ = strings.Cut(own, "\n")
	mount, err := unifiedMount()
	if err != nil {
		return nil, none
	}
	found := root{}
	for dir := filepath.Join(mount, own); strings.HasPrefix(dir, mount); dir = filepath.Dir(dir) {
		have, ok := delegatedTo(dir)
		if !ok {
			break
		}
		found = root{mount: dir, base: filepath.Join(dir, name, v2Leaf), controllers: have}
	}
	if found.mount == "" {
		return nil, none
	}
	return &groups{v2: true, roots: []root{found}}, nil
}

// delegatedTo says whether this user may do in a group what is needed, and answers the
// controllers that are there.
func delegatedTo(dir string) (have []string, ok bool) {
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if unix.Access(filepath.Join(dir, file), unix.W_OK) != nil {
			return nil, false
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil, false
	}
	for _, c := range strings.Fields(string(text)) {
		if slices.Contains(controllers, c) {
			have = append(have, c)
		}
	}
	return have, slices.Contains(have, "memory") && slices.Contains(have, "pids")
}

// unifiedMount is where cgroup version 2 is mounted.
func unifiedMount() (string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		left, right, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(left); strings.HasPrefix(right, "cgroup2 ") && len(fields) > 4 {
			return fields[4], nil
		}
	}
	return "", errors.New("cgroup version 2 is not mounted")
}

// serverLeaf holds the server where the group that was given to it holds it directly:
// a group that hands controllers down may have no process of its own.
const serverLeaf = "sandboxd-server"

// makeRoom moves what is in a delegated group itself into a leaf.
func makeRoom(dir string) error {
	leaf := filepath.Join(dir, serverLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	text, err := readFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, pid := range pidsIn(text) {
		if err := writeFile(filepath.Join(leaf, "cgroup.procs"), fmt.Sprint(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move process %d out of the way: %w", pid, err)
		}
	}
	return nil
}
