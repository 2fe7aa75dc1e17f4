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
	"runtime"
	"runtime/debug"
	"syscall"

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
	if len(os.Args) > 1 && os.Args[1] == "setup" {
		return setup.Run()
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(50)
	return serve()
}

// serve is process 1. A signal whose handler is the default would end it, and
// anything in the sandbox may send one: it takes them all.
func serve() error {
	signal.Notify(make(chan os.Signal, 1))
	// Of its own and of one place: pending ones coalesce, and a flood of other
	// signals pushes none out.
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)

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
	go func() {
		for range ended {
			spawner.Reap()
		}
	}()

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
