package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// groups is where the cgroups of one data directory are: on version 2 in one
// tree, on version 1 in one per controller that is mounted. They hang off the
// root of what this process sees, outside its own group, so that ending the
// server's group ends no sandbox.
//
// Of a sandbox: <base>/<id>/init for its process 1, <base>/<id>/commands/<name>
// for what it runs. The limits of memory and processes are on commands, so that
// the kernel never picks process 1 to die for what a command took.
type groups struct {
	v2    bool
	roots []root
}

type root struct {
	base        string // an absolute directory
	mount       string
	controllers []string
}

// controllers that are used; the first two are needed.
var controllers = []string{"memory", "pids", "cpu", "cpuacct"}

const (
	initLeaf    = "init"
	commandsDir = "commands"
	otherLeaf   = "other" // of commands that came without a group
	basePrefix  = "sandboxd-"
	baseSum     = 6           // bytes of the data directory's hash
	v2Leaf      = "sandboxes" // below the base, for processes may not be in inner nodes
	leafPrefix  = "c-"        // of a command's group, so that no command is named otherLeaf

	// The weight of all sandboxes together where a service has 1024 or 100: what
	// answers for them is served first, and on a machine that does much else they
	// have a fifth of a processor of each.
	sharesV1 = "256"
	weightV2 = "25"

	// Process 1 is small; a sandbox that makes it grow loses it.
	initMemory = 128 << 20
	initPIDs   = 256
)

// findGroups reads which hierarchies are mounted. The error says what is missing.
func findGroups(dataDir string) (*groups, error) {
	sum := sha256.Sum256([]byte(dataDir))
	name := basePrefix + hex.EncodeToString(sum[:baseSum])
	if os.Geteuid() != 0 {
		return findDelegated(name)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	g := &groups{}
	found := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		left, right, ok := strings.Cut(line, " - ")
		before, after := strings.Fields(left), strings.Fields(right)
		if !ok || len(before) < 5 || len(after) < 3 {
			continue
		}
		r := root{mount: before[4], base: filepath.Join(before[4], name)}
		switch after[0] {
		case "cgroup2":
			have, err := os.ReadFile(filepath.Join(r.mount, "cgroup.controllers"))
			if err != nil {
				continue
			}
			for _, c := range strings.Fields(string(have)) {
				if slices.Contains(controllers, c) {
					r.controllers = append(r.controllers, c)
				}
			}
			if slices.Contains(r.controllers, "memory") && slices.Contains(r.controllers, "pids") {
				r.base = filepath.Join(r.base, v2Leaf)
				return &groups{v2: true, roots: []root{r}}, nil
			}
		case "cgroup":
			for _, c := range strings.Split(after[2], ",") {
				if slices.Contains(controllers, c) && !found[c] {
					found[c] = true
					r.controllers = append(r.controllers, c)
				}
			}
			if len(r.controllers) > 0 {
				g.roots = append(g.roots, r)
			}
		}
	}
	if !found["memory"] || !found["pids"] {
		return nil, errors.New("no cgroup hierarchy with the memory and pids controllers is mounted")
	}
	return g, nil
}

// String names the version and the controllers, for the report.
func (g *groups) String() string {
	version, have := "v1", []string(nil)
	if g.v2 {
		version = "v2"
	}
	for _, r := range g.roots {
		have = append(have, r.controllers...)
	}
	slices.Sort(have)
	return version + ": " + strings.Join(have, " ")
}

// dir is where a controller's files of a group are, or "".
func (g *groups) dir(controller, sub string) string {
	for _, r := range g.roots {
		if slices.Contains(r.controllers, controller) {
			return r.path(sub)
		}
	}
	return ""
}

// path is a group's directory in a hierarchy. One that only counts or shares
// processors needs no split between process 1 and the rest: there the sandbox is
// one group, with those of commands directly below, which saves half the work.
func (r root) path(sub string) string {
	if !slices.Contains(r.controllers, "memory") && !slices.Contains(r.controllers, "pids") {
		id, rest, _ := strings.Cut(sub, "/")
		if name := filepath.Base(rest); strings.HasPrefix(name, leafPrefix) || strings.HasPrefix(name, sparePrefix) {
			return r.base + "/" + id + "/" + name
		}
		return r.base + "/" + id
	}
	return r.base + "/" + sub
}

