package spawn

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// alone is what a spawner does in place of cgroups: it limits each process, and it
// marks those of a command so that all of them can be found and ended.
//
// The mark is the limit of file locks, which no kernel since 2.4.25 looks at: every
// process inherits it through fork and exec, anyone can read it in /proc, and a filter
// of process 1, which every process inherits too, forbids to change it to whoever does
// not know the key. Sessions, parents and environments say who belongs together only as
// long as nobody minds.
type alone struct {
	dataBytes, processes uint64 // 0 for no limit
	marks                bool   // the kernel has the mark
	last                 uint64 // mark that was given
	key                  key
}

// key are two values in registers that the call does not use. A new process has them
// until its exec, in the memory of process 1, which nobody can look into; the kernel
// shows a filter to nobody in a sandbox. One filter for all costs a command nothing; one
// of its own cost it 0.07 ms.
type key [2]uint64

// rlimitLocks is RLIMIT_LOCKS; limitsLine begins its line in /proc/<pid>/limits.
const (
	rlimitLocks = 10
	limitsLine  = "Max file locks"
)

// ownThreads is what process 1 may need beside the commands where its threads count
// in the same limit as they.
const ownThreads = 64

// Alone makes each command one without a cgroup: its processes are marked and limited
// in data (RLIMIT_DATA) and in number, which all of the sandbox count in. 0 is no limit.
// It changes every thread, and needs no_new_privs.
func (s *Spawner) Alone(dataBytes, processes uint64) error {
	if processes != 0 {
		processes += ownThreads
	}
	// More than this process may have cannot be given.
	for resource, most := range map[int]*uint64{unix.RLIMIT_DATA: &dataBytes, unix.RLIMIT_NPROC: &processes} {
		var own unix.Rlimit
		if err := unix.Prlimit(0, resource, nil, &own); err == nil && *most != 0 {
			*most = min(*most, own.Max)
		}
	}
	a := &alone{dataBytes: dataBytes, processes: processes, marks: canMark()}
	if a.marks {
		if err := a.keepMarks(); err != nil {
			return fmt.Errorf("keep the marks of commands: %w", err)
		}
	}
	s.alone = a
	return nil
}

// keepMarks draws the key and puts the filter into force.
func (a *alone) keepMarks() error {
	var raw [16]byte
	if n, err := unix.Getrandom(raw[:], 0); err != nil || n != len(raw) {
		return fmt.Errorf("getrandom: %d bytes, %w", n, err)
	}
	a.key = key{binary.NativeEndian.Uint64(raw[:8]), binary.NativeEndian.Uint64(raw[8:])}
	code := keepMark(a.key)
	filter := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	thread, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if e != 0 {
		return e
	}
	if thread != 0 {
		return fmt.Errorf("thread %d has another filter", thread)
	}
	return nil
}

// canMark says whether the kernel keeps the limit that is the mark, and shows it.
// gVisor's refuses to set it.
func canMark() bool {
	var own unix.Rlimit
	return unix.Prlimit(0, rlimitLocks, nil, &own) == nil && unix.Prlimit(0, rlimitLocks, &own, nil) == nil &&
		strings.Contains(readProc("self", "limits"), limitsLine)
}

// prepare adds the limits and, where there are marks, a new one to a child, and
// answers it, else 0. Under the spawner's lock.
func (a *alone) prepare(c *child) uint64 {
	if a.dataBytes != 0 {
		c.limits = append(c.limits, newLimit(unix.RLIMIT_DATA, a.dataBytes))
	}
	if a.processes != 0 {
		c.limits = append(c.limits, newLimit(unix.RLIMIT_NPROC, a.processes))
	}
	if !a.marks {
		return 0
	}
	a.last++
	mark := newLimit(rlimitLocks, a.last)
	mark.key = a.key
	c.limits = append(c.limits, mark)
	return a.last
}

