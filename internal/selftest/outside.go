package selftest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"

	"sandboxd"
	"sandboxd/internal/isolate/prober/act"
)

// boundary runs the prober as a command and judges what it may do.
func (t *trial) boundary(ctx context.Context) ([]Line, error) {
	b, err := t.open(ctx, sandboxd.Limits{})
	if err != nil {
		return nil, err
	}
	t.first = b
	found, err := b.ask(ctx)
	if err != nil {
		return nil, err
	}
	lines := t.groups(found)
	lines = append(t.judge(found), append(lines, t.landlock(found["landlock layers left"])...)...)
	signals, err := t.signals(ctx, b)
	return append(lines, signals), err
}

// groups takes those out of found that a host of one user cannot give up.
func (t *trial) groups(found map[string]string) []Line {
	const name = "status Groups"
	if !t.OneUser || found[name] == "" {
		return nil
	}
	line := Line{Section: "boundary", Mechanism: "own user", Tried: "further groups of a process", Got: found[name], Verdict: Weak,
		Why: "only root can give up the groups of its user: what a sandbox sees of their files it reaches"}
	found[name] = ""
	return []Line{line}
}

// allLayers is how many Landlock rulesets the kernel lets one stack.
const allLayers = 16

// landlock looks whether there is one, where the machine has it.
func (t *trial) landlock(left string) []Line {
	have := slices.ContainsFunc(t.Level, func(l sandboxd.LevelLine) bool { return l.Name == "landlock" && l.OK })
	if !have {
		return nil // said above, with what is lost
	}
	line := Line{Section: "boundary", Mechanism: "landlock", Tried: "whether rules for files are in force", Got: left + " of 16 layers are left to stack", Verdict: OK,
		Why: "it repeats by other means what mounts and user say, so that one hole is not enough"}
	if n, err := strconv.Atoi(left); err != nil || n >= allLayers {
		line.Verdict = Fail
	}
	return []Line{line}
}

// signals sends every signal to process 1 and to everything.
func (t *trial) signals(ctx context.Context, b *box) (Line, error) {
	line := Line{Section: "boundary", Mechanism: "process 1", Tried: "every signal to it and to all that can be reached", Why: "its end would be the sandbox's"}
	if _, err := b.ask(ctx, "signals"); err != nil {
		if !t.OwnKernel {
			return line, err
		}
		// gVisor's kernel does not spare process 1 what it cannot catch.
		_, err = b.host.Start(ctx, b.sb.ID)
		line.Got, line.Verdict = "a sandbox can end its own process 1, and itself with it", Weak
		return line, err
	}
	after, err := b.host.Get(ctx, b.sb.ID)
	if err != nil {
		return line, err
	}
	_, err = b.ask(ctx)
	line.Got, line.Verdict = "it lives and starts the next command", OK
	if err != nil || after.Generation != b.sb.Generation || after.State != sandboxd.StateRunning {
		line.Got, line.Verdict = fmt.Sprintf("the sandbox is %s, in generation %d after %d: %v", after.State, after.Generation, b.sb.Generation, err), Fail
	}
	return line, nil
}

// network dials from inside what answers outside.
func (t *trial) network(ctx context.Context) ([]Line, error) {
	if t.first == nil {
		return nil, nil // said by the boundary
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer tcp.Close()
	abstract := "@sandboxd-selftest-" + sandboxd.NewID()
	unix, err := net.Listen("unix", abstract)
	if err != nil {
		return nil, err
	}
	defer unix.Close()
	for _, l := range []net.Listener{tcp, unix} {
		go func() { _ = act.Greet(l) }() // until it is closed
		// So that the refusals below say something.
		if _, err := act.Dial(l.Addr().Network(), l.Addr().String()); err != nil {
			return nil, fmt.Errorf("the listener of the selftest does not answer: %w", err)
		}
	}
	loopback, err := t.dial(ctx, "tcp", tcp.Addr().String())
	if err != nil {
		return nil, err
	}
	socket, err := t.dial(ctx, "unix", abstract)
	if err != nil {
		return nil, err
	}
	nowhere, err := t.dial(ctx, "tcp", beyond(tcp.Addr().(*net.TCPAddr).Port)...)
	if err != nil {
		return nil, err
	}
	return []Line{
		line("network", "network namespace", loopback, "ECONNREFUSED").
			about("a port of the machine's own loopback", "services there trust who can reach them"),
		line("network", "network namespace", nowhere, t.noWay()).
			about("the machine's addresses, its cloud's metadata and the world", "with the network none there is no way out, not even a slow one"),
		line("network", "network namespace", socket, "ECONNREFUSED EPERM").
			about("a socket of the machine without a file", "such sockets have no permissions"),
	}, nil
}

// noWay are the answers to who dials without a route.
func (t *trial) noWay() string {
	const no = "ENETUNREACH EADDRNOTAVAIL EAFNOSUPPORT"
	if t.OwnKernel {
		return no + " EHOSTUNREACH"
	}
	return no
}

func (t *trial) dial(ctx context.Context, network string, addresses ...string) (map[string]string, error) {
	return t.first.ask(ctx, append([]string{"dial", network}, addresses...)...)
}

// beyond lists addresses that no sandbox without a network reaches: of metadata
// services, of usual neighbours, of the machine itself, and for the world two that
// are kept for documentation, so that nobody is disturbed where the network is
// there.
func beyond(port int) []string {
	list := []string{"169.254.169.254:80", "[fd00:ec2::254]:80", "198.51.100.1:80", "[2001:db8::1]:80", "10.0.0.1:80", "172.17.0.1:80"}
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return list
	}
	for _, a := range interfaces {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			list = append(list, net.JoinHostPort(n.IP.String(), strconv.Itoa(port)))
		}
	}
	return list
}

