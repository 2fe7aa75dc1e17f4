// Package runtimes has the images of a catalogue built by the shipped binary with a real
// engine, from the registries that the machine's tools are configured for, and opens
// sandboxes of them. The shipped catalogue itself is built by `make workbench`.
package runtimes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	moby "github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/follow"
	"sandboxd/test/server"
)

func TestMain(m *testing.M) { os.Exit(server.Main(m)) }

// shop is a catalogue, an engine, and a server over both.
type shop struct {
	*testing.T
	e    dockertest.Engine
	dir  string
	data string
	args []string
	run  string // makes what is built new to the engine

	p *server.Process
	c *client.Client
}

// entry is one of a catalogue file.
type entry map[string]any

// newShop writes a catalogue. Its aliases are the test's own, and so are its images.
func newShop(t *testing.T, entries func(base, run string) []entry) *shop {
	t.Helper()
	captest.Need(t, "patience", !testing.Short(), "not in the short run: make test")
	s := &shop{T: t, e: dockertest.Find(t, "runc"), dir: t.TempDir(), run: sandboxd.NewID()[:8]}
	s.data = filepath.Join(s.dir, "data")
	text, err := json.Marshal(entries(s.e.Workshop(t), s.run))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "catalogue.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s.args = []string{"--catalogue", file}
	if trusted := os.Getenv("SSL_CERT_FILE"); trusted != "" {
		s.args = append(s.args, "--ca-bundle", trusted)
	}
	t.Cleanup(func() { s.e.RemoveRuntimes(t, s.run) })
	return s
}

// images are those of this catalogue that the engine has, by tag, with their ids.
func (s *shop) images() map[string]string { return s.e.Runtimes(s, s.run) }

// prepare runs `sandboxd prepare`.
func (s *shop) prepare(names ...string) (out string, err error) {
	s.Helper()
	cmd := exec.Command(server.Program("sandboxd"), slices.Concat([]string{"prepare", "--data", s.data}, s.args, names)...)
	cmd.Env = server.Environ("DOCKER_HOST=" + s.e.Host)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// serve starts the server, and ends it with its sandboxes at the end of the test.
func (s *shop) serve(args ...string) {
	s.Helper()
	var err error
	s.p, err = server.Start(server.Spec{Data: s.data, Env: server.Environ("DOCKER_HOST=" + s.e.Host),
		Args: slices.Concat([]string{"--driver", "docker", "--stop-on-interrupt"}, s.args, args)})
	if err != nil {
		s.Fatal(err)
	}
	key, err := datadir.ReadSecret(filepath.Join(s.data, datadir.TokenFile))
	if err != nil {
		s.Fatal(err)
	}
	if s.c, err = client.New(s.p.URL, key); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		s.deleteAll()
		s.c.Close()
		if err := s.p.End(syscall.SIGINT); err != nil {
			s.Error(err)
		}
		if log := s.p.Log.String(); strings.Contains(log, "panic") {
			s.Error(log)
		}
	})
}

// deleteAll deletes what was opened, and waits until it is gone: containers that are kept
// for what was installed in them outlive the server.
func (s *shop) deleteAll() {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := s.c.List(ctx, "")
	if err != nil {
		s.Error(err)
		return
	}
	for _, sb := range list {
		if err := s.c.Delete(ctx, sb.ID); err != nil && sandboxd.ClassOf(err) != sandboxd.ClassGone {
			s.Error(err)
		}
		server.Until(s.T, "the container of "+sb.Key+" is gone", 20*time.Second, func() bool {
			found, err := s.e.API.ContainerList(ctx, moby.ContainerListOptions{All: true, Filters: make(moby.Filters).Add("label", "sandboxd="+sb.ID)})
			return err == nil && len(found.Items) == 0
		})
	}
}

func (s *shop) runtime(name string) sandboxd.Runtime {
	s.Helper()
	all, err := s.c.Runtimes(context.Background())
	if err != nil {
		s.Fatal(err)
	}
	i := slices.IndexFunc(all, func(r sandboxd.Runtime) bool { return r.Name == name })
	if i < 0 {
		s.Fatalf("no %s in %+v", name, all)
	}
	return all[i]
}

