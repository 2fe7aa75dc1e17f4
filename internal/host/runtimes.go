package host

import (
	"context"
	"maps"
	"slices"
	"strings"

	"sandboxd"
	"sandboxd/internal/workspace"
)

// entry answers the catalogue's entry of a runtime.
func (h *Host) entry(name string) (sandboxd.RuntimeEntry, bool) {
	if h.cfg.Runtimes == nil {
		return sandboxd.RuntimeEntry{}, false
	}
	all := h.cfg.Runtimes.Entries()
	i := slices.IndexFunc(all, func(e sandboxd.RuntimeEntry) bool { return e.Name == name })
	if i < 0 {
		return sandboxd.RuntimeEntry{}, false
	}
	return all[i], true
}

// checkRuntime fills in the runtime and, once the driver is known, what its entry
// decides. An image named in the request is a runtime of its own.
func (h *Host) checkRuntime(req *sandboxd.OpenRequest) error {
	if req.Runtime == "" {
		req.Runtime = sandboxd.RuntimeMachine
		if req.Image == "" {
			req.Runtime = h.policy.Now().DefaultRuntime
		}
	}
	if req.Runtime == sandboxd.RuntimeMachine && (h.cfg.Runtimes == nil || req.Image != "") {
		return h.checkDriver(req)
	}
	e, ok := h.entry(req.Runtime)
	if !ok {
		err := sandboxd.Invalid("runtime", "no such runtime")
		if h.cfg.Runtimes != nil {
			var names []string
			for _, e := range h.cfg.Runtimes.Entries() {
				names = append(names, e.Name)
			}
			return err.WithHint("there are %s", strings.Join(names, ", "))
		}
		return err.WithHint("GET /v1/runtimes lists them")
	}
	if req.Image != "" {
		return sandboxd.Invalid("image", "the runtime %s decides it", e.Name).WithHint("name either a runtime or an image")
	}
	// The entry's image is the operator's choice and not the caller's.
	if err := h.checkDriverOf(req, e); err != nil {
		return err
	}
	if req.Network.Mode == "" && len(req.Network.Allow)+len(req.Network.Deny) == 0 {
		req.Network = h.entryNetwork(e, req.Driver, req.OCIRuntime)
	}
	return nil
}

// checkDriverOf is checkDriver for a sandbox of an entry, which decides its image.
func (h *Host) checkDriverOf(req *sandboxd.OpenRequest, e sandboxd.RuntimeEntry) error {
	if req.Driver == "" && req.OCIRuntime == "" {
		req.Driver = h.driverNames()[0]
	}
	if _, builds := h.drivers[req.Driver].(sandboxd.ImageBuilder); builds && req.OCIRuntime == "" {
		req.Image, req.OCIRuntime = e.Image, e.OCIRuntime // the operator's choice: it needs nobody's leave
		return nil
	}
	if req.OCIRuntime != "" {
		req.Image = e.Image
	}
	return h.checkDriver(req)
}

// driverNames are the drivers in the order in which a runtime of the catalogue takes
// them: those that have its image before those that have what the machine has.
func (h *Host) driverNames() []string {
	var built, bare []string
	for _, d := range h.cfg.Drivers {
		if _, ok := d.(sandboxd.ImageBuilder); ok {
			built = append(built, d.Name())
		} else {
			bare = append(bare, d.Name())
		}
	}
	return append(built, bare...)
}

// entryNetwork is the network of an entry's sandboxes whose request says nothing: none
// unless the entry needs one, whatever else the host does. A bridge is taken before the
// proxy, which then lets everything public through; where a bridge cannot be had, under
// gVisor for one, there still is the proxy.
func (h *Host) entryNetwork(e sandboxd.RuntimeEntry, driver, ociRuntime string) sandboxd.Network {
	if !e.NeedsNetwork {
		return sandboxd.Network{Mode: sandboxd.NetworkNone}
	}
	bridge := sandboxd.Network{Mode: sandboxd.NetworkBridge}
	if h.checkBridge(sandboxd.OpenRequest{Driver: driver, OCIRuntime: ociRuntime, Network: bridge}) == nil {
		return bridge
	}
	return sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: []string{"*"}}
}

// rootOf is the root file system of an entry's sandboxes.
func (h *Host) rootOf(req sandboxd.OpenRequest) string {
	if e, ok := h.entry(req.Runtime); ok && e.Root == sandboxd.RootWritable && h.cfg.Capabilities[req.Driver].WritableRoot {
		return sandboxd.RootWritable
	}
	return sandboxd.RootReadonly
}

// uidsFor is where a new sandbox gets its user from: that of its image where one was
// built with an account, which no other sandbox can reach the files of either.
func (h *Host) uidsFor(rec sandboxd.SandboxRecord) sandboxd.UIDPool {
	if e, ok := h.entry(rec.Runtime); ok && e.UID != 0 && rec.Image != "" && !h.cfg.UIDs.Shared {
		return sandboxd.UIDPool{First: e.UID, Last: e.UID, Shared: true}
	}
	return h.cfg.UIDs
}

// poolOf gives a rebuilt record the user that its files have. One that is not of the
// pool is that of an image, which its sandboxes share.
func (h *Host) poolOf(m workspace.Meta) sandboxd.UIDPool {
	all := h.cfg.UIDs
	return sandboxd.UIDPool{First: m.UID, Last: m.UID, Shared: all.Shared || m.UID < all.First || m.UID > all.Last}
}

// varsOf are the variables of a sandbox's commands: the entry's, then its own.
func (h *Host) varsOf(rec sandboxd.SandboxRecord) map[string]string {
	e, ok := h.entry(rec.Runtime)
	if !ok || len(e.Env) == 0 {
		return rec.Env
	}
	vars := maps.Clone(e.Env)
	maps.Copy(vars, rec.Env)
	return vars
}

// Runtimes implements sandboxd.Host. Without a catalogue there is one built-in entry.
func (h *Host) Runtimes(context.Context) ([]sandboxd.Runtime, error) {
	if h.cfg.Runtimes == nil {
		var names []string
		for _, d := range h.cfg.Drivers {
			names = append(names, d.Name())
		}
		return []sandboxd.Runtime{{Name: sandboxd.RuntimeMachine, Default: true, Drivers: names, Limits: h.limitsOf(sandboxd.RuntimeMachine),
			Network: string(sandboxd.NetworkNone), Root: sandboxd.RootReadonly}}, nil
	}
	names := h.driverNames()
	_, builds := h.drivers[names[0]].(sandboxd.ImageBuilder)
	_, everyone := h.drivers[names[len(names)-1]].(sandboxd.ImageBuilder)
	var all []sandboxd.Runtime
	chosen := h.policy.Now().DefaultRuntime
	for _, e := range h.cfg.Runtimes.Entries() {
		ociRuntime := ""
		if builds {
			ociRuntime = e.OCIRuntime
		}
		r := sandboxd.Runtime{Name: e.Name, Description: e.Description, Default: e.Name == chosen, Drivers: names, Builds: e.Builds,
			Installed: e.Installed, Limits: h.limitsOf(e.Name), Network: string(h.entryNetwork(e, names[0], ociRuntime).Mode), Root: e.Root}
		if !everyone {
			r.Missing = h.cfg.Runtimes.Missing(e.Name)
		}
		if builds {
			p := h.cfg.Runtimes.Preparation(e.Name)
			r.Image, r.Preparation = e.Image, &p
		}
		all = append(all, r)
	}
	return all, nil
}
