package process

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// group is one cgroup and the descriptors that were needed of it, so that the next
// look at a counter opens nothing. One goroutine at a time may use it.
type group struct {
	g       *groups
	sub     string
	cpus    bool // limited in processors
	once    bool // not to be used again
	counted bool // has a limit of processes of its own
	join    []int
	open    map[string]int // counters by file name
}

func (g *groups) group(sub string) *group { return &group{g: g, sub: sub, open: map[string]int{}} }

func (c *group) close() {
	closeAll(c.join)
	for _, fd := range c.open {
		unix.Close(fd)
	}
	c.join, c.open = nil, map[string]int{}
}

// joinFiles answers files of the caller's own by which the group is joined.
func (c *group) joinFiles() ([]*os.File, error) {
	if c.join == nil {
		var err error
		if c.join, err = c.g.open(c.sub, c.cpus); err != nil {
			return nil, err
		}
	}
	files := make([]*os.File, 0, len(c.join))
	for _, fd := range c.join {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		files = append(files, os.NewFile(uintptr(own), c.g.joinFile()))
	}
	return files, nil
}

// rename gives the group another name in every hierarchy. fs.ErrExist leaves it as it
// is; after any other error it is not to be used.
func (c *group) rename(sub string) error {
	for i, r := range c.g.roots {
		if !r.splits(c.cpus) {
			continue
		}
		err := unix.Rename(r.path(c.sub), r.path(sub))
		switch {
		case err == nil:
		case i == 0 && (err == unix.EEXIST || err == unix.ENOTEMPTY):
			return fs.ErrExist
		default:
			return fmt.Errorf("rename a cgroup: %w", err)
		}
	}
	c.sub = sub
	return nil
}

// whole says whether the group is there in every hierarchy in which it should be.
func (c *group) whole() bool {
	for _, r := range c.g.roots {
		if r.splits(c.cpus) && unix.Access(r.path(c.sub), unix.F_OK) != nil {
			return false
		}
	}
	return true
}

// text reads a whole file of the group.
func (c *group) text(controller, file string) (string, error) {
	fd, ok := c.open[file]
	if !ok {
		var err error
		fd, err = retryInterrupted(func() (int, error) {
			return unix.Open(c.g.dir(controller, c.sub)+"/"+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		})
		if err != nil {
			return "", err
		}
		c.open[file] = fd
	}
	var text []byte
	var buf [4096]byte
	for {
		n, err := retryInterrupted(func() (int, error) { return unix.Pread(fd, buf[:], int64(len(text))) })
		if err != nil {
			return "", err
		}
		if n == 0 {
			return string(text), nil
		}
		text = append(text, buf[:n]...)
	}
}

// number reads a file that holds one; what is not there, or no number, is 0.
func (c *group) number(controller, file string) int64 {
	text, err := c.text(controller, file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0 // as "max"
	}
	return n
}

// field answers the number after a word; what is not there is 0.
func (c *group) field(controller, file, name string) int64 {
	text, err := c.text(controller, file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// processes counts those of this group alone. Nearly always there is none, which the
// counter of threads says at a tenth of the price of a list.
func (c *group) processes() (int, error) {
	text, err := c.text("pids", "pids.current")
	if err != nil || strings.TrimSpace(text) == "0" {
		return 0, err
	}
	// Opened anew each time: on version 1 a descriptor goes on telling what it told first.
	if text, err = readFile(c.g.dir("pids", c.sub) + "/cgroup.procs"); err != nil {
		return 0, err
	}
	return len(pidsIn(text)), nil
}

func pidsIn(text string) []int {
	var pids []int
	for _, f := range strings.Fields(text) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// memoryLimit is 0 for none.
func (c *group) memoryLimit() int64 {
	if c.g.v2 {
		return c.number("memory", "memory.max")
	}
	n := c.number("memory", "memory.limit_in_bytes")
	if n >= 1<<60 {
		return 0 // how version 1 writes none
	}
	return n
}

func (c *group) peak() int64 {
	if c.g.v2 {
		return c.number("memory", "memory.peak")
	}
	return c.number("memory", "memory.max_usage_in_bytes")
}

// oomKills counts the processes of this group, by whichever limit they died.
func (c *group) oomKills() int64 {
	if c.g.v2 {
		return c.field("memory", "memory.events", "oom_kill")
	}
	return c.field("memory", "memory.oom_control", "oom_kill")
}

// hitLimit says whether the group's own memory limit was reached.
func (c *group) hitLimit() bool {
	if c.g.v2 {
		return c.field("memory", "memory.events", "oom") > 0
	}
	return c.number("memory", "memory.failcnt") > 0
}

func (c *group) pidsRefused() int64 { return c.field("pids", "pids.events", "max") }

func (c *group) cpu() time.Duration {
	if c.g.v2 {
		return time.Duration(c.field("cpu", "cpu.stat", "usage_usec")) * time.Microsecond
	}
	return time.Duration(c.number("cpuacct", "cpuacct.usage"))
}

func (g *groups) memoryLimit(sub string) int64 {
	c := g.group(sub)
	defer c.close()
	return c.memoryLimit()
}

func (g *groups) oomKills(sub string) int64 {
	c := g.group(sub)
	defer c.close()
	return c.oomKills()
}
