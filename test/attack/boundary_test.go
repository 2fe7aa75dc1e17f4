package attack

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/selftest"
)

// probe runs the prober and answers what it got.
func (b *box) probe(spec sandboxd.CommandSpec) map[string]string {
	b.s.t.Helper()
	got := b.run(spec)
	found := map[string]string{}
	if err := json.Unmarshal([]byte(strings.TrimSpace(got.stdout)), &found); err != nil {
		b.s.t.Fatalf("the prober said %+v: %v", got, err)
	}
	return found
}

// judge wants every answer of the prober to be as the selftest wants it.
func judge(t *testing.T, when string, found map[string]string) {
	t.Helper()
	for _, line := range selftest.Judge(found) {
		if line.Verdict != selftest.OK {
			t.Errorf("%s: %s: %s", when, line.Mechanism, line.Got)
		}
	}
}

// The boundary is the same however a command comes to be: by argv, by a shell, in
// a terminal, after the server's death, in a second environment.
func TestBoundary(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	direct := sandboxd.CommandSpec{Argv: []string{"./prober"}}
	judge(t, "argv", b.probe(direct))
	judge(t, "shell", b.probe(sandboxd.CommandSpec{Shell: "cd /tmp; (exec /workspace/prober)"}))
	judge(t, "terminal", b.probe(sandboxd.CommandSpec{Argv: []string{"./prober"}, TTY: &sandboxd.TTY{Cols: 80, Rows: 24}}))
	judge(t, "limits", b.probe(sandboxd.CommandSpec{Argv: []string{"./prober"}, Limits: sandboxd.CommandLimits{PIDs: 50, MemoryBytes: 128 << 20}}))
	judge(t, "network proxy", s.open(sandboxd.OpenRequest{Network: sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: []string{"*"}}}).probe(direct))
	s.Kill()
	s.Start()
	judge(t, "adopted", b.probe(direct))
	if _, err := s.C.Stop(context.Background(), b.id); err != nil {
		t.Fatal(err)
	}
	judge(t, "started again", b.probe(direct))
	if got := b.run(sandboxd.CommandSpec{Argv: []string{"./intruder", "type-ahead"}, TTY: &sandboxd.TTY{Cols: 80, Rows: 24}}); strings.Contains(got.stdout, "typed") {
		t.Errorf("a program types into its terminal: %+v", got)
	}
}

