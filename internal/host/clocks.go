package host

import "sandboxd"

// clockOf is the rule that ends a sandbox which nobody uses: of an open one that of the
// face that opened it, and no other; of a closed one that of its files.
func clockOf(p sandboxd.Policy, sb sandboxd.Sandbox) sandboxd.SandboxClock {
	var c sandboxd.SandboxClock
	switch {
	case sb.Open:
		c = faceClock(p, sb.Face)
	case sb.State == sandboxd.StateCold, sb.State == sandboxd.StateStopped:
		c = sandboxd.SandboxClock{Name: sandboxd.ClockFiles, WaitsFor: sandboxd.WaitsForUse, LimitS: p.WorkspaceTTLS}
	}
	if c.LimitS == nil {
		return sandboxd.SandboxClock{Name: sandboxd.ClockNone}
	}
	return c
}

func faceClock(p sandboxd.Policy, face string) sandboxd.SandboxClock {
	switch face {
	case sandboxd.FaceSandboxes:
		return sandboxd.SandboxClock{Name: sandboxd.ClockLease, WaitsFor: sandboxd.WaitsForRequest, LimitS: p.OwnerLeaseS}
	case sandboxd.FaceApps:
		return sandboxd.SandboxClock{Name: sandboxd.ClockIdle, WaitsFor: sandboxd.WaitsForWork, LimitS: p.AppIdleTimeoutS}
	}
	return sandboxd.SandboxClock{Name: sandboxd.ClockIdle, WaitsFor: sandboxd.WaitsForWork, LimitS: p.IdleTimeoutS}
}

// closedSince is what is known of a closed sandbox, by the clock of its files. One of
// which nothing was noted counts from now.
func (h *Host) closedSince(rec sandboxd.SandboxRecord, rule sandboxd.SandboxClock) sandboxd.Awake {
	age, _ := h.unused(rec)
	now := h.clock().Wall
	a := sandboxd.Awake{Clock: rule.Name, Reason: "closed", Since: now.Add(-age).UTC()}
	if rule.LimitS != nil {
		lapses := now.Add(max(0, rule.LimitS.Duration()-age)).UTC()
		a.Lapses = &lapses
	}
	return a
}
