package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sandboxd"
	"sandboxd/internal/isolate"
)

// probeUID is the user of the environment that Fingerprint tries to start. It is
// nobody's: the sandboxes' own are given out from elsewhere.
const probeUID = 65533

// Fingerprint is sandboxd.Driver's. After looking at each protection it starts an
// environment and stops it: only that shows that they work together.
func (d *Driver) Fingerprint(ctx context.Context) sandboxd.Fingerprint {
	fp := sandboxd.Fingerprint{Works: true, Level: d.level(), Capabilities: sandboxd.Capabilities{
		SurvivesHostRestart: os.Getpid() != 1, CommandCgroup: d.groups != nil, Networks: []string{"none", "proxy"}, WorkspaceBind: true, Pool: d.pools(), Images: d.images.Any(),
	}}
	for _, line := range fp.Level {
		if line.Needed && !line.OK {
			fp.Works, fp.Reason, fp.Hint = false, line.Name+": "+line.Detail, line.Why
			return fp
		}
	}
	if d.groups != nil {
		d.groups.sweep()
	}
	d.images.Sweep()
	shared, err := d.trial(ctx)
	if err != nil {
		fp.Works, fp.Reason = false, err.Error()
		fp.Hint = "a container or a security module may forbid the step that is named; run the server outside of it"
		return fp
	}
	fp.Capabilities.OwnGroup = len(shared) == 0
	fp.Level = append(fp.Level, survivalLevel(shared)...)
	return fp
}

func (d *Driver) level() []sandboxd.LevelLine {
	missing := isolate.Namespaces()
	line := func(name string, ok bool, detail, why string) sandboxd.LevelLine {
		return sandboxd.LevelLine{Name: name, OK: ok, Needed: true, Detail: detail, Why: why}
	}
	found := func(ok bool) string {
		if ok {
			return "there"
		}
		return "missing"
	}
	cgroups := "missing"
	if d.groups != nil {
		cgroups = d.groups.String()
	} else if d.groupErr != nil {
		cgroups = d.groupErr.Error()
	}
	lines := []sandboxd.LevelLine{
		line("namespaces", len(missing) == 0, strings.TrimSpace(found(len(missing) == 0)+" "+strings.Join(missing, " ")),
			"the kernel was built without them"),
		line("seccomp", isolate.HasSeccomp(), found(isolate.HasSeccomp()), "needs CONFIG_SECCOMP_FILTER"),
		line("no_new_privs", true, "set for every process", ""),
		line("pidfd", isolate.HasPidfd(), found(isolate.HasPidfd()), "needs Linux 5.3"),
		line("openat2", isolate.HasOpenat2(), found(isolate.HasOpenat2()), "needs Linux 5.6"),
		line("mount_setattr", isolate.HasMountSetattr(), found(isolate.HasMountSetattr()), "needs Linux 5.12"),
	}
	if d.rootless {
		lines = append(d.rootlessLevel(cgroups), lines...)
	} else {
		lines = append([]sandboxd.LevelLine{
			line("root", true, "uid 0", ""),
			line("cgroups", d.groups != nil, cgroups, "without them nothing limits memory and processes: mount cgroup2 with the memory and pids controllers"),
			line("user", true, "each sandbox its own, no capability in any set", ""),
			{Name: "user namespace", OK: false, Detail: "not used as root: a sandbox is an own unprivileged user", Why: "defence in depth only"},
		}, lines...)
	}
	landlock := sandboxd.LevelLine{Name: "landlock", OK: d.landlock >= 2, Detail: fmt.Sprintf("ABI %d", d.landlock)}
	switch {
	case d.landlock == 0:
		landlock.Detail = "not in this kernel or not enabled"
		landlock.Why = "files are then protected by mounts and the user alone: add landlock to the kernel's lsm= list"
	case d.landlock < 2:
		landlock.Why = "this version forbids renames between directories and is not used: Linux 5.19 has a newer one"
	case d.landlock < 6:
		landlock.Why = "signals and abstract sockets are then kept in by namespaces alone: Linux 6.12 scopes them as well"
	}
	return append(lines, landlock)
}

// trial starts and stops an environment of its own. It answers where that was in a group
// of this process, as shared does.
func (d *Driver) trial(ctx context.Context) (in []string, err error) {
	dir, err := os.MkdirTemp(d.cfg.RunDir, "probe-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	uid := uint32(probeUID)
	if d.rootless {
		uid = uint32(os.Geteuid())
	}
	spec := sandboxd.EnvironmentSpec{ID: sandboxd.NewID(), Generation: 1, UID: uid, Hostname: "probe",
		Workspace: filepath.Join(dir, "workspace"), Home: filepath.Join(dir, "home"), Limits: sandboxd.DefaultLimits()}
	for _, sub := range []string{spec.Workspace, spec.Home} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			return nil, err
		}
	}
	if _, err := d.Start(ctx, spec); err != nil {
		return nil, err
	}
	d.mu.Lock()
	pid := d.envs[spec.ID].pid
	d.mu.Unlock()
	in, err = shared(pid)
	return in, errors.Join(err, d.Stop(ctx, spec.ID))
}
