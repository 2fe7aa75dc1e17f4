package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/docker/fence"
	"sandboxd/internal/driver/initbin"
)

// alone is set in the process that has a network namespace of its own.
const alone = "SANDBOXD_TEST_BRIDGE"

// ownNetwork runs the calling test once more, as a process in a network namespace of
// its own, where an engine makes bridges and rules that are nobody else's. It answers
// whether this is that process.
func ownNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(alone) != "" {
		return true
	}
	captest.Root(t)
	for _, program := range []string{"dockerd", "iptables", "ip", "nsenter"} {
		_, err := exec.LookPath(program)
		captest.Need(t, "docker", err == nil, "there is no "+program)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), alone+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in a network of its own: %v\n%s", err, out)
	}
	return false
}

func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Addresses of the test's world. Public and private are what they look like: nothing
// here is connected to anything.
const (
	machinePublic, machinePrivate = "45.1.1.1", "10.98.0.1"
	worldPublic, worldPrivate     = "45.1.1.2", "10.98.0.2"
	worldResolver, worldMetadata  = "10.98.0.53", "169.254.169.254"
)

// newWorld makes what is outside of the machine, and answers its network namespace.
func newWorld(t *testing.T) string {
	t.Helper()
	sleeper := exec.Command("sleep", "1000")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sleeper.Process.Kill(); sleeper.Wait() })
	pid := fmt.Sprint(sleeper.Process.Pid)
	shell(t, `in="nsenter -t `+pid+` -n"
ip link set lo up; $in ip link set lo up
ip link add out type veth peer name world netns `+pid+`
ip addr add `+machinePublic+`/24 dev out; ip addr add `+machinePrivate+`/24 dev out; ip link set out up
for a in `+strings.Join([]string{worldPublic, worldPrivate, worldResolver}, " ")+`; do $in ip addr add $a/24 dev world; done
$in ip addr add `+worldMetadata+`/32 dev world; $in ip link set world up
ip route add default via `+worldPublic+`; $in ip route add 172.16.0.0/12 via `+machinePublic+`; $in ip route add 192.168.0.0/16 via `+machinePublic)
	return "/proc/" + pid + "/ns/net"
}

