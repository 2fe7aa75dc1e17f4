package setup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Run is stage one. It returns only by failing, after it has said so on FDReady.
func Run() error {
	// Credentials, no_new_privs and Landlock belong to a thread, and the exec at
	// the end keeps the calling one.
	runtime.LockOSThread()
	step, err := run()
	report := Report{Step: step, Error: err.Error()}
	_, werr := unix.Write(FDReady, report.Encode())
	return errors.Join(fmt.Errorf("%s: %w", step, err), werr)
}

func run() (string, error) {
	var spec Spec
	if err := readSpec(&spec); err != nil {
		return "read the specification", err
	}
	unix.Umask(0o022)
	self, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "open the init", err
	}
	p := privileges{spec: spec, self: self}
	first := []step{
		{"out of memory score", func() error { return spare(spec) }},
		{"cgroup namespace", func() error { return unix.Unshare(unix.CLONE_NEWCGROUP) }},
		{"build the root", func() error { return buildRoot(spec) }},
		{"terminals", p.terminals},
		{"loopback up", loopbackUp},
		{"set the host name", func() error { return unix.Sethostname([]byte(spec.Hostname)) }},
		{"limit resources", rlimits},
		{"timer slack", func() error { return unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0) }},
	}
	if name, err := do(first, spec.Without); err != nil {
		return name, err
	}
	if spec.Pooled {
		if err := await(&p.spec); err != nil {
			return "follow the orders", err
		}
	}
	last := []step{
		{"hand over to process 1", func() error { return passOn(p.spec.Second) }},
		{StepCapabilities, p.dropBounding},
		{StepUser, p.changeUser},
		{"no_new_privs", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }},
		{"landlock", p.landlock},
		{StepSeccomp, p.seccomp},
		{"start process 1", p.exec},
	}
	if name, err := do(last, spec.Without); err != nil {
		return name, err
	}
	return "start process 1", errors.New("exec returned")
}

type step struct {
	name string
	do   func() error
}

// do takes steps, without some, and names the one that failed.
func do(steps []step, without []string) (string, error) {
	for _, s := range steps {
		if slices.Contains(without, s.name) {
			continue
		}
		if err := s.do(); err != nil {
			return s.name, err
		}
	}
	return "", nil
}

// readSpec waits for the host and joins the init's cgroups. It leaves FDSpec open, so that its number is nobody else's until passOn.
func readSpec(spec *Spec) error {
	body, oob := make([]byte, MaxSpec), make([]byte, unix.CmsgSpace(4*maxGroups))
	groups, err := receive(body, oob, spec)
	if err != nil {
		return err
	}
	commands := spec.Second.Groups
	if len(groups) != commands+spec.InitGroups {
		return fmt.Errorf("%d descriptors came instead of %d", len(groups), commands+spec.InitGroups)
	}
	// Root opened them: the paths do not exist in here for long. Where it is this
	// thread alone that moves, the exec at the end leaves no other.
	for _, fd := range groups[commands:] {
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			return fmt.Errorf("join a cgroup: %w", err)
		}
		unix.Close(fd)
	}
	return place(groups[:commands])
}

// receive waits for one packet of the host and answers the descriptors that came
// with it.
func receive(body, oob []byte, into any) ([]int, error) {
	n, oobn, _, _, err := unix.Recvmsg(FDSpec, body, oob, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, oobn, _, _, err = unix.Recvmsg(FDSpec, body, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, errors.New("the host is gone")
	}
	if err := json.Unmarshal(body[:n], into); err != nil {
		return nil, err
	}
	return received(oob[:oobn])
}

func received(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	parts, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	if len(parts) != 1 {
		return nil, errors.New("not one list of descriptors")
	}
	return unix.ParseUnixRights(&parts[0])
}

// place gives the descriptors their numbers.
func place(groups []int) error {
	for i, fd := range groups {
		number, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, FDGroups+i)
		if err != nil {
			return err
		}
		if number != FDGroups+i {
			return fmt.Errorf("descriptor %d is in use", FDGroups+i)
		}
		unix.Close(fd)
	}
	return nil
}

// spare makes everything in the sandbox die before the machine's own programs.
func spare(spec Spec) error {
	return os.WriteFile("/proc/self/oom_score_adj", fmt.Appendf(nil, "%d", spec.OOMScore), 0)
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// passOn leaves open across the exec exactly what process 1 uses.
func passOn(second Second) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	body, err := json.Marshal(second)
	if err != nil {
		return err
	}
	if _, err := unix.Write(pipe[1], body); err != nil {
		return err
	}
	if err := unix.Dup3(pipe[0], FDSpec, 0); err != nil {
		return err
	}
	if err := unix.CloseRange(FDReady+1, FDGroups-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	return unix.CloseRange(uint(FDGroups+second.Groups), MaxFD, unix.CLOSE_RANGE_CLOEXEC)
}

// slack lets the kernel put wake-ups together, in nanoseconds. The Go runtime has
// a thread that looks around every 20 microseconds while something goes on, which
// in process 1 costs more than what it could find. A command gets the usual slack.
const slack = 1_000_000

// privileges gives them up, in the order of run: each step needs what the next takes.
type privileges struct {
	spec Spec
	self int // the init's own program
}

func rlimits() error {
	// Process 1 holds descriptors of many commands; a command's own limit is set
	// when it is started. The server may not be allowed more than it has.
	var files unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &files); err != nil {
		return err
	}
	files.Max = min(files.Max, 65536)
	files.Cur = files.Max
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &files, nil); err != nil {
		return err
	}
	return unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
}

func (p privileges) dropBounding() error {
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			if err == unix.EINVAL && c > unix.CAP_AUDIT_READ {
				return nil // past the kernel's last one
			}
			return err
		}
	}
}

func (p privileges) changeUser() error {
	id := uintptr(p.spec.UID)
	if id == 0 {
		return errors.New("a sandbox may not be root")
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	// Where nobody has the right to, the kernel lets nobody drop a group either.
	if !p.spec.Rootless {
		if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
			return e
		}
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); e != 0 {
		return e
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}

func (p privileges) seccomp() error { return loadFilter(p.spec.Seccomp, 0) }

// loadFilter puts a seccomp program into force for this thread, or with
// SECCOMP_FILTER_FLAG_TSYNC for all.
func loadFilter(program []byte, flags uintptr) error {
	if len(program) == 0 || len(program)%8 != 0 {
		return errors.New("the program is empty or torn")
	}
	prog := unix.SockFprog{
		Len:    uint16(len(program) / 8),
		Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0])),
	}
	thread, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if e != 0 {
		return e
	}
	if thread != 0 {
		return fmt.Errorf("thread %d has another filter", thread)
	}
	return nil
}

// exec runs the init's program again by descriptor. The program may not be read
// by others, so the kernel makes process 1 undumpable before its first
// instruction.
func (p privileges) exec() error {
	name := []byte("init\x00")
	empty := []byte("\x00")
	argv := []*byte{&name[0], nil}
	var envv []*byte
	for _, v := range Environment {
		envv = append(envv, &append([]byte(v), 0)[0])
	}
	envv = append(envv, nil)
	_, _, e := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(p.self), uintptr(unsafe.Pointer(&empty[0])),
		uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&envv[0])), unix.AT_EMPTY_PATH, 0)
	return e
}