// splits says whether a group of a command, limited in processors or not, is a
// directory of its own in this hierarchy. Without one the command stays where
// process 1 is.
func (r root) splits(limited bool) bool {
	return limited || len(r.controllers) > 1 || r.controllers[0] != "cpu"
}

// create makes a sandbox's group in every hierarchy, and what is above it. What is
// above may be removed meanwhile: a server that starts removes empty ones.
func (g *groups) create(sub string) error {
	var err error
	for range 10 {
		if err = g.tryCreate(sub); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	return nil
}

func (g *groups) tryCreate(sub string) error {
	for _, r := range g.roots {
		dir := r.path(sub)
		if g.v2 {
			if err := r.delegate(filepath.Dir(dir)); err != nil {
				return err
			}
		}
		err := unix.Mkdir(dir, 0o755)
		if err == unix.ENOENT {
			if err = os.MkdirAll(dir, 0o755); err == nil {
				err = r.giveWay("cpu.shares", sharesV1)
			}
		}
		if err != nil && err != unix.EEXIST {
			return err
		}
	}
	return nil
}

// giveWay sets the weight of all sandboxes together against the machine's own
// programs, the server among them.
func (r root) giveWay(file, weight string) error {
	if !slices.Contains(r.controllers, "cpu") {
		return nil
	}
	rel, err := filepath.Rel(r.mount, r.base)
	if err != nil {
		return err
	}
	top, _, _ := strings.Cut(rel, "/") // of version 2 the base is one below
	return ignoreMissing(writeFile(filepath.Join(r.mount, top, file), weight))
}

// delegate makes dir and hands the controllers down to what will be in it.
func (r root) delegate(dir string) (err error) {
	if _, err := os.Stat(r.base); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(r.base, 0o755); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.giveWay("cpu.weight", weightV2)) }() // once the controller is there
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	want := "+" + strings.Join(r.controllers, " +")
	rel, err := filepath.Rel(r.mount, dir)
	if err != nil {
		return err
	}
	at := r.mount
	for _, part := range append([]string{"."}, strings.Split(rel, "/")...) {
		at = filepath.Join(at, part)
		file := filepath.Join(at, "cgroup.subtree_control")
		have, err := readFile(file)
		if err != nil {
			return err
		}
		if containsAll(strings.Fields(have), r.controllers) {
			continue
		}
		err = writeFile(file, want)
		if err == unix.EBUSY && at == r.mount && os.Geteuid() != 0 {
			if err = makeRoom(at); err == nil {
				err = writeFile(file, want)
			}
		}
		if err != nil {
			return fmt.Errorf("hand cgroup controllers down: %w", err)
		}
	}
	return nil
}

func containsAll(have, want []string) bool {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}

// createCommand makes a command's group in a sandbox that has its own, with the
// controllers handed down. An error that is fs.ErrExist says that it is there.
func (g *groups) createCommand(sub string, limited bool) error {
	for _, r := range g.roots {
		if !r.splits(limited) {
			continue
		}
		if err := unix.Mkdir(r.path(sub), 0o755); err != nil {
			return fmt.Errorf("make a cgroup: %w", err)
		}
	}
	return nil
}

// joinFile is the file by which a thread joins a group. To the one for processes
// the kernel lets nobody before all processors have passed a quiet point, some 10
// milliseconds; on version 1 a thread that moves itself needs no such wait, and who
// joins has one thread, or executes a program next, which ends the others.
func (g *groups) joinFile() string {
	if g.v2 {
		return "cgroup.procs"
	}
	return "tasks"
}

// open answers the files by which a command joins a group, in every hierarchy in
// which it is elsewhere than process 1.
func (g *groups) open(sub string, limited bool) ([]int, error) {
	own := sandboxOf(sub) + "/" + initLeaf
	return g.openIn(sub, func(r root) bool { return r.path(sub) != r.path(own) && r.splits(limited) })
}

