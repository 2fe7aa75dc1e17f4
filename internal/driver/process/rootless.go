package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/isolate"
)

// Without root an environment's namespaces are in a user namespace of its own, which
// maps one id: the server's to the same number. What that costs is in rootlessLevel.
// Most of it comes of having no cgroups: a file of the run directory takes their place
// in telling what there is, process 1 ends a command's processes by a mark (see
// internal/isolate/spawn), and limits hold for each process by itself.

// Open is New for a host: without cgroups the driver is no sandboxd.CommandGroups and no
// sandboxd.LimitChanger, and without them or root no sandboxd.EnvironmentPool.
func Open(cfg Config) (sandboxd.Driver, error) {
	d, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if d.groups == nil {
		return withoutGroups{d, d, d}, nil
	}
	if !d.pools() {
		return withoutPool{d, d, d, d, d}, nil
	}
	return d, nil
}

// withoutGroups hides what needs cgroups.
type withoutGroups struct {
	sandboxd.Driver
	sandboxd.Images
	sandboxd.Sampler
}

// withoutPool hides what needs root.
type withoutPool struct {
	sandboxd.Driver
	sandboxd.CommandGroups
	sandboxd.Images
	sandboxd.LimitChanger
	sandboxd.Sampler
}

// cloneInto says which namespaces an init is cloned into, and how.
func (d *Driver) cloneInto(pidfd *int) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: namespaces &^ d.weak.namespaces, Setsid: true, PidFD: pidfd}
	if d.rootless {
		uid := os.Geteuid()
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Getegid(), Size: 1}}
		// Only user 0 would keep what it may do over the exec, and 0 is not mapped. The
		// set-up stage gives it up in every set.
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP}
	}
	return attr
}

// left says whether an environment of an earlier driver may be there.
func (d *Driver) left(id string) bool {
	name := d.roll.name(id)
	if d.groups != nil {
		name = d.groups.dir("pids", d.names.Of(id))
	}
	_, err := os.Lstat(name)
	return err == nil
}

// roll lists environments where no cgroup does: one file each, with the handle, which
// nothing in a sandbox can reach.
type roll struct{ dir, boot string }

const rollSuffix = ".pid"

func (r roll) name(id string) string { return filepath.Join(r.dir, id+rollSuffix) }

// enter is before process 1 is told what to build: one whose server ends before that,
// perhaps half-way in here, ends by itself.
func (r roll) enter(id string, h sandboxd.Handle) error { return os.WriteFile(r.name(id), h, 0o600) }

func (r roll) list() ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), rollSuffix); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// kill ends an environment by its process 1, with which the kernel ends all others,
// and returns when none is left.
func (r roll) kill(ctx context.Context, id string) error {
	raw, err := os.ReadFile(r.name(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var h handle
	if err := json.Unmarshal(raw, &h); err != nil || h.Boot != r.boot || h.PID <= 1 {
		return nil // torn, or of another boot: nothing of it runs
	}
	pidfd, err := unix.PidfdOpen(h.PID, 0)
	if err != nil {
		return nil // it has ended
	}
	defer unix.Close(pidfd)
	if start, err := startTime(h.PID); err != nil || start != h.Start {
		return nil // the number is another process's
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return err
	}
	err = retry(ctx, func() (bool, error) { return readable(pidfd), nil })
	if err == nil {
		waitPID(h.PID, unix.WNOHANG) // ours when the same process started it
	}
	return err
}

func (r roll) remove(_ context.Context, id string) error {
	if err := os.Remove(r.name(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// rootlessLevel are the lines of the report that are others without root.
func (d *Driver) rootlessLevel(cgroups string) []sandboxd.LevelLine {
	usable, detail, hint := isolate.UserNamespaces()
	lines := []sandboxd.LevelLine{
		{Name: "root", Detail: fmt.Sprintf("uid %d: rootless", os.Geteuid()), Why: "what is lost without root is said by the lines below"},
		{Name: "user namespace", OK: usable, Needed: true, Detail: detail, Why: hint},
		{Name: "user", Detail: fmt.Sprintf("uid %d for every sandbox, no capability in any set", os.Geteuid()),
			Why: "sandboxes have no user of their own: what leaves one is this user, with this user's files"},
	}
	if more := furtherGroups(); more > 0 {
		lines = append(lines, sandboxd.LevelLine{Name: "groups", Detail: fmt.Sprintf("%d more of this user's", more),
			Why: "without root no group can be given up: in a sandbox they reach what its view has of their files"})
	}
	if d.groups != nil {
		return append(lines, sandboxd.LevelLine{Name: "cgroups", OK: true, Detail: cgroups + ", delegated to this user"})
	}
	return append(lines,
		sandboxd.LevelLine{Name: "cgroups", Detail: cgroups,
			Why: "limits are rlimits: memory of each process, not of all; processes of the sandbox; nothing for processors and for single commands"},
		sandboxd.LevelLine{Name: "command groups", Detail: "a mark that processes inherit",
			Why: "a stop ends a command whole; what an ended one left behind ends with its sandbox, is not counted, and a kill for memory is not told from another"})
}

// furtherGroups counts the groups of this process beside its first.
func furtherGroups() (n int) {
	groups, err := os.Getgroups()
	if err != nil {
		return 0
	}
	for _, g := range groups {
		if g != os.Getegid() {
			n++
		}
	}
	return n
}
