package guesttest_test

import (
	"context"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/builtin"
	"sandboxd/internal/guest/guesttest"
	"sandboxd/internal/guest/inside"
)

func system(t *testing.T, pair func() (host, guest io.ReadWriteCloser, err error)) guesttest.System {
	loopback := builtin.NewLoopback()
	server := inside.New(builtin.Spawner{Loopback: loopback}, inside.Options{Nonce: "secret", Dial: loopback.Dial, Ports: loopback.Ports, Listen: loopback.Listen})
	t.Cleanup(func() { server.Close() })
	return guesttest.System{
		Nonce: "secret", Cwd: "/", Inside: loopback.Connect,
		Connect: func() (io.ReadWriteCloser, error) {
			h, g, err := pair()
			if err == nil {
				go server.Serve(g)
			}
			return h, err
		},
		Service: func(ctx context.Context, name string) (io.ReadWriteCloser, error) {
			st, err := server.OpenService(ctx, name)
			if err != nil {
				return nil, err
			}
			return st, nil
		},
	}
}

func TestPipe(t *testing.T) {
	guesttest.Run(t, func(t *testing.T) guesttest.System {
		return system(t, func() (io.ReadWriteCloser, io.ReadWriteCloser, error) {
			h, g := net.Pipe()
			return h, g, nil
		})
	})
}

func TestSocket(t *testing.T) {
	guesttest.Run(t, func(t *testing.T) guesttest.System {
		return system(t, socketPair)
	})
}

func socketPair() (io.ReadWriteCloser, io.ReadWriteCloser, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]io.ReadWriteCloser
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1], nil
}
