package v2

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/captest"
)

// suites are the packages whose tests run inside, in this order. The first one
// proves the machine itself.
var suites = []string{
	"sandboxd/test/v2/cgroupcheck",
	"sandboxd/internal/driver/process",
}

// expect are the capabilities that a test inside may not be skipped for.
const expect = "root cgroup2 process seccomp rootless"

// bootTimeout bounds the machine's whole life.
const bootTimeout = 540 * time.Second

type job struct {
	Name string
	Dir  string
	Argv []string
	Env  []string
}

// kernel finds the user-mode kernel: the one `make test` unpacked, else an
// installed one.
func kernel() string {
	for _, name := range []string{os.Getenv("SANDBOXD_TEST_UML"), "/usr/bin/linux.uml"} {
		if name == "" {
			continue
		}
		if _, err := os.Stat(name); err == nil {
			return name
		}
	}
	return ""
}

func TestSuitesOnV2(t *testing.T) {
	if testing.Short() {
		captest.Need(t, "uml", false, "not in the short run: make test-v2")
	}
	captest.Root(t)
	uml := kernel()
	captest.Need(t, "uml", uml != "", "no user-mode kernel: make test-v2 fetches one")

	out := t.TempDir()
	caps := filepath.Join(out, "caps")
	overlay := embedPrograms(t, out)
	var jobs []job
	for _, pkg := range suites {
		jobs = append(jobs, build(t, out, pkg, overlay))
	}
	goBuild(t, "build", "-trimpath", "-o", filepath.Join(out, "vminit"), "sandboxd/test/v2/vminit")
	goBuild(t, "build", "-buildvcs=false", "-o", filepath.Join(out, "filled"), "sandboxd/internal/isolate/prober") // fills the cache
	raw, err := json.Marshal(jobs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "jobs.json"), raw, 0o644); err != nil {
		t.Fatal(err)
	}

	console := boot(t, uml, out)
	if msg, err := os.ReadFile(filepath.Join(out, "vminit.error")); err == nil {
		t.Fatalf("the machine gave up: %s\n%s", msg, console)
	}
	for _, j := range jobs {
		t.Run(j.Name, func(t *testing.T) { report(t, out, j.Name, console) })
	}
	if name := os.Getenv("SANDBOXD_TEST_CAPS"); name != "" {
		forwardCapabilities(t, caps, name)
	}
}

// embedPrograms builds what runs inside sandboxes and answers an overlay of the
// source tree in which it is embedded: there is no go tool inside, and a binary that
// an earlier build left in the tree may be older than its sources.
func embedPrograms(t *testing.T, out string) string {
	t.Helper()
	replace := map[string]string{}
	for name, pkg := range map[string]string{"init": "sandboxd/cmd/init", "prober": "sandboxd/internal/isolate/prober"} {
		bin := filepath.Join(out, name)
		goBuild(t, "build", "-trimpath", "-ldflags=-s -w", "-o", bin, pkg)
		replace[filepath.Join(directory(t, initPackage), name)] = bin
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(out, "overlay.json")
	if err := os.WriteFile(name, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

const initPackage = "sandboxd/internal/driver/initbin"

// directory answers where a package's sources are.
func directory(t *testing.T, pkg string) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	return strings.TrimSpace(string(dir))
}

// build compiles one suite into a static binary.
func build(t *testing.T, out, pkg, overlay string) job {
	t.Helper()
	name := strings.ReplaceAll(strings.TrimPrefix(pkg, "sandboxd/"), "/", "-")
	bin := filepath.Join(out, name+".test")
	goBuild(t, "test", "-c", "-overlay", overlay, "-o", bin, pkg)
	return job{
		Name: name,
		Dir:  directory(t, pkg),
		Argv: []string{"/mnt/" + name + ".test", "-test.v", "-test.timeout=480s"},
		// The go tool works inside for tests that build a program, from the cache
		// that the builds out here have filled.
		Env: []string{"PATH=" + goEnv(t, "GOROOT") + "/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME=/tmp", "TMPDIR=/tmp", "GOCACHE=/srv", "GOMODCACHE=" + goEnv(t, "GOMODCACHE"), "GOPROXY=off", "GOFLAGS=-buildvcs=false",
			"SANDBOXD_TEST_EXPECT=" + expect, "SANDBOXD_TEST_CAPS=/mnt/caps"},
	}
}

func goBuild(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, msg)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	value, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env %s: %v", name, err)
	}
	return strings.TrimSpace(string(value))
}

