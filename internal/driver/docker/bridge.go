package docker

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/docker/fence"
)

// bridges are the networks of this driver and who is in which. A network is there
// while somebody is in it, the fence while there is a network.
type bridges struct {
	fence *fence.Fence // its Resolvers are those that sandboxes ask; none for the engine's choice
	watch sync.Once

	mu      sync.Mutex                 // held over what is done with the engine
	in      map[string]map[string]bool // network to ids
	refused error                      // why there are none here; nil once Fingerprint has tried
	runtime string                     // the engine's default
}

// What a bridge is named by: the owner, then the tenant. An interface's name has at
// most 15 bytes.
const (
	bridgeOwner  = 5
	bridgeTenant = 8
)

// gVisor is in the names of its OCI runtimes.
const gVisor = "runsc"

// fenceCheck is how often it is looked whether the fence stands, beside whenever the
// kernel says that it was changed, which it does not say of what crosses a bridge.
const fenceCheck = time.Second

func newBridges(closed []netip.Prefix, data string) *bridges {
	return &bridges{in: map[string]map[string]bool{}, refused: errNoBridge("the host does not allow it"),
		fence: &fence.Fence{Name: "sandboxd-" + data, Bridges: "sb" + short(data, bridgeOwner), Closed: closed, Resolvers: resolvers()}}
}

func errNoBridge(why string) error {
	return &sandboxd.Error{Class: sandboxd.ClassUnsupported, Field: "network.mode", Message: "there is no bridge here: " + why,
		Hint: "the network proxy works everywhere; sandboxd doctor says what a bridge needs"}
}

// short is a name's stand-in, of n letters and digits.
func short(name string, n int) string {
	sum := sha256.Sum256([]byte(name))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:n]
}

// resolvers are the machine's, as far as they are of IPv4 and on another machine:
// those of a stub on this one where it has one.
func resolvers() []netip.Addr {
	for _, name := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		var found []netip.Addr
		file, err := os.Open(name)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 2 || fields[0] != "nameserver" {
				continue
			}
			if addr, err := netip.ParseAddr(fields[1]); err == nil && addr.Is4() && !addr.IsLoopback() && !isOwn(addr) {
				found = append(found, addr)
			}
		}
		file.Close()
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// isOwn says whether an address is this machine's.
func isOwn(addr netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr() == addr
	})
}

// BridgeWorks is sandboxd.Bridges'.
func (d *Driver) BridgeWorks(ociRuntime string) error {
	d.bridges.mu.Lock()
	defer d.bridges.mu.Unlock()
	ociRuntime = cmp.Or(ociRuntime, d.cfg.OCIRuntime, d.bridges.runtime)
	if strings.Contains(ociRuntime, gVisor) {
		return errNoBridge("under the OCI runtime " + ociRuntime + " a sandbox has a network stack of its own, which the fence is not proven for")
	}
	return d.bridges.refused
}

func (d *Driver) networkName(tenant string) string {
	return "sandboxd-" + d.data[:8] + "-" + short(tenant, bridgeTenant)
}

// join answers the network of a tenant for an environment, and makes it first when
// nobody is in it.
func (d *Driver) join(ctx context.Context, spec sandboxd.EnvironmentSpec) (string, error) {
	b := d.bridges
	b.mu.Lock()
	defer b.mu.Unlock()
	name := d.networkName(spec.Tenant)
	if len(b.in[name]) == 0 {
		if err := d.makeNetwork(ctx, name, spec); err != nil {
			return "", err
		}
	}
	d.entered(name, spec.ID)
	return name, nil
}

// entered notes who is in a network. Under bridges.mu.
func (d *Driver) entered(name, id string) {
	b := d.bridges
	if b.in[name] == nil {
		b.in[name] = map[string]bool{}
	}
	b.in[name][id] = true
	b.watch.Do(func() {
		d.work.Go(d.watchFence)
		d.work.Go(d.lookAtFence)
	})
}

// rejoin is join for an environment that an earlier server started.
func (d *Driver) rejoin(name, id string) error {
	b := d.bridges
	b.mu.Lock()
	defer b.mu.Unlock()
	d.entered(name, id)
	return b.fence.Raise()
}

