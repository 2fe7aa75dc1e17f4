// Command init is process 1 of every sandbox and, before that, the set-up stage
// that builds it. It is a small static program of its own: never the server run
// again, so that nothing of the server is within a sandbox's reach.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/inside"
	"sandboxd/internal/isolate/setup"
	"sandboxd/internal/isolate/spawn"
)

func main() {
	err := run()
	fmt.Fprintln(os.Stderr, "init:", err)
	os.Exit(1)
}

func run() error {
	// The host starts the set-up stage with this argument; it executes the second
	// stage without.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "setup":
			return setup.Run()
		case setup.TerminalsArg:
			return setup.Terminals()
		case setup.ArgWaiting:
			return setup.Wait()
		}
	}
	// A container engine has done the first stage's work and passes no descriptors.
	attached := len(os.Args) > 1 && os.Args[1] == setup.ArgAttached
	preference := -1
	if attached {
		preference = spawn.Preference()
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	if err := endure(); err != nil {
		return err
	}
	if attached {
		return serveAttached(preference)
	}
	return serve()
}

// deadly are the signals at which the Go runtime ends a program that another
// process sent one. The kernel drops what process 1 ignores or has no handler for.
var deadly = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT,
	unix.SIGTERM, unix.SIGSTKFLT, unix.SIGSYS}

// endure makes process 1 outlive every signal that something in the sandbox may
// send. Asking the runtime to pass them all on would do as well and take a
// millisecond: each is a turn to a thread of its own. Only the three by which the
// runtime hears of its own faults stay with it, and are taken when sent.
func endure() error {
	signal.Notify(make(chan os.Signal, 1), unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE)
	// struct sigaction of the kernel: handler, flags, restorer, mask.
	ignore := [4]uintptr{1}
	for _, s := range deadly {
		if err := onSignal(s, &ignore); err != nil {
			return err
		}
	}
	// By default the kernel says nothing of a child: the spawner waits for it.
	return onSignal(unix.SIGCHLD, &[4]uintptr{})
}

func onSignal(s unix.Signal, action *[4]uintptr) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(action)), 0, 8, 0, 0); e != 0 {
		return e
	}
	return nil
}

// serve is process 1.
func serve() error {
	in := os.NewFile(setup.FDSpec, "spec")
	body, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	in.Close()
	var spec setup.Second
	if err := json.Unmarshal(body, &spec); err != nil {
		return err
	}
	if err := unix.CloseRange(setup.FDListen, setup.MaxFD, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	groups := make([]int, spec.Groups)
	for i := range groups {
		groups[i] = setup.FDGroups + i
	}
	spawner := spawn.New(groups, uint64(spec.OpenFiles))
	if spec.Alone {
		if err := spawner.Alone(uint64(spec.DataBytes), uint64(spec.Processes)); err != nil {
			return err
		}
	}
	go spawner.Reap()

	// listen and not the host's bind makes this process the peer that the host
	// sees when it dials.
	if err := unix.Listen(setup.FDListen, 16); err != nil {
		return err
	}
	file := os.NewFile(setup.FDListen, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		return err
	}
	file.Close()
	if _, err := unix.Write(setup.FDReady, setup.Report{}.Encode()); err != nil {
		return errors.New("the host is gone") // nobody knows of this sandbox
	}
	unix.Close(setup.FDReady)
	return accept(listener, inside.New(spawner, inside.Options{Nonce: spec.Nonce}))
}

// accept serves each connection; the server lets the newest replace the older. One
// counts from its first byte: a host that only looks who listens replaces nobody.
func accept(listener net.Listener, server *inside.Server) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if !speaks(conn.(*net.UnixConn)) {
				conn.Close()
				return
			}
			// Why a connection ended is the host's to say; it dials again.
			server.Serve(conn)
		}()
	}
}

// speaks waits for the first byte and leaves it there.
func speaks(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	var buf [1]byte
	if rerr := raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), buf[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err != unix.EAGAIN && err != unix.EINTR
	}); rerr != nil {
		return false
	}
	return err == nil && n == 1
}
