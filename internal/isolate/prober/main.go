// Command prober runs inside a sandbox, in tests and in the selftest, and tries what
// a sandbox must not be able to do. It prints one JSON object: name of the attempt
// to its outcome, "ok" or the name of the errno. With the name of an act it does
// that instead; see acts.go. It judges nothing.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) > 1 && acts[os.Args[1]] != nil {
		acts[os.Args[1]](os.Args[2:])
		return
	}
	// Credentials and filters are a thread's.
	runtime.LockOSThread()
	out := map[string]string{}
	status(out)
	files(out)
	calls(out)
	network(out)
	landlock(out)
	if len(os.Args) > 1 && os.Args[1] == "signals" {
		signals(out)
	}
	say(out)
}

func say(found any) {
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		os.Exit(1)
	}
}

func outcome(err error) string {
	var e syscall.Errno
	var slow net.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e) && e == 0:
		return "ok"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	case errors.As(err, &slow) && slow.Timeout():
		return "no answer"
	}
	return err.Error()
}

// status reports who this is.
func status(out map[string]string) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		out["status"] = err.Error()
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid", "Groups":
			out["status "+name] = strings.Join(strings.Fields(value), " ")
		}
	}
	out["pid"] = strconv.Itoa(os.Getpid())
	out["hostname"], _ = os.Hostname()
	pids, _ := filepath.Glob("/proc/[0-9]*")
	out["processes"] = strconv.Itoa(len(pids))
	var cmdlines []string
	for _, p := range pids {
		if text, err := os.ReadFile(p + "/cmdline"); err == nil {
			cmdlines = append(cmdlines, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	out["command lines"] = strings.Join(cmdlines, "|")
	var lim unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &lim)
	out["open files"] = fmt.Sprint(lim.Cur, " ", lim.Max)
	fds, _ := os.ReadDir("/proc/self/fd")
	inherited := 0
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !strings.Contains(target, "anon_inode") && !strings.Contains(target, "/proc/") {
			inherited++
		}
	}
	out["descriptors"] = strconv.Itoa(inherited)
}

func files(out map[string]string) {
	for _, dir := range []string{"/", "/usr", "/usr/bin", "/etc", "/dev", "/dev/pts", "/proc", "/run", "/var", "/home",
		"/workspace", "/home/sandbox", "/tmp", "/dev/shm"} {
		name := filepath.Join(dir, ".probe")
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
		if err == nil {
			f.Close()
			os.Remove(name)
		}
		out["create in "+dir] = outcome(err)
	}
	for _, name := range []string{"/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/1/mem",
		"/proc/1/exe", "/proc/1/oom_score_adj", "/etc/passwd", "/usr/bin/env"} {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		out["write "+name] = outcome(err)
	}
	for _, name := range []string{"/proc/1/environ", "/proc/1/maps", "/proc/1/fd", "/proc/1/root", "/proc/1/cwd", "/sys", "/root", "/etc/shadow",
		"/proc/scsi/scsi", "/dev/mem", "/dev/kmsg", "/dev/vda", "/var/lib"} {
		f, err := os.Open(name)
		if err == nil {
			f.Close()
		}
		out["read "+name] = outcome(err)
	}
	for _, name := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kallsyms"} {
		text, err := os.ReadFile(name)
		if err == nil && len(text) == 0 {
			out["read "+name] = "empty"
		} else {
			out["read "+name] = outcome(err)
		}
	}
	for _, name := range []string{"/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"} {
		var fs unix.Statfs_t
		err := unix.Statfs(name, &fs)
		if out["writable "+name] = outcome(err); err == nil && fs.Flags&unix.ST_RDONLY != 0 {
			out["writable "+name] = "EROFS"
		}
	}
	out["mknod"] = outcome(unix.Mknod("/tmp/node", unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0))))
	out["rename across directories"] = outcome(func() error {
		for _, d := range []string{"/workspace/.a", "/workspace/.b"} {
			if err := os.Mkdir(d, 0o755); err != nil {
				return err
			}
			defer os.RemoveAll(d)
		}
		if err := os.WriteFile("/workspace/.a/f", nil, 0o644); err != nil {
			return err
		}
		return unix.Rename("/workspace/.a/f", "/workspace/.b/f")
	}())
}