// makeNetwork raises the fence and makes a network behind it, in this order.
func (d *Driver) makeNetwork(ctx context.Context, name string, spec sandboxd.EnvironmentSpec) error {
	if err := d.bridges.fence.Raise(); err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the fence around sandboxes with a bridge cannot be made").
			WithHint("the server must be root in the engine's network namespace, and the kernel have nftables")
	}
	bridge, no := d.bridges.fence.Bridges+short(spec.Tenant, bridgeTenant), false
	made := client.NetworkCreateOptions{Driver: "bridge", EnableIPv6: &no,
		Options: map[string]string{"com.docker.network.bridge.name": bridge, "com.docker.network.bridge.enable_icc": "false",
			"com.docker.network.bridge.enable_ip_masquerade": "true"},
		Labels: map[string]string{labelID: spec.ID, labelData: d.data}}
	there, err := d.networkThere(ctx, name, made)
	if err == nil && !there {
		err = d.engine.call(ctx, func(ctx context.Context) error {
			_, err := d.engine.api.NetworkCreate(ctx, name, made)
			return err
		})
	}
	if err != nil {
		return err
	}
	if _, err := net.InterfaceByName(bridge); err != nil {
		return errors.Join(sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the engine's networks are not this machine's").
			WithHint("the server must run in the engine's network namespace"), d.removeNetwork(ctx, name))
	}
	return nil
}

// networkThere says whether the network is there, because an earlier server made it and
// did not come to removing it. One that only has its name is refused, also beside ours,
// which an engine may allow: the fence need not stand before it.
func (d *Driver) networkThere(ctx context.Context, name string, made client.NetworkCreateOptions) (there bool, err error) {
	var found client.NetworkListResult
	err = d.engine.call(ctx, func(ctx context.Context) (err error) {
		found, err = d.engine.api.NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("name", name)})
		return err
	})
	if err != nil {
		return false, err
	}
	for _, n := range found.Items {
		if n.Name != name {
			continue // the engine looks for what has it in its name
		}
		if there || n.Labels[labelData] != d.data || n.Driver != made.Driver || n.EnableIPv6 || !maps.Equal(n.Options, made.Options) {
			return false, sandboxd.Errorf(sandboxd.ClassUnavailable, "the engine has another network of the name %s", name).
				WithHint("remove it: docker network rm %s", n.ID)
		}
		there = true
	}
	return there, nil
}

// leave notes that an environment is gone, and removes what nobody is in: networks,
// also those of earlier servers, and with the last one the fence. networked says that
// it had a bridge, which of one that was not adopted nobody else knows.
func (d *Driver) leave(ctx context.Context, id string, networked bool) error {
	b := d.bridges
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, ids := range b.in {
		if ids[id] {
			networked = true
			if delete(ids, id); len(ids) == 0 {
				delete(b.in, name)
			}
		}
	}
	if !networked {
		return nil
	}
	return d.sweep(ctx)
}

// sweep removes the networks that nobody is in. Under bridges.mu.
func (d *Driver) sweep(ctx context.Context) error {
	var found client.NetworkListResult
	err := d.engine.call(ctx, func(ctx context.Context) (err error) {
		found, err = d.engine.api.NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("label", labelData+"="+d.data)})
		return err
	})
	if err != nil {
		return err
	}
	left := 0
	for _, n := range found.Items {
		if len(d.bridges.in[n.Name]) > 0 {
			left++
			continue
		}
		if err := d.removeNetwork(ctx, n.ID); err != nil {
			// Of an environment that is not adopted yet, or never will be: it is swept
			// after that.
			d.cfg.Log.Info("a network is still in use", "network", n.Name, "err", err)
			left++
		}
	}
	if left > 0 || len(found.Items) == 0 && !d.cfg.Bridge {
		return nil
	}
	if err := d.bridges.fence.Lower(); err != nil {
		d.cfg.Log.Error("the fence is left, with nobody behind it", "err", err) // which keeps no sandbox from ending
	}
	return nil
}

func (d *Driver) removeNetwork(ctx context.Context, name string) error {
	err := d.engine.call(ctx, func(ctx context.Context) error {
		_, err := d.engine.api.NetworkRemove(ctx, name, client.NetworkRemoveOptions{})
		return err
	})
	if isClass(err, sandboxd.ClassNotFound) {
		return nil
	}
	return err
}

// watchFence puts the fence up again when somebody took it down or changed it, as by
// loading other rules for the whole machine.
func (d *Driver) watchFence() {
	if err := d.bridges.fence.Watch(d.ctx, d.mendFence); err != nil {
		d.cfg.Log.Warn("the kernel does not say when the fence is changed; it is looked at every second", "err", err)
	}
}

// lookAtFence does so for what the kernel does not tell of.
func (d *Driver) lookAtFence() {
	tick := time.NewTicker(fenceCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.mendFence()
		case <-d.ctx.Done():
			return
		}
	}
}

func (d *Driver) mendFence() {
	mended, err := d.bridges.fence.Mend()
	if err != nil {
		d.cfg.Log.Error("the fence around sandboxes with a bridge cannot be seen to", "err", err)
	} else if mended {
		d.cfg.Log.Warn("the fence around sandboxes with a bridge was gone or changed; it is made anew")
	}
}
