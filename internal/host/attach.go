package host

import (
	"context"
	"errors"
	"maps"
	"reflect"

	"sandboxd"
)

// attachable says whether who asks for this may have the sandbox that its key names:
// what a request says and the sandbox does not have is an error, never passed over.
// asked is as it came, checked has the same with defaults and in canonical spelling;
// what was left open is the sandbox's to say. The variables that another face gives all of
// its sandboxes are no wish of its caller.
func attachable(asked, checked sandboxd.OpenRequest, rec sandboxd.SandboxRecord) error {
	l, in := checked.Limits, rec.Limits
	for _, row := range []struct {
		field     string
		said, has bool // said: in the request; has: it is so
	}{
		{"runtime", asked.Runtime != "", checked.Runtime == rec.Runtime},
		{"driver", asked.Driver != "", checked.Driver == rec.Driver},
		{"image", asked.Image != "", checked.Image == rec.Image},
		{"oci_runtime", asked.OCIRuntime != "", checked.OCIRuntime == rec.OCIRuntime},
		{"tenant", asked.Tenant != "", checked.Tenant == rec.Tenant},
		{"network", asked.Network.Mode != "" || len(asked.Network.Allow)+len(asked.Network.Deny) > 0, sameNetwork(checked.Network, rec.Network)},
		{"limits.memory_bytes", asked.Limits.MemoryBytes != 0, l.MemoryBytes == in.MemoryBytes},
		{"limits.swap_bytes", asked.Limits.SwapBytes != 0, l.SwapBytes == in.SwapBytes},
		{"limits.cpu_shares", asked.Limits.CPUShares != 0, l.CPUShares == in.CPUShares},
		{"limits.cpus", asked.Limits.CPUs != 0, l.CPUs == in.CPUs},
		{"limits.pids", asked.Limits.PIDs != 0, l.PIDs == in.PIDs},
		{"limits.tmp_bytes", asked.Limits.TmpBytes != 0, l.TmpBytes == in.TmpBytes},
		{"limits.home_bytes", asked.Limits.HomeBytes != 0, l.HomeBytes == in.HomeBytes},
		{"limits.open_files", asked.Limits.OpenFiles != 0, l.OpenFiles == in.OpenFiles},
		{"labels", len(asked.Labels) > 0, maps.Equal(asked.Labels, rec.Labels)},
		{"env", len(asked.Env) > 0 && checked.Face == sandboxd.FaceNative, maps.Equal(asked.Env, rec.Env) || lacksEnv(rec)},
	} {
		if row.said && !row.has {
			return (&sandboxd.Error{Class: sandboxd.ClassConflict, Field: row.field, Message: "the sandbox of this key has another"}).
				WithHint("leave %s out to have the sandbox as it is, or take another key; a sandbox keeps what it was made with until it is deleted", row.field)
		}
	}
	return nil
}

// lacksEnv says whether a sandbox may be given variables, because its own were lost and
// nothing runs with none.
func lacksEnv(rec sandboxd.SandboxRecord) bool {
	return rec.Life.EnvLost && !rec.State.HasEnvironment()
}

func sameNetwork(a, b sandboxd.Network) bool {
	same := func(x, y []string) bool { return len(x) == 0 && len(y) == 0 || reflect.DeepEqual(x, y) }
	return a.Mode == b.Mode && same(a.Allow, b.Allow) && same(a.Deny, b.Deny)
}

// unmake takes back a sandbox that this very request made and whose start failed for
// what the request names, as an image that is not there. Nobody can start it ever, and
// its key would stand in the way of the right request. Any other failure leaves it
// cold, with its ending: the next start may do.
func (h *Host) unmake(ctx context.Context, id string, failed error) {
	var e *sandboxd.Error
	if !errors.As(failed, &e) || e.Class != sandboxd.ClassInvalid && e.Class != sandboxd.ClassUnsupported {
		return
	}
	err := h.deleteIf(context.WithoutCancel(ctx), id, func(r *sandboxd.SandboxRecord) error {
		if r.State != sandboxd.StateCold || r.Generation > 1 {
			return errUsed // somebody else could start it meanwhile, or is about to
		}
		return nil
	})
	if err != nil {
		h.log.Error("a sandbox that cannot be is not taken back", "sandbox", id, "err", err)
	}
}