func TestTheMachineIsNotThere(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{Key: "inside"})
	out := newOutside(t)

	// Its loopback is not the machine's, and no other address of the machine is near.
	addresses := []string{s.Addr, s.Host}
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range interfaces {
		if n, ok := a.(*net.IPNet); ok {
			addresses = append(addresses, net.JoinHostPort(n.IP.String(), port))
		}
	}
	for _, addr := range append(addresses, "[::1]:"+port, "169.254.169.254:80", "1.1.1.1:53") {
		if got := b.run(sandboxd.CommandSpec{Argv: []string{"./intruder", "dial", "tcp", addr}}); !strings.HasPrefix(got.stdout, "no:") {
			t.Errorf("%s answers inside: %+v", addr, got)
		}
	}
	abstract := "@sandboxd-attack-" + sandboxd.NewID()
	l, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	named, err := net.Listen("unix", filepath.Join(out.dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	out.before = out.look()
	for _, name := range []string{abstract, named.Addr().String(), "/run/docker.sock", "/var/run/docker.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"} {
		if got := b.run(sandboxd.CommandSpec{Argv: []string{"./intruder", "dial", "unix", name}}); !strings.HasPrefix(got.stdout, "no:") {
			t.Errorf("%s answers inside: %+v", name, got)
		}
	}

	// Its files and processes are not there either.
	for _, name := range []string{out.dir, s.Data, filepath.Dir(s.Data), "/root", "/etc/shadow", "/etc/sudoers", "/etc/ssh", "/boot", "/sys", "/sys/fs/cgroup", "/var/log", "/srv", "/mnt",
		"/home/" + os.Getenv("SUDO_USER") + "/.ssh", "/proc/1/root/etc/shadow", "/proc/" + fmt.Sprint(os.Getpid())} {
		if got := b.run(sandboxd.CommandSpec{Argv: []string{"ls", "-la", name}}); got.ending.ExitCode == nil || *got.ending.ExitCode == 0 {
			t.Errorf("%s is there: %+v", name, got)
		}
	}
	if got := b.ok("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; env"); strings.Contains(got, "serve") || strings.Contains(got, s.Data) || strings.Contains(got, s.Key) || strings.Contains(got, "/nonexistent") {
		t.Errorf("processes inside show the server: %q", got)
	}
	if got := b.ok("cat /proc/self/cgroup"); strings.Contains(got, b.id) || strings.Contains(got, "sandboxd") {
		t.Errorf("the control group shows where it is: %q", got)
	}
	if got := b.ok("find /dev -type b; find / -xdev -perm /6000 -newermt '1970-01-01' -user 0 -writable 2>/dev/null; true"); got != "" {
		t.Errorf("there are devices or writable set-uid files: %q", got)
	}
	if got := b.ok("find / -name '*.sock' -not -path '/proc/*' 2>/dev/null; find / -type s -not -path '/proc/*' 2>/dev/null; true"); got != "" {
		t.Errorf("there are sockets: %q", got)
	}
	out.unchanged("a look around")
}

func TestSetUIDGivesNothing(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	if got := b.run(sandboxd.CommandSpec{Argv: []string{"./intruder", "mounts"}}); got.stdout != "" || got.stderr != "" {
		t.Errorf("mounts: %+v", got)
	}
	uid := strings.TrimSpace(b.ok("id -u"))
	if got := b.ok("cp intruder mine && chmod 6777 mine && ./mine ids; cp intruder /tmp/mine && chmod 6777 /tmp/mine && /tmp/mine ids"); got != strings.Repeat(uid+" "+uid+" "+uid+"\n", 2) {
		t.Errorf("a set-uid program of its own runs as %q, not as %s", got, uid)
	}
	// Those of the machine: whatever they say, none of them becomes root.
	list := strings.Fields(b.ok("find /usr/bin /usr/sbin /usr/lib /usr/libexec -xdev -perm /6000 -type f 2>/dev/null; true"))
	t.Logf("%d set-uid and set-gid programs of the machine", len(list))
	for _, name := range list {
		text := fmt.Sprintf("%s </dev/null >/dev/null 2>&1 & p=$!; for i in 1 2 3 4 5; do test -r /proc/$p/status && grep -q '^Uid:.*\\b0\\b' /proc/$p/status && echo root; done; kill -9 $p 2>/dev/null; true", name)
		if got := b.shell(text); strings.Contains(got.stdout, "root") {
			t.Errorf("%s runs as root: %+v", name, got)
		}
	}
	for _, command := range []string{"su -c id", "sudo -n id", "pkexec id", "mount -t tmpfs x /tmp", "unshare -r id", "unshare -Ur mount -t cgroup x /tmp", "nsenter -t 1 -a id", "chroot / id",
		"mount -t cgroup -o memory x /tmp", "umount /tmp", "hostname evil", "insmod /x.ko", "capsh --print --uid=0", "setpriv --reuid=0 id", "python3 -c 'import os; os.setuid(0)'",
		"chown 0:0 /workspace/mine", "ln -s x /usr/x", "touch /etc/x", "echo x >/etc/hosts", "echo x >/proc/sys/kernel/domainname", "echo b >/proc/sys/kernel/sysrq",
		"echo -1000 >/proc/self/oom_score_adj", "ulimit -n 1000000", "ulimit -c unlimited", "renice -n -20 $$", "chrt -f 99 true", "dmesg"} {
		got := b.run(sandboxd.CommandSpec{Shell: command, TimeoutS: seconds(5)})
		if got.ending.ExitCode == nil || *got.ending.ExitCode == 0 {
			t.Errorf("%s works: %+v", command, got)
		}
	}
}

func seconds(s float64) *sandboxd.Seconds {
	v := sandboxd.Seconds(s)
	return &v
}

// Process 1 is the only program of ours inside, for a moment also in the place of
// each new command. None of them may be opened for writing, or ended.
func TestTheInitHolds(t *testing.T) {
	long(t)
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	hunter := b.begin(sandboxd.CommandSpec{Argv: []string{"./intruder", "hunt", "2000"}, Background: true})
	b.says(hunter, "hunting")
	for began := time.Now(); time.Since(began) < 2*time.Second; {
		b.run(sandboxd.CommandSpec{Argv: []string{"true"}})
	}
	got := b.wait(hunter)
	if got.stdout != "hunting\ntried true\n" {
		t.Errorf("programs of running processes can be written: %+v", got)
	}
	before, err := s.C.Get(context.Background(), b.id)
	if err != nil {
		t.Fatal(err)
	}
	for _, signal := range []string{"KILL", "TERM", "STOP", "SEGV", "ABRT", "INT", "HUP", "QUIT", "TSTP", "BUS"} {
		b.shell("kill -" + signal + " 1")
	}
	b.shell("kill -9 -1")
	b.shell("for i in $(seq 64); do kill -$i 1; done; ls -la /proc/1/ >/dev/null; cat /proc/1/mem /proc/1/maps; echo x >/proc/1/comm; echo 1000 >/proc/1/oom_score_adj; cat </proc/1/fd/0; echo x >/proc/1/fd/1")
	if got := b.ok("echo alive"); got != "alive\n" {
		t.Errorf("after all that: %q", got)
	}
	after, err := s.C.Get(context.Background(), b.id)
	if err != nil || after.Generation != before.Generation || after.State != sandboxd.StateRunning {
		t.Errorf("after all that the sandbox is %+v, %v; it was %+v", after, err, before)
	}
}

// Two sandboxes of one machine have nothing in common.
func TestNeighbours(t *testing.T) {
	s := serve(t)
	a, b := s.open(sandboxd.OpenRequest{Key: "a"}), s.open(sandboxd.OpenRequest{Key: "b"})
	mark := "MARK-" + sandboxd.NewID()
	uids := [2]string{a.ok("id -u"), b.ok("id -u")}
	if uids[0] == uids[1] {
		t.Errorf("both have uid %s", uids[0])
	}
	a.ok("for f in /tmp/x /dev/shm/x /workspace/x $HOME/x; do echo " + mark + " >$f; chmod 777 $f; done; chmod 777 /workspace $HOME")
	victims := map[string]string{}
	for name, argv := range map[string][]string{"sleeper " + mark: {"sleep", "1000"}, "abstract": {"./intruder", "listen", "unix", "@" + mark}, "named": {"./intruder", "listen", "unix", "/tmp/" + mark},
		"port": {"./intruder", "listen", "tcp", "0.0.0.0:8123"}, "segment": {"./intruder", "segment-put", "4711"}} {
		victims[name] = a.begin(sandboxd.CommandSpec{Argv: argv, Background: true})
	}
	a.says(victims["abstract"], "listening")
	a.says(victims["named"], "listening")
	a.says(victims["segment"], "put")
	a.says(victims["port"], "listening")

	// Within the sandbox each works, so that the refusals below say something.
	if got := a.ok("./intruder dial unix @" + mark + "; ./intruder dial unix /tmp/" + mark + "; ./intruder dial tcp 127.0.0.1:8123; ./intruder segment-get 4711"); got != strings.Repeat("yes: hello\n", 3)+"segment <nil>\n" {
		t.Errorf("at home: %q", got)
	}
	got := b.ok("./intruder dial unix @" + mark + "; ./intruder dial unix /tmp/" + mark + "; ./intruder segment-get 4711; ./intruder dial tcp 127.0.0.1:8123")
	if strings.Contains(got, "yes") || !strings.Contains(got, "segment no such file or directory") || strings.Count(got, "no:") != 3 {
		t.Errorf("next door: %q", got)
	}
	if got := b.ok("cat /tmp/x /dev/shm/x /workspace/x $HOME/x 2>/dev/null; ls /tmp /dev/shm /dev/mqueue /dev/pts; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; a=MARK b=" + mark[5:] + "; grep -r $a-$b /proc/net/ /proc/sysvipc/ 2>/dev/null; true"); strings.Contains(got, mark) || strings.Contains(got, "sleep") {
		t.Errorf("next door shows: %q", got)
	}
	for _, path := range []string{filepath.Join(s.Data, "workspaces", "a", "workspace", "x"), "/workspace/../../a/workspace/x", "/proc/1/root/workspace/../../a/workspace/x", "/proc/1/cwd/x"} {
		if got := b.shell("cat " + path); strings.Contains(got.stdout, mark) {
			t.Errorf("next door reads %s", path)
		}
	}
	if got := b.run(sandboxd.CommandSpec{Argv: []string{"./intruder", "kill-all"}}); !strings.HasPrefix(got.stdout, "hit ") {
		t.Errorf("kill-all: %+v", got)
	}
	b.shell("kill -9 -1")
	for name, id := range victims {
		if cmd, err := s.C.GetCommand(context.Background(), a.id, id); err != nil || cmd.Ending != nil {
			t.Errorf("%s did not survive the neighbour: %+v, %v", name, cmd.Ending, err)
		}
	}
	if got := b.ok("echo alive"); got != "alive\n" {
		t.Errorf("the killer is %q", got)
	}
	// What one leaves behind, the next one with that key does not find.
	if err := s.C.Delete(context.Background(), a.id); err != nil {
		t.Fatal(err)
	}
	next := s.open(sandboxd.OpenRequest{Key: "a"})
	if got := next.ok("cat /tmp/x /dev/shm/x /workspace/x $HOME/x 2>/dev/null; ./intruder segment-get 4711; id -u"); strings.Contains(got, mark) || strings.Contains(got, "nil") || strings.Contains(got, "\n"+uids[0]) {
		t.Errorf("the next life of the key finds %q", got)
	}
}
