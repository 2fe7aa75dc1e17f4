package docker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
)

// refusals is where the kernel counts the processes that an environment was refused.
type refusals struct {
	file   string // of the container's cgroup; "" where nobody can tell
	before int64  // counted before this driver had the environment
}

// ProcessRefusals is sandboxd.ProcessRefusals'.
func (d *Driver) ProcessRefusals(id string) (int64, bool) {
	e, err := d.running(id)
	if err != nil {
		return 0, false
	}
	<-e.looked
	n, err := refused(e.refusals.file)
	return n - e.refusals.before, err == nil
}

// findRefusals looks where the kernel counts for an environment. An engine does not
// say; the container's process does, if it is the init and not another kernel, and if
// this process sees it and the cgroups of the engine.
func (d *Driver) findRefusals(e *environment, seen container.InspectResponse, adopted bool) {
	process := fmt.Sprintf("/proc/%d/", seen.State.Pid)
	line, err := os.ReadFile(process + "cmdline")
	switch {
	case err != nil:
		return
	case !bytes.HasPrefix(line, []byte(initPath+"\x00")):
		if bytes.HasSuffix(line, []byte(seen.ID+"\x00")) {
			e.kernel = seen.State.Pid
		}
		return
	}
	groups, err := os.ReadFile(process + "cgroup")
	if err != nil {
		return
	}
	e.process1 = seen.State.Pid
	r := refusals{file: eventsFile(string(groups), seen.ID)}
	n, err := refused(r.file)
	if err != nil {
		return
	}
	if adopted {
		r.before = n
	}
	e.refusals = r
}

// eventsFile is the file of a process's cgroup, of either version, that counts. Only
// one that is named by the container is that one's own.
func eventsFile(groups, container string) string {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || !strings.Contains(fields[2], container) || strings.Contains(fields[2], "..") {
			continue
		}
		if fields[1] == "pids" || fields[1] == "" {
			return filepath.Join("/sys/fs/cgroup", fields[1], fields[2], "pids.events")
		}
	}
	return ""
}

func refused(file string) (int64, error) {
	if file == "" {
		return 0, errors.New("nobody counts")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	number, found := strings.CutPrefix(strings.TrimSpace(string(text)), "max ")
	if !found {
		return 0, fmt.Errorf("%s counts nothing", file)
	}
	return strconv.ParseInt(number, 10, 64)
}
