package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandboxd"
)

// What ends sandboxes beside the server: a supervisor that ends the control group it
// started the server in, and the end of the container that the server is in.

// firstNamespace is how the kernel calls the PID namespace that it began with.
const firstNamespace = "pid:[4026531836]"

// contained says whether this process is in a PID namespace that can end before the machine.
func contained() bool {
	name, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && name != firstNamespace
}

// thisBoot names the time in which a process of ours can go on: that of the machine, and in a
// container that of the container.
func thisBoot() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	boot := string(text[:36])
	if !contained() {
		return boot, nil
	}
	began, err := startTime(1)
	if err != nil {
		return "", fmt.Errorf("read when the container began: %w", err)
	}
	return fmt.Sprintf("%s+%d", boot, began), nil
}

// shared are the hierarchies by which supervisors know what is theirs and in which
// another process is in this one's group or below it: where the end of the whole group
// ends both. The others only limit.
func shared(pid int) ([]string, error) {
	own, err := hierarchies("self")
	if err != nil {
		return nil, err
	}
	its, err := hierarchies(fmt.Sprint(pid))
	if err != nil {
		return nil, err
	}
	var names []string
	for name, group := range own {
		if rel, err := filepath.Rel(group, its[name]); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") && (rel == "." || group != "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// hierarchies are the groups of a process in the hierarchies of supervisors: version 2,
// and the named ones of version 1.
func hierarchies(process string) (map[string]string, error) {
	text, err := os.ReadFile("/proc/" + process + "/cgroup")
	if err != nil {
		return nil, err
	}
	groups := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 {
			continue
		}
		switch name, named := strings.CutPrefix(fields[1], "name="); {
		case fields[1] == "":
			groups["version 2"] = fields[2]
		case named:
			groups[name] = fields[2]
		}
	}
	return groups, nil
}

// survivalLevel are the lines of the report on what ends sandboxes beside the server.
func survivalLevel(shared []string) []sandboxd.LevelLine {
	line := sandboxd.LevelLine{Name: "own group", OK: len(shared) == 0, Detail: "sandboxes are in none of the server's control groups"}
	if !line.OK {
		line.Detail = "sandboxes are in the server's control group of " + strings.Join(shared, " and ")
		line.Why = "a supervisor that ends the whole group ends them: with systemd set KillMode=process, as deploy/sandboxd.service does"
	}
	lines := []sandboxd.LevelLine{line}
	if contained() {
		lines = append(lines, sandboxd.LevelLine{Name: "own machine", Detail: "the server is in a container",
			Why: "sandboxes end when it is stopped or replaced, with the cause host_restart; files stay, and containers of the docker driver go on"})
	}
	return lines
}
