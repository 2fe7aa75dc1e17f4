package process

import (
	"context"

	"sandboxd"
	"sandboxd/internal/driver/proc"
)

var _ sandboxd.Sampler = (*Driver)(nil)

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
	pids := proc.Family(e.pid)
	for _, pid := range pids {
		s.IOBytes += proc.IO(pid)
		if d.groups == nil {
			s.CPU += proc.CPU(pid)
		}
	}
	s.IOBytes += proc.Network(e.pid)
	if d.groups == nil {
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
