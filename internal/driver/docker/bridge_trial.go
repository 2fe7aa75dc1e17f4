package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// tryTime is how long an attempt to get through the fence waits for an answer. All of
// them stay on this machine, where it comes at once or never.
const tryTime = 500 * time.Millisecond

// tryBridges finds out whether the driver may offer bridges, remembers it, and answers
// why not. What earlier servers left of networks is removed first.
func (d *Driver) tryBridges(ctx context.Context, spec sandboxd.EnvironmentSpec, ociRuntime string) error {
	b := d.bridges
	b.mu.Lock()
	err := d.sweep(ctx)
	b.runtime = ociRuntime
	b.mu.Unlock()
	switch {
	case !d.cfg.Bridge:
		err = errNoBridge("the host does not allow it")
	case err == nil:
		err = d.tryFence(ctx, spec)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refused = err; err != nil && !isClass(err, sandboxd.ClassUnsupported) {
		d.cfg.Log.Warn("there will be no bridges", "err", err)
		b.refused = errNoBridge(publicText(err))
	}
	return b.refused
}

// publicText is what of an error a caller may read.
func publicText(err error) string {
	var e *sandboxd.Error
	if errors.As(err, &e) {
		return e.Public()
	}
	return "the trial of the fence failed, see the server's log"
}

// bridgeLine is what is told of the fence where bridges are allowed.
func (d *Driver) bridgeLine(refused error) (line sandboxd.LevelLine, tried bool) {
	line = sandboxd.LevelLine{Name: "bridge", OK: refused == nil, Detail: "no way from one sandbox to another, to this machine and to private networks",
		Why: "the network bridge is refused; the network proxy works without it"}
	if refused != nil {
		line.Detail = publicText(refused)
	}
	return line, d.cfg.Bridge
}

// tryFence starts two environments in one network, and from the network namespace of
// one tries to reach what it must not: by the very path that a program's packets take,
// without running one.
func (d *Driver) tryFence(ctx context.Context, spec sandboxd.EnvironmentSpec) (err error) {
	spec.Bridge, spec.Tenant = true, "trial-"+spec.ID
	if strings.Contains(cmp.Or(spec.OCIRuntime, d.bridges.runtime), gVisor) {
		spec.OCIRuntime = "runc" // bridges are for others than the default then
	}
	var spaces, addrs [2]string
	var gateway netip.Addr
	for i := range spaces {
		spec.ID = sandboxd.NewID()
		if _, err := d.start(ctx, spec); err != nil {
			return err
		}
		defer func(id string) { err = errors.Join(err, d.Stop(context.WithoutCancel(ctx), id)) }(spec.ID)
		seen, err := d.engine.inspect(ctx, d.containerName(spec.ID))
		if err != nil {
			return err
		}
		endpoint := seen.NetworkSettings.Networks[d.networkName(spec.Tenant)]
		if endpoint == nil || seen.State.Pid <= 0 {
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "the engine made a sandbox without its network")
		}
		spaces[i], addrs[i], gateway = fmt.Sprintf("/proc/%d/ns/net", seen.State.Pid), endpoint.IPAddress.String(), endpoint.Gateway
	}
	neighbour, err := listenIn(ctx, spaces[1], addrs[1]+":0")
	if err != nil {
		return err
	}
	defer neighbour.Close()
	machine, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		return err
	}
	defer machine.Close()
	_, port, _ := net.SplitHostPort(machine.Addr().String())
	// That what is tried would answer, else a refusal says nothing.
	if err := errors.Join(dialIn(spaces[1], neighbour.Addr().String()), dialIn(ownSpace, net.JoinHostPort("127.0.0.1", port))); err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the trial of the fence cannot be made")
	}
	targets := []string{neighbour.Addr().String(), net.JoinHostPort(gateway.String(), port), "169.254.169.254:80"}
	for _, addr := range machineAddresses() {
		targets = append(targets, net.JoinHostPort(addr.String(), port))
	}
	reached := make([]bool, len(targets))
	var wg sync.WaitGroup
	for i, target := range targets {
		wg.Go(func() { reached[i] = dialIn(spaces[0], target) == nil })
	}
	wg.Wait()
	if i := slices.Index(reached, true); i >= 0 {
		return errNoBridge("the fence does not hold: " + []string{"a sandbox reaches another one", "a sandbox reaches the gateway", "a sandbox reaches a metadata service", "a sandbox reaches the machine"}[min(i, 3)])
	}
	return nil
}

// machineAddresses are those of IPv4 by which others know this machine.
func machineAddresses() []netip.Addr {
	var found []netip.Addr
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			found = append(found, p.Addr())
		}
	}
	return found
}

// listenIn listens in another network namespace.
func listenIn(ctx context.Context, space, address string) (l net.Listener, err error) {
	err = in(space, func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp4", address)
		return err
	})
	return l, err
}

// dialIn connects from another network namespace and hangs up. It makes the socket
// itself: a resolver or a second attempt would be on another thread.
func dialIn(space, address string) error {
	return in(space, func() error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		limit := unix.NsecToTimeval(tryTime.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
			return err
		}
		return unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
	})
}

// ownSpace is this process's network namespace. Not by the process: that of its first
// thread may be another for a moment.
const ownSpace = "/proc/thread-self/ns/net"

// in runs fn on a thread in a network namespace.
func in(space string, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := unix.Open(ownSpace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- err
			return
		}
		defer unix.Close(back)
		to, err := unix.Open(space, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(to)
			if err = unix.Setns(to, unix.CLONE_NEWNET); err == nil {
				err = fn()
			}
		}
		if berr := unix.Setns(back, unix.CLONE_NEWNET); berr == nil {
			runtime.UnlockOSThread() // else the thread ends with this
		}
		done <- err
	}()
	return <-done
}
