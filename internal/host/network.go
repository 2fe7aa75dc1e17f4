package host

import (
	"context"

	"sandboxd"
	"sandboxd/internal/egress"
	"sandboxd/internal/guest"
)

// proxyService is what an init's connections to its proxy port are streams to.
const proxyService = "proxy"

// maxRules bounds each list of a sandbox.
const maxRules = 1000

// checkNetwork validates what a sandbox is to reach and spells it canonically.
func checkNetwork(n *sandboxd.Network) error {
	*n = known(*n)
	switch n.Mode {
	case sandboxd.NetworkNone, sandboxd.NetworkBridge:
		if len(n.Allow)+len(n.Deny) > 0 {
			return sandboxd.Invalid("network", "allow and deny have a meaning with mode proxy only")
		}
	case sandboxd.NetworkProxy:
	default:
		return sandboxd.Invalid("network.mode", "must be none, proxy or bridge")
	}
	for _, l := range []struct {
		field string
		list  *[]string
	}{{"network.allow", &n.Allow}, {"network.deny", &n.Deny}} {
		if len(*l.list) > maxRules {
			return sandboxd.Invalid(l.field, "more than %d rules", maxRules)
		}
		_, spelled, err := egress.ParseRules(*l.list)
		if err != nil {
			return sandboxd.Invalid(l.field, "%v", err).WithHint("a rule is a host name, *.name, *, an address or a prefix, with :port for one port")
		}
		*l.list = spelled
	}
	return nil
}

// checkBridge says whether a sandbox may have a bridge, and by its driver can.
func (h *Host) checkBridge(req sandboxd.OpenRequest) error {
	if req.Network.Mode != sandboxd.NetworkBridge {
		return nil
	}
	if !h.cfg.Bridge {
		return &sandboxd.Error{Class: sandboxd.ClassForbidden, Field: "network.mode", Message: "this host lets nobody have a bridge",
			Hint: "use the network proxy, or start the server with --bridge any"}
	}
	bridges, ok := h.drivers[req.Driver].(sandboxd.Bridges)
	if !ok {
		return &sandboxd.Error{Class: sandboxd.ClassUnsupported, Field: "network.mode", Message: "the " + req.Driver + " driver has no bridge",
			Hint: "the docker driver has; the network proxy is on every driver"}
	}
	return bridges.BridgeWorks(req.OCIRuntime)
}

// known gives a network that says nothing the mode it has.
func known(n sandboxd.Network) sandboxd.Network {
	if n.Mode == "" {
		n.Mode = sandboxd.NetworkNone
	}
	return n
}

// openGate answers the way out of a sandbox, the same one for every generation, so
// that what it counted stays; nil for a sandbox without.
func (b *box) openGate(n sandboxd.Network) (*egress.Gate, error) {
	if n.Mode == sandboxd.NetworkBridge && b.h.cfg.Egress.HasUpstream() {
		// The operator's proxy is at an address that a bridge does not reach, and its
		// password is not for sandboxes: who asks for it goes by the host.
		n.Allow = []string{"*"}
	} else if n.Mode != sandboxd.NetworkProxy {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gate == nil {
		gate, err := b.h.cfg.Egress.Gate(n.Allow, n.Deny)
		if err != nil {
			return nil, err
		}
		b.gate = gate
	}
	return b.gate, nil
}

func (b *box) closeGate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gate != nil {
		b.gate.Close()
	}
}

// NetworkActivity implements sandboxd.Host.
func (h *Host) NetworkActivity(ctx context.Context, id string) (sandboxd.NetworkActivity, error) {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.NetworkActivity{}, err
	}
	b.mu.Lock()
	gate := b.gate
	b.mu.Unlock()
	activity := sandboxd.NetworkActivity{Denials: []sandboxd.Denial{}}
	if gate != nil {
		activity = gate.Activity()
	}
	activity.Since = h.began.UTC()
	return activity, nil
}

// offerNetwork has the init listen for its proxy, and serves it.
func (e *environment) offerNetwork(opts *guest.Options) {
	if e.gate == nil {
		return
	}
	opts.Services = map[string]func(guest.Stream){proxyService: func(s guest.Stream) { e.gate.Serve(s) }}
	opts.Listen = map[string]uint16{proxyService: sandboxd.ProxyPort}
}

// networkVars tell programs of the proxy and of the certificates to trust. There is
// no one name that all of them read.
func (e *environment) networkVars() map[string]string {
	vars := map[string]string{}
	set := func(value string, names ...string) {
		for _, name := range names {
			vars[name] = value
		}
	}
	if e.gate != nil {
		set("http://"+sandboxd.ProxyAddress, "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
		set("localhost,127.0.0.1,::1", "NO_PROXY", "no_proxy")
		set("1", "NODE_USE_ENV_PROXY") // Node asks before it looks at the others
		// A refusal is final. pip would try for eight seconds to see whether it is.
		set("1", "PIP_RETRIES")
	}
	if e.b.h.cfg.Trust {
		set(sandboxd.CABundle, "SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "REQUESTS_CA_BUNDLE",
			"NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE")
	}
	return vars
}