// calls makes system calls with arguments that would get another answer than the
// filter's on a kernel that judged them.
func calls(out map[string]string) {
	const bad = ^uintptr(0) // as a descriptor or a pointer
	for _, c := range []struct {
		name string
		nr   uintptr
		args [5]uintptr
	}{
		{"bpf", unix.SYS_BPF, [5]uintptr{9999}}, {"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [5]uintptr{bad}},
		{"userfaultfd", unix.SYS_USERFAULTFD, [5]uintptr{bad}}, {"fanotify_init", unix.SYS_FANOTIFY_INIT, [5]uintptr{bad}},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [5]uintptr{1}}, {"io_uring_enter", unix.SYS_IO_URING_ENTER, [5]uintptr{bad}},
		{"io_uring_register", unix.SYS_IO_URING_REGISTER, [5]uintptr{bad}},
		{"keyctl", unix.SYS_KEYCTL, [5]uintptr{9999}}, {"add_key", unix.SYS_ADD_KEY, [5]uintptr{bad}},
		{"request_key", unix.SYS_REQUEST_KEY, [5]uintptr{bad}}, {"kexec_load", unix.SYS_KEXEC_LOAD, [5]uintptr{}},
		{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, [5]uintptr{bad}}, {"ptrace", unix.SYS_PTRACE, [5]uintptr{9999, 1}},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, [5]uintptr{1, 0, 0, 0, 0}},
		{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, [5]uintptr{1, 0, 0, 0, 0}}, {"pidfd_getfd", unix.SYS_PIDFD_GETFD, [5]uintptr{bad}},
		{"kcmp", unix.SYS_KCMP, [5]uintptr{1, 1, 99}},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [5]uintptr{bad}}, {"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, [5]uintptr{bad}},
		{"mount", unix.SYS_MOUNT, [5]uintptr{bad, bad}}, {"umount2", unix.SYS_UMOUNT2, [5]uintptr{bad}},
		{"open_tree", unix.SYS_OPEN_TREE, [5]uintptr{bad, bad}}, {"move_mount", unix.SYS_MOVE_MOUNT, [5]uintptr{bad}},
		{"fsopen", unix.SYS_FSOPEN, [5]uintptr{bad}}, {"fsconfig", unix.SYS_FSCONFIG, [5]uintptr{bad}}, {"fsmount", unix.SYS_FSMOUNT, [5]uintptr{bad}},
		{"fspick", unix.SYS_FSPICK, [5]uintptr{bad}}, {"mount_setattr", unix.SYS_MOUNT_SETATTR, [5]uintptr{bad}},
		{"pivot_root", unix.SYS_PIVOT_ROOT, [5]uintptr{bad, bad}}, {"chroot", unix.SYS_CHROOT, [5]uintptr{bad}},
		{"setns", unix.SYS_SETNS, [5]uintptr{bad}}, {"unshare user", unix.SYS_UNSHARE, [5]uintptr{unix.CLONE_NEWUSER}},
		{"unshare mount", unix.SYS_UNSHARE, [5]uintptr{unix.CLONE_NEWNS}}, {"unshare net", unix.SYS_UNSHARE, [5]uintptr{unix.CLONE_NEWNET}},
		{"unshare time", unix.SYS_UNSHARE, [5]uintptr{unix.CLONE_NEWTIME}}, {"unshare nothing", unix.SYS_UNSHARE, [5]uintptr{0}},
		{"clone with a user namespace", unix.SYS_CLONE, [5]uintptr{unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)}},
		{"clone3", unix.SYS_CLONE3, [5]uintptr{0, 0}}, {"swapon", unix.SYS_SWAPON, [5]uintptr{bad}}, {"swapoff", unix.SYS_SWAPOFF, [5]uintptr{bad}},
		{"reboot", unix.SYS_REBOOT, [5]uintptr{}}, {"init_module", unix.SYS_INIT_MODULE, [5]uintptr{bad}},
		{"finit_module", unix.SYS_FINIT_MODULE, [5]uintptr{bad}}, {"delete_module", unix.SYS_DELETE_MODULE, [5]uintptr{bad}},
		{"personality READ_IMPLIES_EXEC", unix.SYS_PERSONALITY, [5]uintptr{0x0400000}}, {"personality ask", unix.SYS_PERSONALITY, [5]uintptr{0xffffffff}},
		{"acct", unix.SYS_ACCT, [5]uintptr{bad}}, {"quotactl", unix.SYS_QUOTACTL, [5]uintptr{bad}}, {"syslog", unix.SYS_SYSLOG, [5]uintptr{99}},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, [5]uintptr{bad}}, {"sethostname", unix.SYS_SETHOSTNAME, [5]uintptr{bad, 1}},
		{"prlimit64 of process 1", unix.SYS_PRLIMIT64, [5]uintptr{1, 9999}}, {"sched_setaffinity of process 1", unix.SYS_SCHED_SETAFFINITY, [5]uintptr{1, 0}},
		{"setpriority of process 1", unix.SYS_SETPRIORITY, [5]uintptr{0, 1, 19}},
		{"TIOCSTI", unix.SYS_IOCTL, [5]uintptr{bad, unix.TIOCSTI}}, {"TIOCLINUX", unix.SYS_IOCTL, [5]uintptr{bad, 0x541C}},
		{"other ioctl", unix.SYS_IOCTL, [5]uintptr{bad, unix.TIOCGWINSZ}},
		{"AF_VSOCK", unix.SYS_SOCKET, [5]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}}, {"AF_ALG", unix.SYS_SOCKET, [5]uintptr{unix.AF_ALG, unix.SOCK_SEQPACKET}},
		{"AF_PACKET", unix.SYS_SOCKET, [5]uintptr{unix.AF_PACKET, unix.SOCK_RAW}},
		{"netlink of netfilter", unix.SYS_SOCKET, [5]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}},
		{"netlink of routes", unix.SYS_SOCKET, [5]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
		{"a call of the future", 600, [5]uintptr{}},
	} {
		pid, _, e := unix.RawSyscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], 0)
		if c.nr == unix.SYS_CLONE && e == 0 {
			if pid == 0 { // where nothing refuses it, this is the child
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			unix.RawSyscall6(unix.SYS_WAIT4, pid, 0, 0, 0, 0, 0)
		}
		out["call "+c.name] = outcome(e)
	}
	if runtime.GOARCH == "amd64" {
		_, _, e := unix.RawSyscall(0x40000000|unix.SYS_GETPID, 0, 0, 0)
		out["call of x32"] = outcome(e)
	}
}