// keepMark is a program that refuses to set the limit that is the mark, but to the
// key. Calls of other architectures do not come this far: the filter of process 1 ends
// who makes one.
func keepMark(k key) []unix.SockFilter {
	const number, args, allow, refuse = 0, 16, 19, 20 // the last two are places in the program
	var code []unix.SockFilter
	load := func(at uint32) {
		code = append(code, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at})
	}
	// equal goes on at one place in the program or at another.
	equal := func(v uint32, yes, no int) {
		next := len(code) + 1
		code = append(code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: v, Jt: uint8(yes - next), Jf: uint8(no - next)})
	}
	answer := func(v uint32) {
		code = append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v})
	}
	load(number)
	equal(unix.SYS_SETRLIMIT, 2, 4)
	load(args) // the resource
	equal(rlimitLocks, refuse, allow)
	equal(unix.SYS_PRLIMIT64, 5, allow)
	load(args + 8) // the resource
	equal(rlimitLocks, 7, allow)
	load(args + 16) // where the new value is, which is nowhere for one that only asks
	equal(0, 9, 11)
	load(args + 16 + 4)
	equal(0, allow, 11)
	for i, word := range []uint32{uint32(k[0]), uint32(k[0] >> 32), uint32(k[1]), uint32(k[1] >> 32)} {
		load(args + 32 + 4*uint32(i)) // the registers behind the arguments
		next := len(code) + 1
		if i == 3 {
			next = allow
		}
		equal(word, next, refuse)
	}
	answer(unix.SECCOMP_RET_ALLOW)
	answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))
	return code
}

const (
	// killTime bounds KillAll.
	killTime = 3 * time.Second
	// stopRounds bounds how often it waits for what multiplies to stand still.
	stopRounds = 8
)

// KillAll is inside.Tree's. First everything is stopped, until nothing new is found:
// what is killed one by one makes room for what the rest forks, what is stopped does
// not.
func (p *process) KillAll() {
	switch {
	case p.owner.alone == nil:
		return // the host ends its cgroup
	case p.mark == 0:
		p.killLineage()
		return
	}
	seen := map[int]bool{}
	wait := 200 * time.Microsecond
	for begin, round := time.Now(), 0; time.Since(begin) < killTime; round++ {
		p.owner.atOnce <- struct{}{}
		alive, dead := marked(p.mark)
		<-p.owner.atOnce
		if len(alive)+dead == 0 {
			return
		}
		sig := unix.SIGKILL
		for _, pid := range alive {
			if !seen[pid] && round < stopRounds {
				sig = unix.SIGSTOP
			}
			seen[pid] = true
		}
		for _, pid := range alive {
			// The number was the command's a moment ago; between the two only the
			// kernel's wrap-around of all pids could give it away.
			_ = unix.Kill(pid, sig)
		}
		if sig == unix.SIGKILL {
			time.Sleep(wait)
			wait = min(2*wait, 10*time.Millisecond)
		}
	}
}

// marked lists the living processes with a mark and counts the dead ones.
func marked(mark uint64) (alive []int, dead int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, 0
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, 0
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		switch {
		case err != nil || pid <= 1 || markOf(name) != mark:
		case lives(name):
			alive = append(alive, pid)
		default:
			dead++
		}
	}
	return alive, dead
}

// markOf is the mark of a process, 0 for none.
func markOf(pid string) uint64 {
	_, rest, ok := strings.Cut(readProc(pid, "limits"), limitsLine)
	if !ok {
		return 0
	}
	fields := strings.Fields(rest[:min(len(rest), 64)])
	if len(fields) == 0 {
		return 0
	}
	mark, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return 0 // unlimited
	}
	return mark
}

// lives says whether a process can still do something: a dead one waits for its
// parent, unless it has threads that outlived the first.
func lives(pid string) bool {
	text := readProc(pid, "stat")
	const state, threads = 0, 20 - 3 // counted from field 3, behind the name
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= threads {
		return false
	}
	dead := fields[state] == "Z" || fields[state] == "X"
	return !dead || fields[threads] != "1" && fields[threads] != "0"
}

func readProc(pid, file string) string {
	fd, err := unix.Open("/proc/"+pid+"/"+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "" // it ended
	}
	defer unix.Close(fd)
	var buf [4096]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return ""
	}
	return string(buf[:n])
}
