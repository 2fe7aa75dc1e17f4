package process

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sandboxd"
)

// commandGroups are the groups of one environment's commands, and on version 1 a few
// empty ones. Making and removing a group costs a third of a short command: one
// that an ordinary command left as it was gets the next one's name instead.
// Version 2 has no renaming.
type commandGroups struct {
	g *groups

	mu     sync.Mutex
	held   map[string]*group // by path
	spares []*group
	left   []string // of ended commands, with processes when these ended
	made   int      // counts the names of spares
	closed bool
}

const (
	sparePrefix = "spare-"
	// Each costs the kernel some 100 KiB; of the starts that come at once, most
	// follow an ending.
	maxSpares = 4
	// What may still be accounted to a group that is used again: the kernel takes
	// memory for each processor ahead, in batches of this order.
	spareMemory = 1 << 20
)

func newCommandGroups(g *groups) *commandGroups {
	return &commandGroups{g: g, held: map[string]*group{}}
}

// adopt finds the spares of an earlier server. One that it was renaming when it died
// is not in every hierarchy, and no use.
func (s *commandGroups) adopt(id string) {
	dir := filepath.Join(id, commandsDir)
	entries, err := os.ReadDir(s.g.dir("pids", dir))
	if err != nil {
		return // without them others are made
	}
	for _, e := range entries {
		if n, ok := strings.CutPrefix(e.Name(), sparePrefix); ok {
			number, err := strconv.Atoi(n)
			if err != nil {
				continue
			}
			s.made = max(s.made, number)
			if c := s.g.group(filepath.Join(dir, e.Name())); c.whole() && len(s.spares) < maxSpares {
				s.spares = append(s.spares, c)
			}
		}
	}
}

// close lets go of the descriptors; the groups stay.
func (s *commandGroups) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, c := range s.held {
		c.close()
	}
	for _, c := range s.spares {
		c.close()
	}
	s.held, s.spares = nil, nil
}

// create makes a group with limits and answers the files by which it is joined;
// pids is the sandbox's limit. An error that is fs.ErrExist says that it is there.
func (s *commandGroups) create(sub string, limits sandboxd.CommandLimits, pids int64) ([]*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, gone(sandboxOf(sub))
	}
	if s.held[sub] != nil {
		return nil, fs.ErrExist
	}
	c, err := s.spare(sub, limits)
	if err != nil {
		return nil, err
	}
	if c == nil {
		if c, err = s.make(sub, limits, pids); err != nil {
			return nil, err
		}
	}
	files, err := c.joinFiles()
	if err != nil {
		c.close()
		return nil, err
	}
	s.held[sub] = c
	return files, nil
}

// prepare makes a first spare in the groups of an environment that nobody waits for yet:
// the first command of its sandbox then waits for none. pids is the sandbox's limit.
func (s *commandGroups) prepare(name string, pids int64) error {
	if s.g.v2 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	c, err := s.make(filepath.Join(name, commandsDir, sparePrefix+strconv.Itoa(s.made)), sandboxd.CommandLimits{}, pids)
	if err != nil {
		return err
	}
	s.spares = append(s.spares, c) // nothing of it is open yet
	return nil
}

// spare answers a spare under its new name, nil when there is none that will do.
func (s *commandGroups) spare(sub string, limits sandboxd.CommandLimits) (*group, error) {
	if limits != (sandboxd.CommandLimits{}) || len(s.spares) == 0 {
		return nil, nil
	}
	last := len(s.spares) - 1
	c := s.spares[last]
	err := c.rename(sub)
	if errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	s.spares = s.spares[:last]
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (s *commandGroups) make(sub string, limits sandboxd.CommandLimits, pids int64) (*group, error) {
	g := s.g
	c := g.group(sub)
	c.cpus = limits.CPUs > 0
	c.once = limits != (sandboxd.CommandLimits{})
	if c.counted = limits.PIDs > 0; c.counted {
		pids = limits.PIDs
	}
	if err := g.createCommand(sub, c.cpus); err != nil {
		return nil, err
	}
	// The limit of processes also where it is the sandbox's: so that what is refused
	// is counted for the command.
	for _, err := range []error{g.limitMemory(sub, limits.MemoryBytes, 0), g.limitPIDs(sub, pids), g.limitCPU(sub, limits.CPUs)} {
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// limitPIDs changes the limit of those groups that have the sandbox's.
func (s *commandGroups) limitPIDs(pids int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, c := range slices.AppendSeq(slices.Clone(s.spares), maps.Values(s.held)) {
		if !c.counted {
			errs = append(errs, s.g.limitPIDs(c.sub, pids))
		}
	}
	return errors.Join(errs...)
}

// with runs do with a group, known or found on disk, while nobody else has it.
func (s *commandGroups) with(sub string, do func(*group) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.held[sub]; c != nil {
		return do(c)
	}
	c := s.g.group(sub)
	c.once = true // with what limits it was made nobody knows
	defer c.close()
	return do(c)
}

// used says that a group was treated in a way that it keeps.
func (s *commandGroups) used(sub string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.held[sub]; c != nil {
		c.once = true
	}
}

// keep makes an empty group a spare if it is as if it were new. Inside with.
func (s *commandGroups) keep(c *group) bool {
	if s.g.v2 || s.closed || c.once || len(s.spares) >= maxSpares || c.oomKills() > 0 || c.pidsRefused() > 0 ||
		c.number("memory", "memory.usage_in_bytes") > spareMemory {
		return false
	}
	for controller, file := range map[string]string{"memory": "memory.max_usage_in_bytes", "cpuacct": "cpuacct.usage"} {
		if s.g.dir(controller, c.sub) != "" && s.g.write(controller, c.sub, file, "0") != nil {
			return false
		}
	}
	if s.g.write("memory", c.sub, "memory.failcnt", "0") != nil {
		return false
	}
	old := c.sub
	s.made++
	if c.rename(filepath.Join(filepath.Dir(old), sparePrefix+strconv.Itoa(s.made))) != nil {
		return false
	}
	delete(s.held, old)
	s.spares = append(s.spares, c)
	return true
}

// drop forgets a group that is to be removed, or is left to what runs in it.
func (s *commandGroups) drop(sub string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.held[sub]; c != nil {
		c.close()
		delete(s.held, sub)
	}
}

// leave notes that a group's processes outlive its command.
func (s *commandGroups) leave(sub string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && !slices.Contains(s.left, sub) {
		s.left = append(s.left, sub)
	}
}

// sweep removes groups whose processes have ended since. Each ending looks at two and
// adds at most one, so there are about twice as many as have processes at most.
func (s *commandGroups) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range min(2, len(s.left)) {
		sub := s.left[0]
		s.left = s.left[1:]
		c := s.g.group(sub)
		busy := c.number("pids", "pids.current") > 0 // at a tenth of the price of trying
		c.close()
		if !busy {
			removed, err := s.g.tryRemove(sub)
			busy = err != nil || !removed
		}
		if busy {
			s.left = append(s.left, sub)
		}
	}
}
