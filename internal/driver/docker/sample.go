package docker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/proc"
)

var _ sandboxd.Sampler = (*Driver)(nil)

// Sample is sandboxd.Sampler's. The engine counts for runc and gVisor alike; what is
// read and written is what reached a disk or a network. An OCI runtime that is set up to
// ignore cgroups has no counters of a container: the engine then tells those of the group
// that it runs in itself, which a limit gives away that is not the container's.
func (d *Driver) Sample(ctx context.Context, id string) (sandboxd.Sample, error) {
	e, err := d.running(id)
	if err != nil {
		return sandboxd.Sample{}, err
	}
	d.mu.Lock()
	name := e.container
	d.mu.Unlock()
	stats, err := d.engine.stats(ctx, name)
	if err != nil {
		if _, gone := d.running(id); gone != nil {
			return sandboxd.Sample{}, gone
		}
		return sandboxd.Sample{}, err
	}
	limit := d.limitsOf(e).MemoryBytes
	s := sandboxd.Sample{CPU: e.computed()}
	if int64(stats.MemoryStats.Limit) <= limit {
		memory, pids := inUse(stats.MemoryStats), int64(stats.PidsStats.Current)
		s = sandboxd.Sample{CPU: time.Duration(stats.CPUStats.CPUUsage.TotalUsage), IOBytes: e.transferred(stats),
			MemoryBytes: &memory, MemoryLimit: &limit, PIDs: &pids}
	}
	if _, err := d.running(id); err != nil {
		return sandboxd.Sample{}, err
	}
	return s, nil
}

// computed is the processor time of gVisor's kernel and what it runs, where this machine
// has them.
func (e *environment) computed() (sum time.Duration) {
	<-e.looked
	if e.kernel != 0 {
		for _, pid := range proc.Family(e.kernel) {
			sum += proc.CPU(pid)
		}
	}
	return sum
}

// inUse is what cannot be had back at once.
func inUse(m container.MemoryStats) int64 {
	used := int64(m.Usage)
	for _, field := range []string{"total_inactive_file", "inactive_file"} { // versions 1 and 2
		if cache, ok := m.Stats[field]; ok {
			return max(0, used-int64(cache))
		}
	}
	return used
}

// transferred is what was read and written. The processes say it where they are this
// machine's; an engine only knows what came to a disk, which is later, or never of what
// is written over. Under gVisor that is all there is.
func (e *environment) transferred(stats container.StatsResponse) (sum int64) {
	select {
	case <-e.looked:
		if e.process1 != 0 {
			for _, pid := range proc.Family(e.process1) {
				sum += proc.IO(pid)
			}
			return sum + proc.Network(e.process1)
		}
	default:
	}
	for _, n := range stats.Networks {
		sum += int64(n.RxBytes + n.TxBytes)
	}
	for _, n := range stats.BlkioStats.IoServiceBytesRecursive {
		if n.Op == "read" || n.Op == "write" || n.Op == "Read" || n.Op == "Write" { // versions 2 and 1
			sum += int64(n.Value)
		}
	}
	return sum
}

// stats reads the counters of a container once.
func (e *engine) stats(ctx context.Context, name string) (stats container.StatsResponse, err error) {
	err = e.call(ctx, func(ctx context.Context) error {
		res, err := e.api.ContainerStats(ctx, name, client.ContainerStatsOptions{})
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return json.NewDecoder(res.Body).Decode(&stats)
	})
	return stats, err
}
