package spawn

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/wire"
)

// rounds bounds how often a tree that goes on forking is looked at anew.
const rounds = 64

// killLineage is KillAll for a kernel, as gVisor's, that has no mark. Who belongs to a
// command its lineage says: the leader's children, its session, and who has its
// variable in the environment. They are stopped until no look finds another, so that
// none forks away, and then killed. A process that leaves all three on purpose is not
// found; it goes with the sandbox.
func (p *process) killLineage() {
	found := map[int]bool{}
	for range rounds {
		before := len(found)
		p.gather(found)
		if len(found) == before {
			break
		}
	}
	for pid := range found {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// gather stops what belongs to the command and is not in found yet, and adds it.
func (p *process) gather(found map[int]bool) {
	// Held, so that the leader's number stays its own.
	p.owner.mu.Lock()
	defer p.owner.mu.Unlock()
	leader := 0
	select {
	case <-p.done: // its number may be another's by now
	default:
		leader = p.pid
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 || found[pid] {
			continue
		}
		parent, session := relatives(pid)
		ours := leader != 0 && (pid == leader || parent == leader || session == leader) || found[parent] || p.named(pid)
		if ours && unix.Kill(pid, unix.SIGSTOP) == nil {
			found[pid] = true
		}
	}
}

// relatives are a process's parent and session, 0 when it has gone.
func relatives(pid int) (parent, session int) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	// The name in parentheses may hold anything, also parentheses.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 4 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(fields[1])
	session, _ = strconv.Atoi(fields[3])
	return parent, session
}

// named says whether a process has the command's variable.
func (p *process) named(pid int) bool {
	if p.variable == "" {
		return false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for _, kv := range bytes.Split(text, []byte{0}) {
		if string(kv) == p.variable {
			return true
		}
	}
	return false
}

// variableOf is the variable by which a command's processes are known.
func variableOf(spec wire.Start) string {
	for _, kv := range spec.Env {
		if strings.HasPrefix(kv, wire.MarkVariable+"=") {
			return kv
		}
	}
	return ""
}
