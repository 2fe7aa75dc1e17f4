package app

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"

	"sandboxd"
	"sandboxd/internal/app/datadir"
)

// supervision is how the server of a data directory is supervised, where it runs as a unit
// of systemd; found is false where it does not. safe says that sandboxes are in no group
// of the server whoever started it.
func supervision(ctx context.Context, data string, safe bool) (line sandboxd.LevelLine, found bool) {
	pid := datadir.Holder(data)
	if pid == 0 {
		return line, false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return line, false // it has just ended
	}
	unit, user := unitOf(string(text))
	if unit == "" {
		return line, false
	}
	mode := killMode(ctx, unit, user)
	line = sandboxd.LevelLine{Name: "supervisor", OK: safe || mode == "process" || mode == "none", Detail: unit + " with KillMode=" + mode,
		Why: "a stop of the unit ends the sandboxes of the process driver with the server: set KillMode=process and Delegate=yes, as deploy/sandboxd.service does"}
	return line, true
}

// unitOf answers the unit of systemd in whose control group a process is, and whether
// that is one of a user's own manager.
func unitOf(groups string) (unit string, user bool) {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 || fields[1] != "" && fields[1] != "name=systemd" {
			continue
		}
		for at := fields[2]; at != "/" && at != "."; at = path.Dir(at) {
			if strings.HasSuffix(at, ".service") {
				return path.Base(at), strings.Contains(path.Dir(at), "/user@")
			}
		}
	}
	return "", false
}

// killMode is what systemd ends with the unit, or "unknown".
func killMode(ctx context.Context, unit string, user bool) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	args := []string{"show", "--property=KillMode", "--value", "--", unit}
	if user {
		args = append([]string{"--user"}, args...)
	}
	out, err := exec.CommandContext(ctx, "systemctl", args...).Output()
	if mode := strings.TrimSpace(string(out)); err == nil && mode != "" {
		return mode
	}
	return "unknown"
}
