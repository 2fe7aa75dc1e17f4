package main

import (
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/internal/isolate/prober/act"
)

// exit CODE ends.
func exit(args []string) { os.Exit(number(args, 0)) }

// exit-thread CODE ends by a thread that is not the first.
func exitThread(args []string) {
	code := number(args, 0)
	runtime.LockOSThread()
	go func() {
		runtime.LockOSThread()
		os.Exit(code)
	}()
	act.Hold()
}

// descriptors-fail opens files until it may not, then fails.
func descriptorsFail([]string) {
	for {
		_, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
		fail(err)
	}
}

// forbidden makes a call that the kernel was told to kill for.
func forbidden([]string) {
	runtime.LockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPPID, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); e != 0 {
		fail(e)
	}
	fmt.Println("it was allowed", unix.Getppid())
}

// broken-pipe writes to a pipe that nobody reads.
func brokenPipe([]string) {
	var ends [2]int
	fail(unix.Pipe(ends[:]))
	fail(unix.Dup2(ends[1], 1))
	unix.Close(ends[0])
	for {
		_, _ = os.Stdout.WriteString("does anybody listen?") // the runtime obeys SIGPIPE on stdout
	}
}

// alarm ends by its own clock. The Go runtime does not mind it; the clock goes on
// in another program.
func alarm([]string) {
	_, err := unix.Setitimer(unix.ITIMER_REAL, unix.Itimerval{Value: unix.NsecToTimeval(int64(50 * time.Millisecond))})
	fail(err)
	fail(unix.Exec("/bin/sleep", []string{"sleep", "1000"}, os.Environ()))
}

// eat-slowly MIB uses so much memory, a little at a time.
func eatSlowly(args []string) {
	var held [][]byte
	for range number(args, 0) {
		one := make([]byte, 1<<20)
		for i := 0; i < len(one); i += 4096 {
			one[i] = 1
		}
		held = append(held, one)
	}
	fmt.Println("ate", len(held))
}

// eat-in-threads N MIB uses so much memory in each of N threads.
func eatInThreads(args []string) {
	for range number(args, 0) {
		go func() {
			runtime.LockOSThread()
			eat(args[1:])
		}()
	}
	act.Hold()
}
