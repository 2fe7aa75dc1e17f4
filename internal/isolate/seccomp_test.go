package isolate

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// answer runs a compiled program as the kernel would.
func answer(t *testing.T, program []byte, arch, number uint32, args ...uint64) uint32 {
	t.Helper()
	var data [64]byte
	le := binary.LittleEndian
	le.PutUint32(data[offNumber:], number)
	le.PutUint32(data[offArch:], arch)
	for i, a := range args {
		le.PutUint64(data[offArgs+8*i:], a)
	}
	acc := uint32(0)
	for pc := 0; pc*8 < len(program); pc++ {
		code, jt, jf := binary.NativeEndian.Uint16(program[pc*8:]), int(program[pc*8+2]), int(program[pc*8+3])
		k := binary.NativeEndian.Uint32(program[pc*8+4:])
		jump := func(yes bool) {
			if yes {
				pc += jt
			} else {
				pc += jf
			}
		}
		switch code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = le.Uint32(data[k:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= k
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(acc == k)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(acc > k)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(acc&k != 0)
		case unix.BPF_RET | unix.BPF_K:
			return k
		default:
			t.Fatalf("instruction %d has code %#x", pc, code)
		}
	}
	t.Fatal("the program runs off its end")
	return 0
}

func TestSeccomp(t *testing.T) {
	program, err := Seccomp()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(program) / 8; n > 4096 {
		t.Fatalf("%d instructions are more than the kernel takes", n)
	}
	const allow = uint32(unix.SECCOMP_RET_ALLOW)
	eperm, enosys := refuse(unix.EPERM), refuse(unix.ENOSYS)
	for _, test := range []struct {
		name   string
		number uint32
		args   []uint64
		want   uint32
	}{
		{"read", unix.SYS_READ, nil, allow}, {"execve", unix.SYS_EXECVE, nil, allow}, {"openat2", unix.SYS_OPENAT2, nil, allow},
		{"landlock", unix.SYS_LANDLOCK_RESTRICT_SELF, nil, allow}, {"seccomp", unix.SYS_SECCOMP, nil, allow},
		{"bpf", unix.SYS_BPF, nil, eperm}, {"ptrace", unix.SYS_PTRACE, nil, eperm}, {"mount", unix.SYS_MOUNT, nil, eperm},
		{"io_uring", unix.SYS_IO_URING_SETUP, nil, enosys}, {"clone3", unix.SYS_CLONE3, nil, enosys},
		{"clone of a thread", unix.SYS_CLONE, []uint64{0x3d0f00}, allow}, {"fork", unix.SYS_CLONE, []uint64{17}, allow},
		{"clone, user", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | 17}, eperm}, {"clone, network and more", unix.SYS_CLONE, []uint64{0x3d0f00 | unix.CLONE_NEWNET}, eperm},
		{"unshare files", unix.SYS_UNSHARE, []uint64{unix.CLONE_FILES}, allow}, {"unshare time", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWTIME}, eperm},
		{"TIOCSTI", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, eperm}, {"TIOCSTI with high bits", unix.SYS_IOCTL, []uint64{0, 1<<32 | unix.TIOCSTI}, eperm},
		{"window size", unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}, allow},
		{"tcp", unix.SYS_SOCKET, []uint64{unix.AF_INET, 1, 0}, allow}, {"unix", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, 1, 0}, allow},
		{"unix, odd protocol", unix.SYS_SOCKET, []uint64{unix.AF_UNIX, 1, 7}, allow},
		{"vsock", unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, 1, 0}, refuse(unix.EAFNOSUPPORT)},
		{"routes", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, 0}, allow},
		{"audit", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, unix.NETLINK_AUDIT}, refuse(unix.EPROTONOSUPPORT)},
		{"pair", unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, 1, 0}, allow}, {"tipc pair", unix.SYS_SOCKETPAIR, []uint64{30, 1, 0}, refuse(unix.EAFNOSUPPORT)},
		{"own limits", unix.SYS_PRLIMIT64, []uint64{0, 7}, allow}, {"another's limits", unix.SYS_PRLIMIT64, []uint64{1, 7}, eperm},
		{"own priority", unix.SYS_SETPRIORITY, []uint64{0, 0, 5}, allow}, {"another's priority", unix.SYS_SETPRIORITY, []uint64{0, 1, 5}, eperm},
		{"personality, ask", unix.SYS_PERSONALITY, []uint64{0xffffffff}, allow}, {"READ_IMPLIES_EXEC", unix.SYS_PERSONALITY, []uint64{0x400000}, eperm},
		{"the future", newest + 1, nil, enosys}, {"x32", 0x40000000 | unix.SYS_READ, nil, enosys},
	} {
		if got := answer(t, program, auditArch, test.number, test.args...); got != test.want {
			t.Errorf("%s: %#x, want %#x", test.name, got, test.want)
		}
	}
	if got := answer(t, program, unix.AUDIT_ARCH_I386, unix.SYS_READ); got != unix.SECCOMP_RET_KILL_PROCESS {
		t.Errorf("another architecture: %#x", got)
	}
}

// Every name in the table is a call of some architecture that is supported.
func TestNames(t *testing.T) {
	own := map[string]bool{"iopl": true, "ioperm": true, "modify_ldt": true, "uselib": true}
	for _, r := range rules {
		for _, name := range r.names {
			if _, ok := numbers[name]; !ok && !own[name] {
				t.Errorf("%s has no number", name)
			}
		}
	}
}
