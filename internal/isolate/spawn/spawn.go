// Package spawn starts and reaps the processes of a sandbox from its process 1.
// It implements inside.Spawner with a fork of its own, because a command must be
// in its cgroup before it runs its first instruction, and reaps every child of
// the process, so nothing else in the program may wait for one.
package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// defaultPath is used when a command's environment has no PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// Spawner starts commands. Make it with New; it is safe for concurrent use.
type Spawner struct {
	groups    []int // where a command goes that came without groups; kept open
	openFiles uint64
	alone     *alone        // nil where a cgroup holds each command together
	outlive   *outlive      // nil where the commands have memory of their own
	atOnce    chan struct{} // has one for each that may hold a thread for long

	mu       sync.Mutex // held over a fork, so that the reaper knows every child
	children map[int]*process
	born     chan struct{} // has one when there may be children again
}

// New makes a spawner whose commands join groups (files of cgroups, open, to write "0" to)
// unless they bring their own, and may open so many files, 0 for as many as this process.
func New(groups []int, openFiles uint64) *Spawner {
	var most unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &most); err == nil {
		openFiles = min(openFiles, most.Max) // more cannot be given
	}
	return &Spawner{groups: groups, openFiles: openFiles, children: map[int]*process{}, born: make(chan struct{}, 1), atOnce: make(chan struct{}, atOnce)}
}

// Reap collects children as they end and does not return. It waits in the kernel,
// with a thread of its own: by a signal the news would go through two more threads,
// which takes as long as starting a program.
func (s *Spawner) Reap() {
	for {
		// Only looked at here: a number must not be free before the lock is held.
		switch unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil) {
		case nil:
			s.collect()
			// Who waited goes on with this thread; another would have to be woken.
			runtime.Gosched()
		case unix.ECHILD:
			// Whatever is handed to process 1 comes from a child that it has.
			<-s.born
		}
	}
}

// collect takes every child that has ended.
func (s *Spawner) collect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &usage)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if p := s.children[pid]; p != nil {
			delete(s.children, pid)
			p.exit = exitOf(status, usage)
			close(p.done)
		}
	}
}

func exitOf(status unix.WaitStatus, usage unix.Rusage) wire.Exit {
	e := wire.Exit{
		CPUMicros: (usage.Utime.Sec+usage.Stime.Sec)*1e6 + int64(usage.Utime.Usec+usage.Stime.Usec),
		MaxRSS:    usage.Maxrss << 10,
	}
	if status.Signaled() {
		e.Signal = int(status.Signal())
	} else {
		e.Code = status.ExitStatus()
	}
	return e
}

// Spawn is inside.Spawner's.
func (s *Spawner) Spawn(spec wire.Start, groups []int) (inside.Process, error) {
	defer closeAll(groups)
	if len(spec.Argv) == 0 {
		return nil, &inside.SpawnError{Code: 127, Text: "no program is named"}
	}
	s.atOnce <- struct{}{}
	path, err := look(spec.Argv[0], spec.Env)
	<-s.atOnce
	if err != nil {
		return nil, err
	}
	p := &process{owner: s, variable: variableOf(spec), done: make(chan struct{})}
	stdio, err := p.open(spec)
	defer closeAll(stdio[:])
	if err != nil {
		p.abandon()
		return nil, fmt.Errorf("open the command's streams: %w", err)
	}
	if len(groups) == 0 {
		groups = s.groups
	}
	child, err := newChild(path, spec, stdio, groups)
	if err != nil {
		p.abandon()
		return nil, &inside.SpawnError{Code: 126, Text: err.Error()}
	}
	if s.openFiles != 0 {
		child.limits = append(child.limits, newLimit(unix.RLIMIT_NOFILE, s.openFiles))
	}
	s.mu.Lock()
	if s.alone != nil {
		p.mark = s.alone.prepare(child)
	}
	s.outlive.offer()
	pid, err := child.fork()
	s.outlive.withdraw()
	if err == nil {
		p.pid = pid
		s.children[pid] = p
	}
	s.mu.Unlock()
	if err != nil {
		p.abandon()
		return nil, err
	}
	select {
	case s.born <- struct{}{}:
	default:
	}
	return p, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd > 2 {
			unix.Close(fd)
		}
	}
}

// look finds the program as a shell would, in the root that the child shares.
func look(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	found := ""
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue // what it means would depend on the working directory
		}
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		if err != nil || info.IsDir() {
			continue
		}
		if unix.Access(file, unix.X_OK) == nil {
			return file, nil
		}
		found = file
	}
	if found != "" {
		return "", &inside.SpawnError{Code: 126, Text: name + ": permission denied"}
	}
	return "", &inside.SpawnError{Code: 127, Text: name + ": not found"}
}

// process is one started command.
type process struct {
	owner    *Spawner
	pid      int
	mark     uint64 // of every process of the command; 0 for none
	variable string // of the environment, for where there is no such mark
	stdin    io.WriteCloser
	outputs  []inside.Output
	master   *os.File // of a terminal
	done     chan struct{}
	exit     wire.Exit // valid once done is closed
}

// Leader is the number of the command's first process, which is its session's too.
func (p *process) Leader() int { return p.pid }

func (p *process) Stdin() io.WriteCloser    { return p.stdin }
func (p *process) Outputs() []inside.Output { return p.outputs }

func (p *process) Wait() wire.Exit {
	<-p.done
	return p.exit
}

// Signal holds the lock, so that the number cannot be another process by then.
func (p *process) Signal(sig int) error {
	p.owner.mu.Lock()
	defer p.owner.mu.Unlock()
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := unix.Kill(-p.pid, syscall.Signal(sig)); err != nil && err != unix.ESRCH {
		return err
	}
	return nil
}

func (p *process) Resize(cols, rows uint16) error {
	if p.master == nil {
		return errors.New("the command has no terminal")
	}
	raw, err := p.master.SyscallConn()
	if err != nil {
		return nil // closed: it has ended
	}
	var ierr error
	if err := raw.Control(func(fd uintptr) { ierr = setSize(int(fd), cols, rows) }); err != nil {
		return nil
	}
	return ierr
}

// abandon closes what open opened for a process that never was.
func (p *process) abandon() {
	if p.stdin != nil {
		p.stdin.Close()
	}
	for _, o := range p.outputs {
		o.R.Close()
	}
}