// boot runs the machine until it powers off and answers its console. A kernel in
// user mode is a family of processes: they share a session, and the session is
// ended as a whole.
func boot(t *testing.T, uml, out string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	// The kernel keeps its memory in a file of $TMPDIR, mapped executable.
	state := t.TempDir()
	cmd := exec.CommandContext(ctx, uml,
		"mem=768M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro",
		"init="+filepath.Join(out, "vminit"), "VMINIT_OUT="+out, "VMINIT_CACHE="+goEnv(t, "GOCACHE"), "VMINIT_TREE="+filepath.Dir(goEnv(t, "GOMOD")),
		"con=null", "con0=null,fd:1", "uml_dir="+state, "umid=v2", "quiet", "panic=-1")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + state, "TMPDIR=" + state}
	if shim := xstateShim(t, out); shim != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+shim)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	began := time.Now()
	err := cmd.Run()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if ctx.Err() != nil {
		t.Fatalf("the machine ran longer than %v\n%s\n%s", bootTimeout, &console, partial(out))
	}
	t.Logf("the machine lived %.1f s (%v)", time.Since(began).Seconds(), err)
	return console.String()
}

// xstateShim compiles testdata/xstate.c where the processor needs it.
func xstateShim(t *testing.T, out string) string {
	t.Helper()
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(cpu, []byte(" amx_tile")) {
		return ""
	}
	shim := filepath.Join(out, "xstate.so")
	if msg, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", shim, "testdata/xstate.c").CombinedOutput(); err != nil {
		t.Fatalf("compile testdata/xstate.c: %v\n%s", err, msg)
	}
	return shim
}

// partial is what the suites wrote before the machine was ended.
func partial(out string) string {
	var all strings.Builder
	logs, _ := filepath.Glob(filepath.Join(out, "*.log"))
	for _, name := range logs {
		raw, _ := os.ReadFile(name)
		if len(raw) > 16<<10 {
			raw = raw[len(raw)-16<<10:]
		}
		all.WriteString("== " + filepath.Base(name) + "\n" + string(raw))
	}
	return all.String()
}

var result = regexp.MustCompile(`(?m)^( *)--- (PASS|FAIL|SKIP): (\S+) \(`)

// report turns the output of one suite into results of this run.
func report(t *testing.T, out, name, console string) {
	log, err := os.ReadFile(filepath.Join(out, name+".log"))
	if err != nil {
		t.Fatalf("the suite did not run: %v\n%s", err, console)
	}
	status, err := os.ReadFile(filepath.Join(out, name+".status"))
	if err != nil {
		t.Fatalf("the suite did not end: %v\n%s\n%s", err, log, console)
	}
	count := map[string]int{}
	for _, m := range result.FindAllSubmatch(log, -1) {
		count[string(m[2])]++
		if string(m[2]) == "FAIL" {
			t.Errorf("on cgroup v2: %s failed", m[3])
		}
	}
	t.Logf("on cgroup v2: %d passed, %d failed, %d skipped", count["PASS"], count["FAIL"], count["SKIP"])
	if string(status) != "0" || count["PASS"] == 0 {
		t.Errorf("the suite's status is %s\n%s", status, log)
	} else if testing.Verbose() {
		t.Logf("%s", log)
	}
}

// forwardCapabilities records what ran inside as v2/<capability>.
func forwardCapabilities(t *testing.T, from, to string) {
	raw, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		t.Error("no capability was recorded inside")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(to, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range strings.Fields(string(raw)) {
		if _, err := f.WriteString("v2/" + c + "\n"); err != nil {
			t.Fatal(err)
		}
	}
}