// openIn answers the files by which a group is joined in those hierarchies.
func (g *groups) openIn(sub string, wanted func(root) bool) ([]int, error) {
	var fds []int
	for _, r := range g.roots {
		if !wanted(r) {
			continue
		}
		fd, err := unix.Open(r.path(sub)+"/"+g.joinFile(), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(fds)
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func sandboxOf(sub string) string {
	id, _, _ := strings.Cut(sub, "/")
	return id
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// tree lists the directories of a group and below it in the pids hierarchy. Below
// a command's group there is none: nothing in a sandbox sees a cgroup file system.
func (g *groups) tree(sub string) []string {
	top := g.dir("pids", sub)
	if strings.HasPrefix(filepath.Base(sub), leafPrefix) {
		return []string{top}
	}
	var dirs []string
	filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() { // what vanishes meanwhile has no members
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// members lists the processes in a group and below it.
func (g *groups) members(sub string) []int {
	var pids []int
	for _, dir := range g.tree(sub) {
		text, err := readFile(dir + "/cgroup.procs")
		if err != nil {
			continue
		}
		pids = append(pids, pidsIn(text)...)
	}
	return pids
}

// kill ends everything in a group and below it, and returns when none is left.
// Those that are children of this process, as after a server let go and opened
// its data again, are reaped.
func (g *groups) kill(ctx context.Context, sub string) error {
	killed := map[int]bool{}
	if g.v2 {
		for _, pid := range g.members(sub) {
			killed[pid] = true
		}
		err := g.write("pids", sub, "cgroup.kill", "1")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return retry(ctx, func() (bool, error) {
		if !g.v2 {
			g.stopForks(sub)
		}
		members := g.members(sub)
		for _, pid := range members {
			killed[pid] = true
			// The number was in the group a moment ago; between the two only the
			// kernel's wrap-around of all pids could give it away.
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
				return false, err
			}
		}
		for pid := range killed {
			if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); got == pid || err == unix.ECHILD {
				delete(killed, pid)
			}
		}
		return len(members) == 0 && len(killed) == 0, nil
	})
}

// stopForks needs no freezer: a frozen task would not die either.
func (g *groups) stopForks(sub string) {
	for _, dir := range g.tree(sub) {
		writeFile(dir+"/pids.max", "0") // gone meanwhile: nobody is in it
	}
}

// retry calls do until it is done, fails or ctx ends, each time a little later.
func retry(ctx context.Context, do func() (bool, error)) error {
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		done, err := do()
		if done || err != nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// remove removes a group and what is below it in every hierarchy. A group whose
// last process has just died is busy for a moment.
func (g *groups) remove(ctx context.Context, sub string) error {
	return retry(ctx, func() (bool, error) { return g.tryRemove(sub) })
}

// tryRemove says whether nothing of the group is left.
func (g *groups) tryRemove(sub string) (bool, error) {
	done := true
	for _, r := range g.roots {
		err := removeTree(r.path(sub))
		if errors.Is(err, unix.EBUSY) {
			done = false
		} else if err != nil {
			return false, err
		}
	}
	return done, nil
}

func removeTree(dir string) error {
	// Of a command, and so nearly always, there is nothing below.
	if err := unix.Rmdir(dir); err == nil || err == unix.ENOENT {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(dir + "/" + e.Name()); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// list names the sandboxes that have a group.
func (g *groups) list() ([]string, error) {
	var ids []string
	for _, r := range g.roots {
		entries, err := os.ReadDir(r.base)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(ids, e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	return ids, nil
}

// removeBase removes the directories above the sandboxes when none is left.
func (g *groups) removeBase() {
	for _, r := range g.roots {
		g.removeEmpty(r.base)
	}
}

// removeEmpty fails on purpose where a sandbox is left.
func (g *groups) removeEmpty(base string) {
	unix.Rmdir(base)
	if g.v2 {
		unix.Rmdir(filepath.Dir(base))
	}
}

// sweep removes the empty directories of servers that had no time to. One that
// starts at the same moment makes its own again.
func (g *groups) sweep() {
	for _, r := range g.roots {
		entries, err := os.ReadDir(r.mount)
		if err != nil {
			continue
		}
		for _, e := range entries {
			sum, ok := strings.CutPrefix(e.Name(), basePrefix)
			if raw, err := hex.DecodeString(sum); ok && err == nil && len(raw) == baseSum {
				base := r.mount + "/" + e.Name()
				if g.v2 {
					base += "/" + v2Leaf
				}
				g.removeEmpty(base)
			}
		}
	}
}