// sh runs a script in a sandbox and wants it to succeed.
func (s *shop) sh(id, script string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd, _, err := s.c.StartCommand(ctx, id, sandboxd.CommandSpec{Shell: script})
	if err != nil {
		s.Fatalf("%s: %v", script, err)
	}
	var out, errs bytes.Buffer
	ending, err := follow.Output(ctx, s.c, follow.Command{Sandbox: id, ID: cmd.ID}, func(f sandboxd.Frame) error {
		if f.Stream == sandboxd.StreamStderr {
			errs.Write(f.Data)
		} else {
			out.Write(f.Data)
		}
		return nil
	})
	if err != nil || ending.ExitCode == nil || *ending.ExitCode != 0 {
		s.Fatalf("%s: %+v, %v: %s%s", script, ending, err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String())
}

// containers counts those that have our mark or were made by a build of this catalogue.
func (s *shop) containers(label string) int {
	found, err := s.e.API.ContainerList(context.Background(), moby.ContainerListOptions{All: true, Filters: make(moby.Filters).Add("label", label)})
	if err != nil {
		s.Fatal(err)
	}
	return len(slices.DeleteFunc(found.Items, func(c container.Summary) bool { return !strings.HasSuffix(c.Labels["sandboxd.runtime"], s.run) }))
}

// A small runtime of the shape of the workbench is built before the server is there; the
// server finds it, and its sandboxes have what it says.
func TestARuntimeFromPrepareToUse(t *testing.T) {
	s := newShop(t, func(base, run string) []entry {
		return []entry{{
			"alias": "small-" + run, "description": "A small workbench", "base_image": base, "apt_packages": []string{"jq"},
			"setup_commands": []string{"echo set up " + run + " >/etc/set-up", "echo a tool >/home/sandbox/.toolrc && chmod 600 /home/sandbox/.toolrc"}, "packages": []string{"tabulate"}, "npm_packages": []string{"left-pad"},
			"env_vars": map[string]string{"MPLBACKEND": "Agg"}, "tools": []string{"jq", "python3", "npm"}, "mem_limit": "512m", "needs_network": false,
		}}
	})
	name := "small-" + s.run
	out, err := s.prepare()
	if err != nil || !strings.Contains(out, name+": prepared\n") || !strings.Contains(out, "RUN python3 -m pip install") {
		t.Fatalf("%v: %s", err, out)
	}
	prepared := s.images()
	if len(prepared) != 1 {
		t.Fatalf("prepared were %v", prepared)
	}
	if out, err = s.prepare(name); err != nil || strings.Contains(out, "step") {
		t.Errorf("the second time: %v: %s", err, out)
	}
	if out, err = s.prepare("other"); err == nil || !strings.Contains(out, name) {
		t.Errorf("a runtime that is none: %v: %s", err, out)
	}
	s.serve()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sb, _, err := s.c.Open(ctx, sandboxd.OpenRequest{})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.p.Log.Tail())
	}
	if prepared[sb.Image] == "" || sb.Runtime != name || sb.Root != sandboxd.RootWritable || sb.Limits.MemoryBytes != 512<<20 || sb.Network.Mode != sandboxd.NetworkNone {
		t.Errorf("%+v; prepared were %v", sb, prepared)
	}
	server.Until(t, "the server knows that it is there", 10*time.Second, func() bool {
		return s.runtime(name).Preparation.State == sandboxd.PreparationPrepared
	})
	if now := s.images(); len(now) != 1 || now[sb.Image] != prepared[sb.Image] {
		t.Errorf("prepared was %v, there is %v", prepared, now)
	}
	for _, row := range [][2]string{
		{"id -un; id -u", "sandbox\n10001"},
		{"echo $HOME $MPLBACKEND", sandboxd.HomeDir + " Agg"},
		{"cat /etc/set-up", "set up " + s.run},
		{"echo '{\"a\": 7}' | jq .a", "7"},
		{"python3 -c 'import tabulate; print(tabulate.__name__)'", "tabulate"},
		{"node -e 'require(\"/opt/npm/lib/node_modules/left-pad\"); console.log(1)'", "1"},
		{"ls /opt/sandboxd-build 2>/dev/null || echo none", "none"},
		// What is installed is the user's to change.
		{"pip uninstall -qy tabulate && python3 -c 'import tabulate' 2>/dev/null || echo gone", "gone"},
		{"npm rm -g left-pad >/dev/null && ls /opt/npm/lib/node_modules", ""},
		{"touch ~/kept && echo ok", "ok"},
		// HOME begins with what the image has there, as the user's own.
		{"cat ~/.toolrc && stat -c '%U %a' ~/.toolrc && rm ~/.toolrc", "a tool\nsandbox 600"},
	} {
		if got := s.sh(sb.ID, row[0]); got != row[1] {
			t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
	// What was changed outlives the stop, and HOME is what it was.
	if _, err := s.c.Stop(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	if sb, err = s.c.Start(ctx, sb.ID); err != nil || sb.Generation != 2 {
		t.Fatalf("%+v, %v", sb, err)
	}
	if got := s.sh(sb.ID, "ls ~/kept && ! ls ~/.toolrc 2>/dev/null && ! python3 -c 'import tabulate' 2>/dev/null && echo gone"); got != sandboxd.HomeDir+"/kept\ngone" {
		t.Errorf("after a stop: %q", got)
	}
}

// localPackages makes a wheel of Python and an archive of npm: what a registry would have
// brought.
const localPackages = `set -e
python3 - <<'END'
import zipfile
with zipfile.ZipFile("hello_there-1.0-py3-none-any.whl", "w") as w:
    w.writestr("hello_there.py", "print(__file__)\n")
    at = "hello_there-1.0.dist-info/"
    w.writestr(at + "METADATA", "Metadata-Version: 2.1\nName: hello-there\nVersion: 1.0\n")
    w.writestr(at + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    w.writestr(at + "RECORD", "hello_there.py,,\n" + "".join(at + n + ",,\n" for n in ("METADATA", "WHEEL", "RECORD")))
END
mkdir -p say
echo '{"name": "say", "version": "1.0.0", "bin": {"say-it": "say.js"}}' >say/package.json
printf '#!/usr/bin/env node\nconsole.log("said")\n' >say/say.js
npm pack --silent ./say`

// A small runtime of the shape of the one for apps: its root is read-only, and its user
// installs into HOME, which outlives the environment.
func TestAReadOnlyRuntimeInstallsIntoHome(t *testing.T) {
	s := newShop(t, func(base, run string) []entry {
		return []entry{{
			"alias": "fixed-" + run, "description": "A small one for apps", "base_image": base, "setup_commands": []string{"echo " + run},
			"packages": []string{"uv"}, "npm_packages": []string{"left-pad"}, "tools": []string{"npm", "pip", "uv"}, "tmpfs_size": "96m",
			"needs_network": false, "root": "readonly",
		}}
	})
	s.serve("--no-prewarm")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	sb, _, err := s.c.Open(ctx, sandboxd.OpenRequest{})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.p.Log.Tail())
	}
	if sb.Root != sandboxd.RootReadonly || sb.Limits.TmpBytes != 96<<20 {
		t.Errorf("%+v", sb)
	}
	s.sh(sb.ID, localPackages)
	const (
		again  = "python3 -c 'import hello_there' && say-it"
		inHome = sandboxd.HomeDir + "/.local/lib/python"
	)
	for _, row := range [][2]string{
		{"for d in / /usr /etc /opt/venv /opt/npm; do ! touch $d/x 2>/dev/null || echo $d; done", ""},
		{"node -e 'require(\"/opt/npm/lib/node_modules/left-pad\"); console.log(1)'", "1"},
		{"pip install -q --no-index ./hello_there-1.0-py3-none-any.whl && python3 -c 'import hello_there' | cut -c1-" + fmt.Sprint(len(inHome)), inHome},
		{"npm i -g --offline --no-audit --no-fund say-1.0.0.tgz >/dev/null && command -v say-it && say-it", sandboxd.HomeDir + "/.local/bin/say-it\nsaid"},
		{"sh -lc say-it", "said"},
		// Environments of a project's own are used, and not the image's.
		{"mkdir a && cd a && uv venv -q && uv pip install -q --offline ../hello_there-1.0-py3-none-any.whl && .venv/bin/python -c 'import hello_there' | cut -d/ -f1-4", "/workspace/a/.venv"},
		{"python3 -m venv b && b/bin/pip install -q --no-index ./hello_there-1.0-py3-none-any.whl && b/bin/python -c 'import hello_there' | cut -d/ -f1-3", "/workspace/b"},
	} {
		if got := s.sh(sb.ID, row[0]); got != row[1] {
			t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
	before := s.sh(sb.ID, again)
	if _, err := s.c.CloseSandbox(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	if sb, err = s.c.Start(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	if got := s.sh(sb.ID, again); got != before || !strings.HasSuffix(got, "\nsaid") {
		t.Errorf("closed and opened again: %q, before %q", got, before)
	}
}

// While an image is built, everybody else works as always; who opens a sandbox of it
// sees how far it is, and ends the build by not wanting the sandbox.
func TestABuildKeepsNobodyFromWorking(t *testing.T) {
	s := newShop(t, func(base, run string) []entry {
		return []entry{
			{"alias": "quick-" + run, "description": "There", "image": dockertest.Image, "needs_network": false},
			{"alias": "slow-" + run, "description": "Slow", "base_image": base, "setup_commands": []string{"echo begun " + run, "while :; do :; done"}, "needs_network": false},
			{"alias": "wrong-" + run, "description": "Wrong", "base_image": base, "setup_commands": []string{"echo " + run + "; exit 3"}, "needs_network": false},
		}
	})
	s.serve("--no-prewarm")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	quick, _, err := s.c.Open(ctx, sandboxd.OpenRequest{})
	if err != nil || quick.Runtime != "quick-"+s.run || quick.Image != dockertest.Image {
		t.Fatalf("%+v, %v", quick, err)
	}
	idle := s.rounds(quick.ID)

	opened := make(chan error, 1)
	go func() {
		_, _, err := s.c.Open(ctx, sandboxd.OpenRequest{Key: "slow", Runtime: "slow-" + s.run})
		opened <- err
	}()
	var slow sandboxd.Sandbox
	server.Until(t, "the slow step goes on", time.Minute, func() bool {
		list, err := s.c.List(ctx, "slow")
		if err == nil && len(list) == 1 {
			slow = list[0]
		}
		return slow.Preparing != nil && strings.Contains(slow.Preparing.Doing, "while :")
	})
	if p := slow.Preparing; slow.State != sandboxd.StatePreparing || p.State != sandboxd.PreparationWorking || p.Step == 0 || p.Steps < p.Step {
		t.Errorf("%+v, %+v", slow, p)
	}
	server.Until(t, "its container is there", 10*time.Second, func() bool { return s.containers("sandboxd.runtime") == 1 })
	busy := s.rounds(quick.ID)
	t.Logf("a command takes %s, and %s while an image is built", idle, busy)
	if busy > 5*idle+100*time.Millisecond {
		t.Errorf("a command takes %s, and %s while an image is built", idle, busy)
	}
	began := time.Now()
	if sb, err := s.c.Stop(ctx, slow.ID); err != nil || sb.State != sandboxd.StateCold {
		t.Errorf("%+v, %v", sb, err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the stop took %s", took)
	}
	if err := <-opened; sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Errorf("who opened it was told %v", err)
	}
	server.Until(t, "the build has ended", 20*time.Second, func() bool { return s.containers("sandboxd.runtime") == 0 })

	_, _, err = s.c.Open(ctx, sandboxd.OpenRequest{Key: "wrong", Runtime: "wrong-" + s.run})
	if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !strings.Contains(fmt.Sprint(err), "exit 3") || !strings.Contains(fmt.Sprint(err), "it last said: "+s.run) {
		t.Errorf("%v", err)
	}
	if p := s.runtime("wrong-" + s.run).Preparation; p.State != sandboxd.PreparationFailed || p.Try != 2 || !strings.Contains(p.Error, s.run) {
		t.Errorf("%+v", p)
	}
	if out, err := s.prepare("wrong-" + s.run); err == nil || !strings.Contains(out, "try 3 failed") || !strings.Contains(out, "not prepared: wrong-"+s.run) {
		t.Errorf("%v: %s", err, out)
	}
	logs, _ := filepath.Glob(filepath.Join(s.data, "runtimes", "*.log"))
	if len(logs) != 2 {
		t.Errorf("logs %q", logs)
	}
}

// Servers of one engine that give one alias to different recipes each keep their own
// image; one that both need is built once, and outlives the first to need it no more.
func TestTwoServersOfOneEngine(t *testing.T) {
	same := "same-" + sandboxd.NewID()[:8]
	var first *shop
	entries := func(version string) func(base, run string) []entry {
		return func(base, run string) []entry {
			if first != nil {
				run = first.run
			}
			return []entry{
				{"alias": "own-" + run, "description": "Differs", "base_image": base, "setup_commands": []string{"echo " + version}, "needs_network": false},
				{"alias": "shared-" + run, "description": "Equal", "base_image": base, "setup_commands": []string{"echo " + same}, "needs_network": false},
			}
		}
	}
	first = newShop(t, entries("first"))
	second := newShop(t, entries("second"))
	for _, s := range []*shop{first, second} {
		if out, err := s.prepare(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if tags := first.images(); len(tags) != 4 {
		t.Errorf("prepared were %v", tags)
	}
	// The first server is given other recipes: it removes what it had, and nothing else.
	text, err := os.ReadFile(first.args[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(first.args[1], bytes.ReplaceAll(text, []byte("echo "), []byte("echo newer ")), 0o600); err != nil {
		t.Fatal(err)
	}
	before := first.images()
	first.serve()
	server.Until(t, "the first server's old images are gone", time.Minute, func() bool {
		now := first.images()
		return len(now) == 4 && len(intersection(before, now)) == 2
	})
	if out, err := second.prepare(); err != nil || strings.Contains(out, "step") {
		t.Errorf("the second one's were removed: %v: %s", err, out)
	}
	second.serve()
	sb, _, err := second.c.Open(t.Context(), sandboxd.OpenRequest{Runtime: "shared-" + first.run})
	if err != nil || before[sb.Image] == "" {
		t.Errorf("%+v, %v; there were %v", sb, err, before)
	}
}

func intersection(a, b map[string]string) (both []string) {
	for name := range a {
		if _, ok := b[name]; ok {
			both = append(both, name)
		}
	}
	return both
}

// rounds is the median time of a short command.
func (s *shop) rounds(id string) time.Duration {
	s.Helper()
	var took []time.Duration
	for range 21 {
		began := time.Now()
		s.sh(id, "true")
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}