func network(out map[string]string) {
	interfaces, err := net.Interfaces()
	if err != nil {
		out["interfaces"] = err.Error()
		return
	}
	var names []string
	for _, i := range interfaces {
		names = append(names, i.Name)
	}
	out["interfaces"] = strings.Join(names, " ")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		listener.Close()
	}
	out["listen on loopback"] = outcome(err)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: 53, Addr: [4]byte{8, 8, 8, 8}})
		unix.Close(fd)
	}
	out["reach the network"] = outcome(err)
}

// landlock stacks rulesets on this thread until the kernel takes no more.
func landlock(out map[string]string) {
	handled := uint64(unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK)
	set, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&handled)), unsafe.Sizeof(handled), 0)
	if e != 0 {
		out["landlock layers left"] = outcome(e)
		return
	}
	layers := 0
	for layers < 64 {
		if _, _, e := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0); e != 0 {
			break
		}
		layers++
	}
	out["landlock layers left"] = strconv.Itoa(layers)
}

// signals sends every signal to process 1 and then to everything.
func signals(out map[string]string) {
	for sig := 1; sig <= 64; sig++ {
		if sig == int(unix.SIGCHLD) {
			continue
		}
		if err := unix.Kill(1, syscall.Signal(sig)); err != nil {
			out["signal "+strconv.Itoa(sig)] = outcome(err)
		}
	}
	out["signal everything"] = outcome(unix.Kill(-1, unix.SIGKILL))
}