// line judges attempts that may all get the same answers.
func line(section, mechanism string, attempts map[string]string, answers string) *Line {
	l := &Line{Section: section, Mechanism: mechanism, Attempts: attempts}
	wrong := map[string]bool{}
	for name, got := range attempts {
		if !(expectation{answers: answers}).met(got) {
			wrong[name] = true
		}
	}
	l.settle(wrong)
	return l
}

func (l *Line) about(tried, why string) Line {
	l.Tried, l.Why = tried, why
	return *l
}

// meetings are the ways in which programs find each other, with what keeps
// sandboxes apart in each.
var meetings = []struct{ name, mechanism string }{
	{"loopback port", "network namespace"}, {"abstract socket", "network namespace"}, {"named socket", "own root"}, {"shared memory", "ipc namespace"},
	{"file in /tmp", "own root"}, {"file in /dev/shm", "own root"},
}

// neighbours lets one sandbox look for what another has put up.
func (t *trial) neighbours(ctx context.Context) ([]Line, error) {
	if t.first == nil {
		return nil, nil
	}
	other, err := t.open(ctx, sandboxd.Limits{})
	if err != nil {
		return nil, err
	}
	mark := "sandboxd-selftest-" + sandboxd.NewID()
	_, said, err := other.begin(ctx, "meet", mark)
	if err != nil {
		return nil, err
	}
	var ready struct{ TCP string }
	if err := json.Unmarshal([]byte(said), &ready); err != nil {
		return nil, fmt.Errorf("the prober said %q: %w", said, err)
	}
	home, err := other.ask(ctx, "look", mark, ready.TCP)
	if err != nil {
		return nil, err
	}
	away, err := t.first.ask(ctx, "look", mark, ready.TCP)
	if err != nil {
		return nil, err
	}
	var lines []Line
	for _, m := range meetings {
		if home[m.name] != "ok" {
			return lines, fmt.Errorf("at home the %s gave %q", m.name, home[m.name])
		}
		l := Line{Section: "neighbours", Mechanism: m.mechanism, Tried: "to find the " + m.name + " of another sandbox", Got: away[m.name], Verdict: OK,
			Why: "sandboxes of two owners must not know of each other"}
		if away[m.name] == "ok" || away[m.name] == "" {
			l.Verdict = Fail
		}
		lines = append(lines, l)
	}
	users, err := t.users(ctx, other)
	return append(lines, users), err
}

// users compares those of two sandboxes.
func (t *trial) users(ctx context.Context, other *box) (Line, error) {
	l := Line{Section: "neighbours", Mechanism: "own user", Tried: "whether two sandboxes have one user", Verdict: OK,
		Why: "where one other layer fails, the user still keeps their files and processes apart"}
	var ids []string
	for _, b := range []*box{t.first, other} {
		found, err := b.ask(ctx)
		if err != nil {
			return l, err
		}
		ids = append(ids, found["status Uid"])
	}
	l.Got = "each its own"
	if ids[0] == ids[1] {
		l.Got, l.Verdict = "both are "+ids[0], Fail
		if t.OneUser {
			l.Verdict = Weak
		}
	}
	return l, nil
}