// What is on a bridge reaches what is public, and neither the machine, nor what is
// private, nor who is on the same bridge or another one, nor a port that is published
// on the machine; nobody from outside reaches it. What is made for it goes with the
// last one.
func TestBridge(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	world := newWorld(t)
	own := dockertest.Start(t, "--iptables=true")
	dir := t.TempDir()
	var closed []netip.Prefix
	for _, p := range []string{"10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"} {
		closed = append(closed, netip.MustParsePrefix(p))
	}
	open := func() *Driver {
		d, err := New(Config{Host: own.Host, DataDir: dir, Bridge: true, Closed: closed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		d.bridges.fence.Resolvers = []netip.Addr{netip.MustParseAddr(worldResolver)}
		return d
	}
	d := open()
	found := d.Fingerprint(t.Context())
	if !found.Works || !slices.Contains(found.Capabilities.Networks, "bridge") || d.BridgeWorks("") != nil {
		t.Fatalf("%+v, %v", found, d.BridgeWorks(""))
	}
	if got := networksOf(t, own.Engine); len(got) != 0 {
		t.Fatalf("the trial left %v", got)
	}
	image, err := d.engine.emptyImage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	handles := map[string]sandboxd.Handle{}
	start := func(tenant string) (sandboxd.EnvironmentSpec, spot) {
		t.Helper()
		spec := newSpec(t, dir)
		spec.Image, spec.Bridge, spec.Tenant = image, true, tenant
		handle, err := d.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		handles[spec.ID] = handle
		return spec, spotOf(t, own.Engine, d.containerName(spec.ID))
	}
	a, here := start("blue")
	b, same := start("blue")
	c, other := start("red")
	if got := networksOf(t, own.Engine); len(got) != 2 {
		t.Fatalf("networks %v", got)
	}
	if here.network == other.network || here.network != same.network {
		t.Errorf("networks %s %s %s", here.network, same.network, other.network)
	}
	published := publish(t, d, own.Engine)

	listen := func(space, addr string) string {
		t.Helper()
		l, err := listenIn(t.Context(), space, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.Addr().String()
	}
	const machine = ownSpace
	for _, test := range []struct {
		what, from, to string
		reached        bool
	}{
		{"what is public", here.space, listen(world, worldPublic+":0"), true},
		{"the machine's resolver", here.space, listen(world, worldResolver+":53"), true},
		{"another port of the resolver", here.space, listen(world, worldResolver+":80"), false},
		{"a private network", here.space, listen(world, worldPrivate+":0"), false},
		{"metadata", here.space, listen(world, worldMetadata+":80"), false},
		{"the machine, at its public address", here.space, listen(machine, machinePublic+":0"), false},
		{"the machine, at its private address", here.space, listen(machine, machinePrivate+":0"), false},
		{"the machine, at the gateway", here.space, listen(machine, here.gateway+":0"), false},
		{"one of the same tenant", here.space, listen(same.space, same.addr+":0"), false},
		{"one of another tenant", here.space, listen(other.space, other.addr+":0"), false},
		{"a published port, from the world", world, machinePublic + ":18080", true},
		{"a published port, at the public address", here.space, machinePublic + ":18080", false},
		{"a published port, at the gateway", here.space, here.gateway + ":18080", false},
		{"a published port, where it is", here.space, published, false},
		{"a sandbox, from the world", world, listen(here.space, here.addr+":0"), false},
	} {
		if err := dialIn(test.from, test.to); (err == nil) != test.reached {
			t.Errorf("%s: reached %v, %v", test.what, err == nil, err)
		} else if err != nil && err != syscall.ECONNREFUSED {
			t.Errorf("%s is not refused at once: %v", test.what, err)
		}
	}

	// Somebody loads rules for the whole machine: the fence is up again, and nobody asked.
	if err := (&fence.Fence{Name: d.bridges.fence.Name}).Lower(); err != nil {
		t.Fatal(err)
	}
	stands := func() bool {
		stands, err := d.bridges.fence.Stands()
		return stands && err == nil
	}
	until(t, "the fence stands again", stands)
	if err := dialIn(here.space, worldMetadata+":80"); err != syscall.ECONNREFUSED {
		t.Errorf("metadata after the fence was taken down: %v", err)
	}

	// Somebody keeps the rules from seeing what crosses a bridge, as guides for virtual
	// machines say to.
	neighbour := listen(same.space, same.addr+":0")
	shell(t, "echo 0 >/proc/sys/net/bridge/bridge-nf-call-iptables")
	d.mendFence()
	if err := dialIn(here.space, neighbour); err != syscall.ECONNREFUSED {
		t.Errorf("one of the same tenant, after the machine's filter was taken off bridges: %v", err)
	}

	// The next server knows who is in which network. A network that only has the name of
	// one of ours is not used.
	name := d.networkName("green")
	if _, err := own.Engine.API.NetworkCreate(t.Context(), name, client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		t.Fatal(err)
	}
	green := newSpec(t, dir)
	green.Image, green.Bridge, green.Tenant = image, true, "green"
	if _, err := d.Start(t.Context(), green); !isClass(err, sandboxd.ClassUnavailable) || !strings.Contains(err.Error(), name) {
		t.Errorf("in a network of somebody else: %v", err)
	}
	if _, err := own.Engine.API.NetworkRemove(t.Context(), name, client.NetworkRemoveOptions{}); err != nil {
		t.Error(err)
	}
	d.Close()

	// One that cannot make the fence ends what would run without, and starts.
	unable := open()
	unable.bridges.fence.Name = strings.Repeat("x", 1000)
	var gone *sandboxd.Error
	if err := unable.Adopt(t.Context(), c.ID, handles[c.ID]); !errors.As(err, &gone) || gone.Class != sandboxd.ClassGone || gone.Ending == nil || gone.Ending.Cause != sandboxd.CauseStopped {
		t.Errorf("without a fence: %v", err)
	}
	if _, err := own.Engine.API.ContainerInspect(t.Context(), unable.containerName(c.ID), client.ContainerInspectOptions{}); err == nil {
		t.Error("it runs without a fence")
	}
	unable.Close()

	d = open()
	if err := d.Adopt(t.Context(), a.ID, handles[a.ID]); err != nil {
		t.Fatal(err)
	}
	for i, spec := range []sandboxd.EnvironmentSpec{a, b} {
		if err := d.Stop(t.Context(), spec.ID); err != nil {
			t.Fatal(err)
		}
		// That of the one that is not adopted is of an unknown owner until it is stopped.
		if got := networksOf(t, own.Engine); len(got) != 1-i {
			t.Errorf("after stop %d: %v", i+1, got)
		}
	}
	if stands() {
		t.Error("the fence stands and nobody is behind it")
	}
}

// spot is where a container is in the network.
type spot struct{ space, network, addr, gateway string }

func spotOf(t *testing.T, e dockertest.Engine, name string) spot {
	t.Helper()
	seen, err := e.API.ContainerInspect(t.Context(), name, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range seen.Container.NetworkSettings.Networks {
		return spot{fmt.Sprintf("/proc/%d/ns/net", seen.Container.State.Pid), name, at.IPAddress.String(), at.Gateway.String()}
	}
	t.Fatal("the container has no network")
	panic("unreachable")
}

// networksOf names what is there beside the engine's own and the test's.
func networksOf(t *testing.T, e dockertest.Engine) (names []string) {
	t.Helper()
	found, err := e.API.NetworkList(t.Context(), client.NetworkListOptions{Filters: make(client.Filters).Add("label", labelID)})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range found.Items {
		names = append(names, n.Name)
	}
	return names
}

// publish runs a container of somebody else's with a port on the machine, and answers
// where that is behind it.
func publish(t *testing.T, d *Driver, e dockertest.Engine) string {
	t.Helper()
	prober, err := initbin.Prober(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "prober")
	if err := os.WriteFile(name, bytes.Clone(prober), 0o755); err != nil {
		t.Fatal(err)
	}
	image, err := d.engine.emptyImage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.API.NetworkCreate(t.Context(), "somebody", client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		t.Fatal(err)
	}
	port := network.MustParsePort("8080/tcp")
	made, err := e.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: image, Entrypoint: []string{"/prober", "meet", "somebody"}, ExposedPorts: network.PortSet{port: {}}},
		HostConfig: &container.HostConfig{NetworkMode: "somebody", Binds: []string{name + ":/prober:ro"},
			PortBindings: network.PortMap{port: {{HostPort: "18080"}}}},
	})
	if err == nil {
		_, err = e.API.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = e.API.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true})
	})
	at := spotOf(t, e, made.ID)
	l, err := listenIn(t.Context(), at.space, at.addr+":8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return net.JoinHostPort(at.addr, "8080")
}

// Where it is not allowed or another kernel is in between, a bridge is refused by name.
func TestNoBridge(t *testing.T) {
	d := openDriver(t, dockertest.Find(t, "runc"), t.TempDir())
	defer d.Close()
	spec := newSpec(t, d.cfg.DataDir)
	spec.Bridge = true
	for runtime, says := range map[string]string{"": "the host does not allow it", "runsc": "under the OCI runtime runsc"} {
		spec.OCIRuntime = runtime
		_, err := d.Start(t.Context(), spec)
		if sandboxd.ClassOf(err) != sandboxd.ClassUnsupported || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", runtime, err)
		}
	}
}
