package process

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"sandboxd"
)

var _ sandboxd.Sampler = (*Driver)(nil)

// clockTick is what the kernel counts processor time of a process in, everywhere.
const clockTick = 10 * time.Millisecond

// Sample is sandboxd.Sampler's. Processor time, memory and processes come from the
// cgroups where there are some; what was read and written is what its processes and
// those they have reaped say of themselves, and what went over its network. All of it
// is read from outside: nothing of the sandbox runs for it.
func (d *Driver) Sample(_ context.Context, id string) (sandboxd.Sample, error) {
	e, err := d.running(id)
	if err != nil {
		return sandboxd.Sample{}, err
	}
	var s sandboxd.Sample
	pids := family(e.pid)
	var ticks int64
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		s.IOBytes += ioOf(dir)
		if d.groups == nil {
			ticks += ticksOf(dir)
		}
	}
	s.IOBytes += networkOf(e.pid)
	if d.groups == nil {
		s.CPU = time.Duration(ticks) * clockTick
		n := int64(len(pids))
		s.PIDs = &n
	} else {
		d.groups.sample(e.name, &s)
	}
	// Whose numbers these were is known only if it lives on.
	if _, err := d.running(id); err != nil {
		return sandboxd.Sample{}, err
	}
	return s, nil
}

// sample adds what the cgroups of a sandbox count.
func (g *groups) sample(name string, s *sandboxd.Sample) {
	whole, commands := g.group(name), g.group(name+"/"+commandsDir)
	defer whole.close()
	defer commands.close()
	s.CPU = whole.cpu()
	pids := commands.number("pids", "pids.current")
	s.PIDs = &pids
	used := commands.number("memory", "memory.usage_in_bytes") - commands.field("memory", "memory.stat", "total_inactive_file")
	if g.v2 {
		used = commands.number("memory", "memory.current") - commands.field("memory", "memory.stat", "inactive_file")
	}
	used = max(0, used)
	s.MemoryBytes = &used
	if limit := commands.memoryLimit(); limit > 0 {
		s.MemoryLimit = &limit
	}
}

// mostSampled bounds how many processes of one sandbox are asked.
const mostSampled = 2048

// family lists a process and those below it.
func family(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids) && len(pids) < mostSampled; i++ {
		dir := "/proc/" + strconv.Itoa(pids[i]) + "/task"
		threads, err := os.ReadDir(dir)
		if err != nil {
			continue // it ended
		}
		for _, t := range threads {
			text, err := readFile(dir + "/" + t.Name() + "/children")
			if err == nil {
				pids = append(pids, pidsIn(text)...)
			}
		}
	}
	return pids
}

// ioOf is what a process and those it has reaped read and wrote.
func ioOf(dir string) int64 {
	text, err := readFile(dir + "/io")
	if err != nil {
		return 0 // it ended, or is not to be looked at without privileges
	}
	var sum int64
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && (name == "rchar" || name == "wchar") {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err == nil {
				sum += n
			}
		}
	}
	return sum
}

// ticksOf is the processor time of a process and those it has reaped.
func ticksOf(dir string) int64 {
	text, err := readFile(dir + "/stat")
	if err != nil {
		return 0
	}
	// The name of the program is in brackets and may have any character.
	_, rest, _ := strings.Cut(text[strings.LastIndexByte(text, ')')+1:], " ")
	fields := strings.Fields(rest)
	const first, last = 11, 14 // utime, stime, cutime, cstime, counted from the state
	var sum int64
	for i := first; i <= last && i < len(fields); i++ {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err == nil {
			sum += n
		}
	}
	return sum
}

// networkOf is what the interfaces of a process's network received: over loopback
// that is what was sent, too. A network that is the host's is not the sandbox's.
func networkOf(pid int) int64 {
	dir := "/proc/" + strconv.Itoa(pid)
	its, err := os.Readlink(dir + "/ns/net")
	own, ownErr := os.Readlink("/proc/self/ns/net")
	if err != nil || ownErr != nil || its == own {
		return 0
	}
	text, err := readFile(dir + "/net/dev")
	if err != nil {
		return 0
	}
	var sum int64
	for line := range strings.Lines(text) {
		_, counters, ok := strings.Cut(line, ":")
		if f := strings.Fields(counters); ok && len(f) > 0 {
			if n, err := strconv.ParseInt(f[0], 10, 64); err == nil {
				sum += n
			}
		}
	}
	return sum
}
