// Command intruder is the hostile program of the attack tests: it runs inside a
// sandbox and does there what honest programs do not. It is not a probe of what
// the kernel allows, which is internal/isolate/prober, and judges nothing: each
// word of its command line is one act, and what it prints is what it got.
package main

import (
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/isolate/prober/act"
)

func main() {
	acts := map[string]func(args []string){
		"flip": flip, "deep": deep, "many": many, "socket": socket, "eat": eat, "eat-in-children": eatInChildren, "fork": fork,
		"descriptors": descriptors, "terminals": terminals, "zombies": zombies, "orphans": orphans, "hold": func([]string) { act.Hold() },
		"listen": listen, "dial": dial, "segment-put": segmentPut, "segment-get": segmentGet,
		"hunt": hunt, "kill-all": killAll, "ids": ids, "mounts": mounts, "type-ahead": typeAhead, "flood": flood,
		"exit": exit, "exit-thread": exitThread, "panic": func([]string) { panic("on purpose") }, "descriptors-fail": descriptorsFail,
		"forbidden": forbidden, "broken-pipe": brokenPipe, "alarm": alarm, "eat-slowly": eatSlowly, "eat-in-threads": eatInThreads,
	}
	if len(os.Args) < 2 || acts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "no such act")
		os.Exit(2)
	}
	acts[os.Args[1]](os.Args[2:])
}

func number(args []string, i int) int {
	if i >= len(args) {
		fail(fmt.Errorf("argument %d is missing", i+1))
	}
	n, err := strconv.Atoi(args[i])
	fail(err)
	return n
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// flip OUTSIDE turns directories and files of the working directory into links to
// the outside and back, for ever. It works by descriptor, so that it does not walk
// through its own links.
func flip(args []string) {
	outside := args[0]
	up := strings.Repeat("../", 30)
	for _, dir := range []string{"d/sub", "top/n", "sub"} {
		fail(os.MkdirAll(dir, 0o777))
	}
	for _, name := range []string{"d/f", "d/canary", "d/sub/canary", "g", "top/n/canary"} {
		fail(os.WriteFile(name, []byte("mine"), 0o666))
	}
	for name, target := range map[string]string{"dlink": outside, "d/flink": outside + "/f", "glink": up + outside[1:] + "/f",
		"toplink": "/proc/self/root" + outside, "sub/up": ".."} {
		fail(os.Symlink(target, name))
	}
	open := func(name string) int {
		fd, err := unix.Open(name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		fail(err)
		return fd
	}
	root, d, top := open("."), open("d"), open("top")
	fmt.Println("flipping")
	exchange := func(dir int, a, b string) { _ = unix.Renameat2(dir, a, root, b, unix.RENAME_EXCHANGE) }
	for i := 0; ; i++ {
		exchange(root, "d", "dlink")
		_ = unix.Renameat2(d, "f", d, "flink", unix.RENAME_EXCHANGE)
		exchange(root, "g", "glink")
		exchange(root, "top", "toplink")
		_ = unix.Renameat(top, "n", root, "moved")
		_ = unix.Renameat(root, "moved", top, "n")
		if i%512 == 0 { // what the other side removed or moved comes again
			_ = unix.Mkdirat(root, "d", 0o777)
			if fd, err := unix.Openat(root, "d", unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
				unix.Close(d)
				d = fd
			}
			for dir, name := range map[int]string{root: "g", d: "f"} {
				if fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o666); err == nil {
					unix.Close(fd)
				}
			}
			_ = unix.Mkdirat(root, "top", 0o777)
			_ = unix.Mkdirat(top, "n", 0o777)
			_ = unix.Symlinkat(outside, root, "dlink")
			_ = unix.Symlinkat(outside+"/f", root, "glink")
			_ = unix.Symlinkat(outside+"/f", d, "flink")
		}
	}
}

// deep N makes N directories, each in the one before.
func deep(args []string) {
	for i := number(args, 0); i > 0; i-- {
		if err := os.Mkdir("deeper", 0o755); err != nil {
			fail(err)
		}
		fail(os.Chdir("deeper"))
	}
	fail(os.WriteFile("bottom", nil, 0o644))
}

// many N makes N files in the working directory.
func many(args []string) {
	for i := number(args, 0); i > 0; i-- {
		fd, err := unix.Open(fmt.Sprintf("file-%06d", i), unix.O_CREAT|unix.O_WRONLY, 0o644)
		fail(err)
		unix.Close(fd)
	}
}

// socket NAME leaves a socket in the file system.
func socket(args []string) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	fail(err)
	fail(unix.Bind(fd, &unix.SockaddrUnix{Name: args[0]}))
}

// eat MIB uses so much memory and says when it has it.
func eat(args []string) {
	mib := number(args, 0)
	fail(act.Eat(mib << 20))
	fmt.Println("ate", mib)
}

