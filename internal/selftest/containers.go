package selftest

import (
	"slices"
	"strconv"
	"strings"
)

// judge is Judge for sandboxes of this kind.
func (t *trial) judge(found map[string]string) []Line {
	if t.Image == "" {
		return Judge(found)
	}
	var lines []Line
	for _, c := range containerChecks(t.OwnKernel) {
		lines = append(lines, c.judge(found))
	}
	for i, l := range lines {
		if l.Verdict != OK {
			continue
		}
		for _, w := range weaker {
			if l.Mechanism == w.mechanism && l.Attempts[w.attempt] == "ok" {
				lines[i].Verdict, lines[i].Got = Weak, w.got
			}
		}
	}
	return lines
}

// weaker are the attempts that may succeed, and cost a layer.
var weaker = []struct{ mechanism, attempt, got string }{
	{"process 1", "read /proc/1/environ", "a sandbox can look at its own process 1, and not change it"},
	{"own root", "read /sys", "/sys can be read: it tells of the machine's devices"},
}

// inContainers is what a container answers otherwise: its root is the image's, which
// may lack what is asked for, and it has one group, its own.
var inContainers = map[string][]expectation{
	"own user":          {{name: "status Groups", right: oneGroup}},
	"pid namespace":     {{name: "command lines", right: onlyOursInContainer}},
	"masks":             {{name: "write /proc/sys/", answers: denied + " " + absent}},
	"read-only root":    {{name: "write /usr/bin/env", answers: denied + " " + absent}},
	"own root":          {{name: "read /sys", answers: denied + " " + absent + " ok"}, {name: "read /", answers: absent + " EACCES"}},
	"network namespace": {{name: "reach the network", answers: "ENETUNREACH EHOSTUNREACH"}},
}

// underOwnKernel is what gVisor's kernel answers in addition. Devices are its own, and
// it neither tells of some things nor has them.
var underOwnKernel = map[string][]expectation{
	"ordinary work": {{name: "call personality ask", answers: "ok EINVAL"}},
	"process 1":     {{name: "read /proc/1/root", answers: denied}, {name: "read /proc/1/cwd", answers: denied}, {name: "read /proc/1/", answers: denied + " ok"}},
	"masks":         {{name: "writable /proc/", answers: "EROFS ENOSYS " + absent}},
	"devices":       {{name: "mknod", answers: denied + " ok"}},
	"descriptors":   {{name: "descriptors", answers: "3 5"}}, // two are of /sys/fs/cgroup, by the prober's own runtime
}

// untold are those that gVisor does not tell of.
var untold = []string{"status CapAmb", "status NoNewPrivs"}

// containerChecks are checks with what is otherwise before what is usual.
func containerChecks(ownKernel bool) []check {
	var all []check
	for _, c := range checks {
		var expected []expectation
		if ownKernel {
			expected = append(expected, underOwnKernel[c.mechanism]...)
		} else if c.mechanism == "descriptors" {
			expected = append(expected, underOwnKernel[c.mechanism]...)
		}
		expected = append(expected, inContainers[c.mechanism]...)
		names := map[string]bool{}
		for _, e := range expected {
			names[e.name] = true
		}
		for _, e := range c.expectations {
			if !names[e.name] && !(ownKernel && slices.Contains(untold, e.name)) {
				expected = append(expected, e)
			}
		}
		if len(expected) > 0 {
			c.expectations = expected
			all = append(all, c)
		}
	}
	return all
}

// oneGroup: at most one, and not root's.
func oneGroup(got string) bool {
	n, err := strconv.Atoi(got)
	return got == "" || err == nil && n > 0
}

// onlyOursInContainer is onlyOurs where process 1 has another name.
func onlyOursInContainer(got string) bool {
	for _, line := range strings.Split(got, "|") {
		if !strings.HasPrefix(line, "/.sandboxd-init ") && !strings.Contains(line, ProberName) {
			return false
		}
	}
	return true
}
