// Package act holds what hostile programs do with the resources of a machine and
// with the other programs on it. The prober of the selftest and the intruder of
// the attack tests are made of it. It judges nothing and bounds what it takes.
package act

import (
	"bufio"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Hold does nothing for ever. An empty select would be a deadlock, which Go ends.
func Hold() {
	for {
		_ = unix.Pause()
	}
}

// Fork makes processes that do nothing, at most so many, and says how many there
// are and why not more. The program must call Hold when its argument is "hold".
func Fork(most int) (made int, err error) {
	for ; made < most; made++ {
		if _, err := syscall.ForkExec("/proc/self/exe", []string{os.Args[0], "hold"}, nil); err != nil {
			return made, err
		}
	}
	return made, nil
}

// Eat uses so many bytes of memory, from now on, or says why not. The runtime would
// end the program where a limit of the process says no.
func Eat(bytes int) error {
	held, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	return nil
}

// Descriptors opens files, at most so many, keeps them, and says how many there
// are and why not more.
func Descriptors(most int) (opened int, err error) {
	for ; opened < most; opened++ {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
			return opened, err
		}
	}
	return opened, nil
}

// Greet answers every connection with a line, for ever.
func Greet(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		_, _ = conn.Write([]byte("hello\n"))
		conn.Close()
	}
}

// Dial says what somebody at that address answers; a unix name that begins with @
// is abstract. Somebody who says nothing is there all the same.
func Dial(network, address string) (greeting string, err error) {
	conn, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), nil
}

// PutSegment makes a System V segment of shared memory, which lasts as long as
// its namespace.
func PutSegment(key int) error {
	id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		return err
	}
	mem, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return err
	}
	copy(mem, "segment")
	return nil
}

// FindSegment looks for it.
func FindSegment(key int) error {
	_, err := unix.SysvShmGet(key, 4096, 0)
	return err
}
