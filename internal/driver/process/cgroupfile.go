package process

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"

	"sandboxd/internal/driver/limits"
)

func (g *groups) write(controller, sub, file, value string) error {
	dir := g.dir(controller, sub)
	if dir == "" {
		return fmt.Errorf("no %s controller", controller)
	}
	return writeFile(dir+"/"+file, value)
}

// readFile and writeFile do without the runtime's poller, which would be asked
// about every one of these small files.
func readFile(path string) (string, error) {
	fd, err := retryInterrupted(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var text []byte
	var buf [4096]byte
	for {
		n, err := retryInterrupted(func() (int, error) { return unix.Read(fd, buf[:]) })
		if err != nil {
			return "", err
		}
		if n == 0 {
			return string(text), nil
		}
		text = append(text, buf[:n]...)
	}
}

func writeFile(path, value string) error {
	fd, err := retryInterrupted(func() (int, error) { return unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = retryInterrupted(func() (int, error) { return unix.Write(fd, []byte(value)) })
	return err
}

func retryInterrupted(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// limitMemory, limitPIDs and limitCPU leave a group as it is for 0.
func (g *groups) limitMemory(sub string, bytes, withSwap int64) error {
	if bytes <= 0 {
		return nil
	}
	withSwap = max(bytes, withSwap)
	if g.v2 {
		if err := g.write("memory", sub, "memory.max", strconv.FormatInt(bytes, 10)); err != nil {
			return err
		}
		return ignoreMissing(g.write("memory", sub, "memory.swap.max", strconv.FormatInt(withSwap-bytes, 10)))
	}
	memory := func() error { return g.write("memory", sub, "memory.limit_in_bytes", strconv.FormatInt(bytes, 10)) }
	both := func() error {
		return ignoreMissing(g.write("memory", sub, "memory.memsw.limit_in_bytes", strconv.FormatInt(withSwap, 10)))
	}
	err := memory()
	if errors.Is(err, unix.EINVAL) { // the kernel wants the first to be below the second at any time
		if err = both(); err == nil {
			return memory()
		}
	}
	if err != nil {
		return err
	}
	return both()
}

// ignoreMissing is for files of options that a kernel may lack, as swap.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func (g *groups) limitPIDs(sub string, n int64) error {
	if n <= 0 {
		return nil
	}
	return g.write("pids", sub, "pids.max", strconv.FormatInt(n, 10))
}

// weighCPU sets the weight of a group beside its neighbours, in the units of version 1;
// 0 is the usual one. A weight is a proportion, and stays one on version 2, up to the
// hundred times of the usual weight that are the most there.
func (g *groups) weighCPU(sub string, shares int64) error {
	if g.dir("cpu", sub) == "" {
		return nil
	}
	shares = cmp.Or(shares, limits.UsualShares)
	if g.v2 {
		return g.write("cpu", sub, "cpu.weight", strconv.FormatInt(min(max(shares*100/limits.UsualShares, 1), 10_000), 10))
	}
	return g.write("cpu", sub, "cpu.shares", strconv.FormatInt(shares, 10))
}

func (g *groups) limitCPU(sub string, cpus float64) error {
	if cpus <= 0 || g.dir("cpu", sub) == "" {
		return nil
	}
	quota := limits.Quota(cpus)
	if g.v2 {
		return g.write("cpu", sub, "cpu.max", fmt.Sprintf("%d %d", quota, limits.Period))
	}
	return g.write("cpu", sub, "cpu.cfs_quota_us", strconv.FormatInt(quota, 10))
}
