package server

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long something may take to be gone after who needed it is.
const patience = 15 * time.Second

// The users that the program gives to sandboxes.
const firstUID, lastUID = 200000, 265535

// groupPrefix begins the name of every server's control groups.
const groupPrefix = "sandboxd-"

// groupName names the control groups of a data directory.
func groupName(data string) string {
	sum := sha256.Sum256([]byte(data))
	return groupPrefix + hex.EncodeToString(sum[:6])
}

// remembered are the names of the control groups of every server that was started.
var remembered sync.Map

func remember(data string) {
	if data != "" {
		remembered.Store(groupName(data), data)
	}
}

// Groups answers the control groups of the sandboxes of a data directory, and
// those of their commands.
func Groups(data string) []string {
	return groupsBelow(groupName(data))
}

// groupsBelow lists every directory below the groups of this name.
func groupsBelow(name string) (found []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
		bases, _ := filepath.Glob(pattern)
		for _, base := range bases {
			_ = filepath.WalkDir(base, func(path string, entry os.DirEntry, err error) error {
				if err == nil && entry.IsDir() && path != base && filepath.Base(path) != "sandboxes" {
					found = append(found, path)
				}
				return nil
			})
		}
	}
	return found
}

// Processes finds the processes of a sandbox from outside, the eldest, which is its
// init, first as long as numbers do not begin anew.
func Processes(id string) (pids []int) {
	for pid, group := range processes() {
		if strings.Contains(group, id) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// CommandLine is that of a process, with spaces between its words; "" when it has
// ended.
func CommandLine(pid int) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.ReplaceAll(strings.TrimRight(string(raw), "\x00"), "\x00", " ")
}

// processes answers the control groups of every process.
func processes() map[int]string {
	found := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, name := range names {
		if raw, err := os.ReadFile(name); err == nil { // else it ended meanwhile
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
				found[pid] = string(raw)
			}
		}
	}
	return found
}

// machine is what of the machine a suite may not change.
type machine struct {
	mounts map[string]bool // below the suite's directory
	strays map[string]bool // processes of sandboxes' users outside every other server's control groups
	groups map[string]bool // of the suite's servers
}

// look takes the machine as it is. What others do on it at the same time is not
// counted: the suite and its servers keep everything below one directory. A network
// namespace lives by its processes, by descriptors, which are counted in the server,
// and by mounts.
func look(dir string) machine {
	m := machine{mounts: map[string]bool{}, strays: map[string]bool{}, groups: map[string]bool{}}
	if raw, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, dir) {
				m.mounts["mount "+strings.TrimSpace(line)] = true
			}
		}
	}
	for pid, group := range processes() {
		if strings.Contains(group, groupPrefix) && !isOurs(group) {
			continue
		}
		if uid := userOf(pid); uid >= firstUID && uid <= lastUID {
			m.strays[fmt.Sprintf("process %d of user %d", pid, uid)] = true
		}
	}
	remembered.Range(func(name, _ any) bool {
		for _, dir := range groupsBelow(name.(string)) {
			m.groups["control group "+dir] = true
		}
		return true
	})
	return m
}

func isOurs(group string) (ours bool) {
	remembered.Range(func(name, _ any) bool {
		ours = strings.Contains(group, name.(string))
		return !ours
	})
	return ours
}

// userOf is a process's real user, or -1.
func userOf(pid int) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return -1
	}
	_, rest, _ := strings.Cut(string(raw), "\nUid:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return -1
	}
	uid, err := strconv.Atoi(fields[0])
	if err != nil {
		return -1
	}
	return uid
}

// sweep removes the empty groups that a server leaves that was killed. The kernel
// refuses to remove one that has anything in it.
func sweep() {
	remembered.Range(func(name, _ any) bool {
		for _, pattern := range []string{"/sys/fs/cgroup/%s/sandboxes", "/sys/fs/cgroup/%s", "/sys/fs/cgroup/*/%s"} {
			dirs, _ := filepath.Glob(fmt.Sprintf(pattern, name))
			for _, dir := range dirs {
				_ = syscall.Rmdir(dir)
			}
		}
		return true
	})
}

// left waits until the machine is as it was and answers what is more.
func (before machine) left(dir string, limit time.Duration) (left []string) {
	var first *machine
	within(limit, func() bool {
		now := look(dir)
		if first == nil {
			first = &now
		}
		left = left[:0]
		for _, kind := range []struct{ was, is, began map[string]bool }{
			{before.mounts, now.mounts, first.mounts},
			{before.strays, now.strays, first.strays}, {before.groups, now.groups, first.groups},
		} {
			for name := range kind.is {
				// What came after the suite's end is somebody else's.
				if !kind.was[name] && kind.began[name] {
					left = append(left, name)
				}
			}
		}
		return len(left) == 0
	})
	return left
}
