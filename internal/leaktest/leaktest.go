// Package leaktest makes a suite fail that leaves something behind: goroutines,
// descriptors, child processes, orphans of sandboxes' users, control groups, mounts,
// or files in the temporary directory. A network namespace lives by its
// processes, descriptors and mounts, and is seen by these.
//
// It is for the TestMain of packages whose tests run in one process; test/server
// does the same for those that start the shipped program. What others do on the
// machine at the same time is not counted.
package leaktest

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long what ends by itself may take after the last test.
const patience = 5 * time.Second

// Users that sandboxes of suites and of servers get.
const firstUID, lastUID = 200000, 265535

// Main runs the tests below a temporary directory of their own, looks for what
// they left, and exits. It does not return.
func Main(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "leaktest:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "suite-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	// As a temporary directory is: open to users that tests become.
	if err := os.Chmod(dir, os.ModeSticky|0o777); err != nil {
		return 1, err
	}
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return 1, err
	}
	before := descriptors()
	code := m.Run()
	if code != 0 || fuzzes() {
		return code, nil // a failed test cleans up as far as it can; a fuzzer ends its workers by force
	}
	if left := settled(func() []string { return look(dir, before) }, patience); len(left) > 0 {
		return 1, fmt.Errorf("the suite left behind:\n\t%s", strings.Join(left, "\n\t"))
	}
	// Connections that the standard client keeps for later are nobody's leak.
	http.DefaultClient.CloseIdleConnections()
	return 0, goleak.Find()
}

func fuzzes() bool {
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" && f.Value.String() != "false" {
			return true
		}
	}
	return false
}

// settled answers what is left when nothing is, or after the limit.
func settled(look func() []string, limit time.Duration) (left []string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(limit); ; {
		if left = look(); len(left) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-end:
			return left
		}
	}
}

// look lists what is there and should not be, of a suite with this temporary
// directory that began with these descriptors.
func look(dir string, before []string) (left []string) {
	left = append(left, more("descriptor of ", before, descriptors())...)
	left = append(left, processes()...)
	left = append(left, groups()...)
	if raw, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir) {
				left = append(left, "mount "+fields[4])
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		left = append(left, err.Error())
	}
	for _, e := range entries {
		left = append(left, "file "+filepath.Join(dir, e.Name()))
	}
	return left
}

// descriptors lists what this process has open, less what the runtime needs for
// waiting and the list itself.
func descriptors() (list []string) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(target, "anon_inode:[event") {
			list = append(list, target)
		}
	}
	return list
}

// more answers what is in now beyond what was in before, each as often as it is.
func more(what string, before, now []string) (left []string) {
	was := map[string]int{}
	for _, name := range before {
		was[name]++
	}
	for _, name := range now {
		if was[name]--; was[name] < 0 {
			left = append(left, what+name)
		}
	}
	return left
}

// processes are those that this one started and has not waited for, and those of
// sandboxes' users whose parent is gone and that no server's control group holds.
func processes() (left []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue // it ended
		}
		status := map[string]string{}
		for line := range strings.Lines(string(raw)) {
			key, value, _ := strings.Cut(line, ":")
			status[key], _, _ = strings.Cut(strings.TrimSpace(value), "\t") // of several ids the real one
		}
		pid := filepath.Base(filepath.Dir(name))
		uid, err := strconv.Atoi(status["Uid"])
		if err != nil {
			continue
		}
		if status["PPid"] == strconv.Itoa(os.Getpid()) {
			left = append(left, fmt.Sprintf("child process %s %s of user %d: %s", pid, status["Name"], uid, status["State"]))
		} else if status["PPid"] == "1" && uid >= firstUID && uid <= lastUID && !strings.HasPrefix(status["State"], "Z") {
			// A dead one is in no group and waits for process 1 to take note.
			group, err := os.ReadFile("/proc/" + pid + "/cgroup")
			if err == nil && !strings.Contains(string(group), groupPrefix) {
				left = append(left, fmt.Sprintf("orphan process %s %s of user %d: %s", pid, status["Name"], uid, status["State"]))
			}
		}
	}
	return left
}

// groupPrefix begins the names of servers' control groups.
const groupPrefix = "sandboxd-"

var known struct {
	sync.Mutex
	groups []string
}

// Sandboxes says that a test starts sandboxes with this data directory: their
// control groups, and with them their processes, must be gone at the end.
func Sandboxes(dataDir string) {
	sum := sha256.Sum256([]byte(dataDir))
	known.Lock()
	defer known.Unlock()
	known.groups = append(known.groups, groupPrefix+hex.EncodeToString(sum[:6]))
}

// groups lists the control groups of sandboxes of this suite. The group of a server
// itself may stay: it is for the next one with that data directory.
func groups() (left []string) {
	known.Lock()
	defer known.Unlock()
	for _, name := range known.groups {
		for _, pattern := range []string{"/sys/fs/cgroup/*/" + name + "/*", "/sys/fs/cgroup/" + name + "/sandboxes/*"} {
			found, _ := filepath.Glob(pattern)
			for _, dir := range found {
				if st, err := os.Stat(dir); err == nil && st.IsDir() {
					left = append(left, "control group "+dir)
				}
			}
		}
	}
	slices.Sort(left)
	return left
}
