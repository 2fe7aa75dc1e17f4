// Package proc reads what the processes of a sandbox used, from outside and where this
// machine's /proc has them. What cannot be read counts as nothing: a process may end at
// any time.
package proc

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is what the kernel counts processor time of a process in, everywhere.
const clockTick = 10 * time.Millisecond

// read answers a file's text, nothing for one that cannot be read.
func read(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(text)
}

// mostSampled bounds how many processes of one sandbox are asked.
const mostSampled = 2048

// Family lists a process and those below it.
func Family(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids) && len(pids) < mostSampled; i++ {
		dir := "/proc/" + strconv.Itoa(pids[i]) + "/task"
		threads, err := os.ReadDir(dir)
		if err != nil {
			continue // it ended
		}
		for _, t := range threads {
			for _, f := range strings.Fields(read(dir + "/" + t.Name() + "/children")) {
				if child, err := strconv.Atoi(f); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
	return pids
}

// IO is what a process and those it has reaped read and wrote.
func IO(pid int) int64 {
	dir := "/proc/" + strconv.Itoa(pid)
	text := read(dir + "/io")
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

// CPU is the processor time of a process and those it has reaped.
func CPU(pid int) time.Duration {
	text := read("/proc/" + strconv.Itoa(pid) + "/stat")
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
	return time.Duration(sum) * clockTick
}

// Network is what the interfaces of a process's network received: over loopback
// that is what was sent, too. A network that is the host's is not the sandbox's.
func Network(pid int) int64 {
	dir := "/proc/" + strconv.Itoa(pid)
	its, err := os.Readlink(dir + "/ns/net")
	own, ownErr := os.Readlink("/proc/self/ns/net")
	if err != nil || ownErr != nil || its == own {
		return 0
	}
	text := read(dir + "/net/dev")
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