// eat-in-children N MIB does so in N processes at once.
func eatInChildren(args []string) {
	var children []*exec.Cmd
	for range number(args, 0) {
		cmd := exec.Command("/proc/self/exe", "eat", args[1])
		if cmd.Start() == nil {
			children = append(children, cmd)
		}
	}
	ended := 0
	for _, cmd := range children {
		if cmd.Wait() != nil {
			ended++
		}
	}
	fmt.Println("killed", ended)
}

// fork makes processes until it may not, then fails.
func fork([]string) {
	n, err := act.Fork(math.MaxInt)
	fmt.Println("forks", n, err)
	os.Exit(1)
}

// descriptors opens files until it may not, says how many, and keeps them.
func descriptors([]string) {
	n, err := act.Descriptors(math.MaxInt)
	fmt.Println("descriptors", n, unix.ErrnoName(err.(syscall.Errno)))
	act.Hold()
}

// terminals N opens N terminals at most in each of as many processes as are
// needed, says how many there are, and keeps them.
func terminals(args []string) {
	n := 0
	var err error
	for ; n < number(args, 0); n++ {
		if _, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0); err != nil {
			break
		}
	}
	fmt.Println("terminals", n, err)
	act.Hold()
}

// zombies N leaves N ended children that nobody waits for.
func zombies(args []string) {
	n := 0
	for range number(args, 0) {
		if _, err := syscall.ForkExec("/bin/true", []string{"true"}, nil); err != nil {
			break
		}
		n++
	}
	fmt.Println("zombies", n)
	act.Hold()
}

// orphans N ends N processes whose parents ended before them, so that process 1
// is the one to wait for them.
func orphans(args []string) {
	for range number(args, 0) {
		fail(exec.Command("/bin/sh", "-c", "/bin/true & exit 0").Run())
	}
	fmt.Println("orphans done")
}

// listen NETWORK ADDRESS waits at a socket; a unix name that begins with @ is abstract.
func listen(args []string) {
	l, err := net.Listen(args[0], args[1])
	fail(err)
	fmt.Println("listening")
	fail(act.Greet(l))
}

// dial NETWORK ADDRESS says whether somebody is there.
func dial(args []string) {
	greeting, err := act.Dial(args[0], args[1])
	if err != nil {
		fmt.Println("no:", err)
		return
	}
	fmt.Println("yes:", greeting)
}

// segment-put KEY makes a System V segment of shared memory and keeps it.
func segmentPut(args []string) {
	fail(act.PutSegment(number(args, 0)))
	fmt.Println("put")
	act.Hold()
}

// segment-get KEY looks for it.
func segmentGet(args []string) {
	fmt.Println("segment", act.FindSegment(number(args, 0)))
}

// hunt MS opens the program of every process for writing, as fast as it can, and
// says which one let it.
func hunt(args []string) {
	fmt.Println("hunting")
	until := time.Now().Add(time.Duration(number(args, 0)) * time.Millisecond)
	tried, seen := 0, map[string]bool{}
	for time.Now().Before(until) {
		names, err := filepath.Glob("/proc/[0-9]*/exe")
		fail(err)
		for _, name := range names {
			tried++
			for _, flags := range []int{unix.O_WRONLY, unix.O_RDWR | unix.O_TRUNC} {
				if fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0); err == nil {
					target, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
					seen[target] = true
					unix.Close(fd)
				}
			}
		}
	}
	for target := range seen {
		fmt.Println("opened", target)
	}
	fmt.Println("tried", tried > 0)
}

// kill-all signals every process number that there can be, itself excepted.
func killAll([]string) {
	hit := 0
	for pid := 1; pid < 1<<16; pid++ {
		// A thread's number would mean its process.
		if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(pid)); err != nil && unix.Kill(pid, unix.SIGKILL) == nil {
			hit++
		}
	}
	fmt.Println("hit", hit)
}

// ids prints who this is.
func ids([]string) {
	r, e, s := unix.Getresuid()
	fmt.Println(r, e, s)
}

// mounts prints what is mounted so that set-uid works or that is on devices.
func mounts([]string) {
	text, err := os.ReadFile("/proc/self/mounts")
	fail(err)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		options := "," + fields[3] + ","
		if !strings.Contains(options, ",nosuid,") {
			fmt.Println("set-uid works on", fields[1])
		}
		if strings.HasPrefix(fields[1], "/workspace") && !strings.Contains(options, ",nodev,") {
			fmt.Println("devices work on", fields[1])
		}
	}
}

// type-ahead puts a character into its own terminal as if it were typed.
func typeAhead([]string) {
	c := []byte{'x'}
	fail(unix.IoctlSetPointerInt(0, unix.TIOCSTI, int(c[0])))
	fmt.Println("typed")
}

// flood writes to stdout and stderr for ever.
func flood([]string) {
	block := []byte(strings.Repeat("flood ", 10922))
	for {
		if _, err := os.Stdout.Write(block); err != nil {
			return
		}
		_, _ = os.Stderr.Write(block[:4096])
	}
}
