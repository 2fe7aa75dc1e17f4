package app

import (
	"sandboxd"
	"sandboxd/internal/cli"
)

// basePolicy is the policy as the server is configured: what callers change later is
// kept beside it.
func basePolicy(o cli.ServeOptions) sandboxd.Policy {
	p := sandboxd.DefaultPolicy()
	for _, row := range []struct {
		to  **int
		set cli.Bound
	}{{&p.MaxRunning, o.MaxSandboxes}, {&p.MaxOpen, o.MaxOpen}, {&p.MaxPerTenant, o.MaxPerTenant}} {
		if row.set.Set {
			n := int(row.set.N)
			if *row.to = &n; row.set.None {
				*row.to = nil
			}
		}
	}
	for _, row := range []struct {
		to  **sandboxd.Seconds
		set cli.Bound
	}{{&p.EvictIdleAfterS, o.EvictIdleAfter}, {&p.IdleTimeoutS, o.IdleTimeout}, {&p.AppIdleTimeoutS, o.AppIdleTimeout},
		{&p.OwnerLeaseS, o.OwnerLease}, {&p.WorkspaceTTLS, o.WorkspaceTTL}, {&p.EnvironmentTTLS, o.EnvironmentTTL}} {
		if row.set.Set {
			n := sandboxd.Seconds(row.set.N)
			if *row.to = &n; row.set.None {
				*row.to = nil
			}
		}
	}
	o.SandboxDefaults.Apply(&p)
	return p
}
