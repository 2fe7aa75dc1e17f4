// Command vminit is process 1 of the virtual machine in which the suites run on
// cgroup v2: it mounts what a kernel alone does not have, runs the test binaries
// one after the other, leaves their output and status in a directory of the
// machine outside, and powers off. It is not the init of a sandbox.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// job is what the harness puts into jobs.json; see package v2.
type job struct {
	Name string
	Dir  string
	Argv []string
	Env  []string
}

const out = "/mnt"

func main() {
	err := run(os.Getenv("VMINIT_OUT"), os.Getenv("VMINIT_CACHE"), os.Getenv("VMINIT_TREE"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "vminit:", err)
		_ = os.WriteFile(filepath.Join(out, "vminit.error"), []byte(err.Error()), 0o644)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// run takes three directories of the machine outside: one for jobs and results,
// the go tool's cache, for tests that build a program, and the source tree.
func run(outside, cache, tree string) error {
	if outside == "" || cache == "" || tree == "" {
		return errors.New("VMINIT_OUT, VMINIT_CACHE and VMINIT_TREE must name directories")
	}
	for _, m := range []struct {
		kind, at, data string
		flags          uintptr
	}{
		{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"cgroup2", "/sys/fs/cgroup", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/run", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/var/lib", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
		{"devtmpfs", "/dev", "mode=755", unix.MS_NOSUID},
		{"hostfs", out, outside, 0},
		{"hostfs", "/srv", cache, 0},
	} {
		if err := unix.Mount("none", m.at, m.kind, m.flags, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	// A tree below /tmp or /var/lib is hidden now: it is shown again in its place.
	if _, err := os.Stat(tree); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(tree, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("none", tree, "hostfs", 0, tree); err != nil {
			return fmt.Errorf("mount the source tree: %w", err)
		}
	}
	for dir, kind := range map[string]string{"/dev/pts": "devpts", "/dev/shm": "tmpfs"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		data := ""
		if kind == "devpts" {
			data = "ptmxmode=666"
		}
		if err := unix.Mount("none", dir, kind, unix.MS_NOSUID, data); err != nil {
			return fmt.Errorf("mount %s at %s: %w", kind, dir, err)
		}
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	raw, err := os.ReadFile(filepath.Join(out, "jobs.json"))
	if err != nil {
		return err
	}
	var jobs []job
	if err := json.Unmarshal(raw, &jobs); err != nil {
		return fmt.Errorf("jobs.json: %w", err)
	}
	for _, j := range jobs {
		if err := runJob(j); err != nil {
			return fmt.Errorf("%s: %w", j.Name, err)
		}
	}
	return nil
}

// runJob runs one binary and writes its status last: a status file means that
// the output beside it is whole.
func runJob(j job) error {
	log, err := os.Create(filepath.Join(out, j.Name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(j.Argv[0], j.Argv[1:]...)
	cmd.Dir, cmd.Env = j.Dir, j.Env
	cmd.Stdout, cmd.Stderr = log, log
	status := 0
	if err := cmd.Run(); err != nil {
		status = 255
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			status = exit.ExitCode()
		} else {
			fmt.Fprintln(log, "vminit:", err)
		}
	}
	if err := log.Sync(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, j.Name+".status"), []byte(strconv.Itoa(status)), 0o644)
}

// loopbackUp brings lo up: the root's loopback starts down.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
