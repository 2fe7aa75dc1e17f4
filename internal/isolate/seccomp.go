package isolate

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// test looks at the low word of one argument. The high word is of no use to the
// kernel for the calls in the table: it takes an int or an unsigned int there.
type test struct {
	arg    int
	mask   uint32   // 0 means all bits
	values []uint32 // masked argument is one of them; empty: any masked bit is set
}

func (t test) full() uint32 {
	if t.mask == 0 {
		return ^uint32(0)
	}
	return t.mask
}

// rule refuses calls with an errno: always without tests, otherwise when one
// test matches, or with unless when none does.
type rule struct {
	names  []string
	errno  unix.Errno
	tests  []test
	unless bool
}

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// newest is the last system call that this table has judged. A later one answers
// ENOSYS, as on the kernel that the table was written for.
const newest = 469

// rules are what a sandbox may not call. It is a deny list, since programs that
// nobody has read yet must run; what it leaves is contained by having no
// capability, by namespaces and by Landlock.
var rules = []rule{
	{names: []string{ // kernel subsystems with a history and no use here
		"bpf", "perf_event_open", "userfaultfd", "fanotify_init", "lookup_dcookie", "kcmp", "vhangup",
		"keyctl", "add_key", "request_key", "quotactl", "quotactl_fd", "acct", "syslog",
	}, errno: unix.EPERM},
	{names: []string{"io_uring_setup", "io_uring_enter", "io_uring_register"}, errno: unix.ENOSYS},
	{names: []string{ // other processes' memory and descriptors; strace and gdb do not work
		"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "migrate_pages", "move_pages",
	}, errno: unix.EPERM},
	{names: []string{ // files by another way than a path
		"open_by_handle_at", "name_to_handle_at",
	}, errno: unix.EPERM},
	{names: []string{ // mounts and roots
		"mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig",
		"fsmount", "fspick", "mount_setattr", "statmount", "listmount", "setns", "swapon", "swapoff",
	}, errno: unix.EPERM},
	{names: []string{ // the machine
		"reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "settimeofday",
		"clock_settime", "sethostname", "setdomainname", "iopl", "ioperm", "modify_ldt", "uselib", "nfsservctl",
	}, errno: unix.EPERM},
	// The flags of clone3 are behind a pointer; libraries fall back to clone.
	{names: []string{"clone3"}, errno: unix.ENOSYS},
	{names: []string{"clone"}, errno: unix.EPERM, tests: []test{{arg: cloneFlagsArg, mask: newNamespaces}}},
	{names: []string{"unshare"}, errno: unix.EPERM, tests: []test{{arg: 0, mask: newNamespaces | unix.CLONE_NEWTIME}}},
	{names: []string{"ioctl"}, errno: unix.EPERM, tests: []test{
		// Typing into a terminal, selecting in one, changing what it is.
		{arg: 1, values: []uint32{unix.TIOCSTI, 0x541C /* TIOCLINUX */, unix.TIOCSETD}},
	}},
	{names: []string{"personality"}, errno: unix.EPERM, unless: true, tests: []test{
		{arg: 0, values: []uint32{0, 8 /* PER_LINUX32 */, 0x20000 /* UNAME26 */, 0xffffffff /* ask */}},
	}},
	{names: []string{"socket", "socketpair"}, errno: unix.EAFNOSUPPORT, unless: true, tests: []test{
		{arg: 0, values: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}},
	}},
	// Everything in a sandbox is of one user, process 1 too: nobody may set
	// another's limits, priority or processors.
	{names: []string{"prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"}, errno: unix.EPERM,
		unless: true, tests: []test{{arg: 0, values: []uint32{0}}}},
	{names: []string{"setpriority", "ioprio_set"}, errno: unix.EPERM, unless: true, tests: []test{{arg: 1, values: []uint32{0}}}},
}

// netlinkRule allows only the routing family of netlink, by which libraries list
// addresses. It looks at two arguments and so is not in the table.
const netlinkProtocolArg = 2

// Seccomp compiles the program for this machine's architecture: an array of
// struct sock_filter as the kernel takes it.
func Seccomp() ([]byte, error) {
	p := &program{}
	p.load(offArch)
	p.jump(unix.BPF_JEQ, auditArch, 1, 0)
	p.ret(unix.SECCOMP_RET_KILL_PROCESS) // another architecture's calls have other numbers
	p.load(offNumber)
	// Also x32, whose numbers have bit 30 set.
	p.jump(unix.BPF_JGT, newest, 0, 1)
	p.ret(refuse(unix.ENOSYS))
	for _, r := range rules {
		for _, name := range r.names {
			number, ok := numbers[name]
			if !ok {
				continue // not a call of this architecture
			}
			block := r.block(name)
			if len(block) > 255 {
				return nil, fmt.Errorf("seccomp: the rule for %s is too long", name)
			}
			p.jump(unix.BPF_JEQ, number, 0, uint8(len(block)))
			p.code = append(p.code, block...)
		}
	}
	p.ret(unix.SECCOMP_RET_ALLOW)
	return p.bytes(), nil
}

// block is what runs when the number has matched; it always returns.
func (r rule) block(name string) []unix.SockFilter {
	p := &program{}
	hit, miss := refuse(r.errno), uint32(unix.SECCOMP_RET_ALLOW)
	if r.unless {
		hit, miss = miss, hit
	}
	if len(r.tests) == 0 {
		p.ret(hit)
		return p.code
	}
	if name == "socket" {
		p.load(offArgs)
		p.jump(unix.BPF_JEQ, unix.AF_NETLINK, 0, 3)
		p.load(offArgs + 8*netlinkProtocolArg)
		p.jump(unix.BPF_JEQ, unix.NETLINK_ROUTE, 1, 0)
		p.ret(refuse(unix.EPROTONOSUPPORT))
	}
	for _, t := range r.tests {
		p.load(offArgs + 8*uint32(t.arg))
		if len(t.values) == 0 {
			p.jump(unix.BPF_JSET, t.full(), 0, 1)
			p.ret(hit)
			continue
		}
		if t.full() != ^uint32(0) {
			p.code = append(p.code, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: t.full()})
		}
		for _, v := range t.values {
			p.jump(unix.BPF_JEQ, v, 0, 1)
			p.ret(hit)
		}
	}
	p.ret(miss)
	return p.code
}

// Offsets in struct seccomp_data. The low word comes first: both architectures
// are little-endian.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

func refuse(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

type program struct{ code []unix.SockFilter }

func (p *program) load(offset uint32) {
	p.code = append(p.code, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset})
}

func (p *program) jump(op uint16, k uint32, yes, no uint8) {
	p.code = append(p.code, unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: yes, Jf: no, K: k})
}

func (p *program) ret(action uint32) {
	p.code = append(p.code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action})
}

func (p *program) bytes() []byte {
	var out []byte
	for _, i := range p.code {
		out = binary.NativeEndian.AppendUint16(out, i.Code)
		out = append(out, i.Jt, i.Jf)
		out = binary.NativeEndian.AppendUint32(out, i.K)
	}
	return out
}
