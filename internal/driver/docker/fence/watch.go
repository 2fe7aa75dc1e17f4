package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// messageMax is more than the kernel puts into one message about changes of rules.
const messageMax = 64 << 10

// Watch calls changed whenever somebody, who may be the caller, did something to the
// table, and when that cannot be told. It returns when ctx ends, or why it cannot hear
// of changes any more.
func (f *Fence) Watch(ctx context.Context, changed func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	defer socket.Close()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	// What the message is about is not parsed: others' rules may be anything.
	name, buf := append([]byte(f.Name), 0), make([]byte, messageMax)
	for {
		n, err := socket.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // some were lost
			changed()
		case err != nil:
			return fmt.Errorf("netlink: %w", err)
		case bytes.Contains(buf[:n], name):
			changed()
		}
	}
}
