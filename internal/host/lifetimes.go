package host

import (
	"context"
	"slices"
	"sort"
	"time"

	"sandboxd"
)

var _ sandboxd.Lifetimes = (*Host)(nil)

// Attach implements sandboxd.Lifetimes.
func (h *Host) Attach(ctx context.Context, key string) (sandboxd.Sandbox, error) {
	if !sandboxd.ValidKey(key) {
		return sandboxd.Sandbox{}, sandboxd.Errorf(sandboxd.ClassNotFound, "no sandbox has this key")
	}
	no := false
	sb, _, err := h.Open(ctx, sandboxd.OpenRequest{Key: key, Start: &no, Attach: true})
	return sb, err
}

// CloseSandbox implements sandboxd.Lifetimes.
func (h *Host) CloseSandbox(ctx context.Context, id string) (sandboxd.Sandbox, error) {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.Sandbox{}, err
	}
	defer b.stopPreparing()()
	b.unqueue()
	rec, err := b.exclusive(ctx, func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		p := stopped("closed on request")
		p.close = true
		return b.endLocked(ctx, p)
	})
	return h.seen(rec), err
}

// Awake implements sandboxd.Lifetimes.
func (h *Host) Awake(ctx context.Context, id string) (sandboxd.Awake, error) {
	rec, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.Awake{}, err
	}
	policy := h.policy.Now()
	clock := clockOf(policy, rec.Sandbox)
	if rec.Open {
		return b.awake(policy, clock), nil
	}
	return h.closedSince(rec, clock), nil
}

// Renew implements sandboxd.Lifetimes.
func (h *Host) Renew(ctx context.Context, id string) error {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return err
	}
	if !b.pulse.leased() {
		return sandboxd.Errorf(sandboxd.ClassConflict, "this sandbox has no owner's lease: it is closed by what it does").WithHint("a hold keeps it awake")
	}
	b.work(reasonRequest, "a request of its owner")
	return nil
}

// maxReason bounds what is said of a hold.
const maxReason = 200

// Hold implements sandboxd.Lifetimes.
func (h *Host) Hold(ctx context.Context, id string, hold sandboxd.Hold) (sandboxd.Hold, error) {
	if hold.ID == "" {
		hold.ID = sandboxd.NewID()
	}
	now := h.clock()
	lasts := hold.ForS.Duration().Round(time.Millisecond)
	switch {
	case !sandboxd.ValidKey(hold.ID):
		return hold, sandboxd.Invalid("id", "must be 1 to 64 of A-Z a-z 0-9 . _ - and not begin with '-'")
	case len(hold.Reason) > maxReason || hasControl(hold.Reason):
		return hold, sandboxd.Invalid("reason", "must have at most %d printable bytes", maxReason)
	case !(hold.ForS > 0 && hold.ForS <= sandboxd.InSeconds(sandboxd.MaxHold)):
		return hold, sandboxd.Invalid("for_s", "must be above 0 and at most %v", sandboxd.MaxHold.Seconds())
	}
	hold.Expires = now.Wall.Add(lasts).UTC()
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return hold, err
	}
	_, err = b.exclusive(ctx, func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		return b.update(ctx, func(r *sandboxd.SandboxRecord) error {
			if !r.Open {
				return sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox is closed: there is nothing to hold").WithHint("start it first")
			}
			kept := slices.DeleteFunc(slices.Clone(r.Life.Holds), func(old sandboxd.HeldHold) bool {
				return old.ID == hold.ID || leftOf(old, now) <= 0
			})
			if len(kept) >= sandboxd.MaxHolds {
				return sandboxd.Errorf(sandboxd.ClassCapacity, "the sandbox has %d holds already", len(kept)).WithHint("release one of them")
			}
			r.Life.Holds = append(kept, sandboxd.HeldHold{ID: hold.ID, Reason: hold.Reason, From: now, For: lasts})
			return nil
		})
	})
	if err == nil {
		b.work(reasonHold, "hold "+hold.ID)
	}
	return hold, err
}

// Holds implements sandboxd.Lifetimes.
func (h *Host) Holds(ctx context.Context, id string) ([]sandboxd.Hold, error) {
	rec, err := h.record(ctx, id)
	if err != nil {
		return nil, err
	}
	now := h.clock()
	holds := []sandboxd.Hold{}
	for _, held := range rec.Life.Holds {
		if left := leftOf(held, now); left > 0 {
			holds = append(holds, sandboxd.Hold{ID: held.ID, Reason: held.Reason, ForS: sandboxd.InSeconds(left), Expires: now.Wall.Add(left).UTC()})
		}
	}
	sort.Slice(holds, func(i, j int) bool { return holds[i].ForS < holds[j].ForS })
	return holds, nil
}

// Release implements sandboxd.Lifetimes.
func (h *Host) Release(ctx context.Context, id, hold string) error {
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return err
	}
	b.look(ctx) // it worked until now
	_, err = b.exclusive(ctx, func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		return b.update(ctx, func(r *sandboxd.SandboxRecord) error {
			r.Life.Holds = slices.DeleteFunc(slices.Clone(r.Life.Holds), func(old sandboxd.HeldHold) bool { return old.ID == hold })
			return nil
		})
	})
	return err
}

// Usage implements sandboxd.Lifetimes.
func (h *Host) Usage(ctx context.Context, id string) (sandboxd.SandboxUsage, error) {
	rec, b, err := h.lookup(ctx, id)
	if err != nil {
		return sandboxd.SandboxUsage{}, err
	}
	sampler, ok := b.driver.(sandboxd.Sampler)
	none := sandboxd.SandboxUsage{MemoryBytes: new(int64), MemoryLimitBytes: &rec.Limits.MemoryBytes, CPUSeconds: new(float64), PIDs: new(int64)}
	switch env := b.environment(); {
	case env == nil:
		return none, nil
	case !ok:
		return sandboxd.SandboxUsage{MemoryLimitBytes: &rec.Limits.MemoryBytes}, nil
	}
	s, err := sampler.Sample(ctx, id)
	if sandboxd.ClassOf(err) == sandboxd.ClassGone && err != nil {
		return none, nil
	}
	if err != nil {
		return sandboxd.SandboxUsage{}, err
	}
	cpu := s.CPU.Seconds()
	if s.MemoryLimit == nil {
		s.MemoryLimit = &rec.Limits.MemoryBytes
	}
	return sandboxd.SandboxUsage{MemoryBytes: s.MemoryBytes, MemoryLimitBytes: s.MemoryLimit, CPUSeconds: &cpu, PIDs: s.PIDs}, nil
}

// Policy implements sandboxd.Lifetimes.
func (h *Host) Policy(context.Context) (sandboxd.Policy, error) { return h.policy.Now(), nil }

// ChangePolicy implements sandboxd.Lifetimes.
func (h *Host) ChangePolicy(ctx context.Context, change func(*sandboxd.Policy) error) (sandboxd.Policy, error) {
	p, err := h.policy.Change(ctx, change)
	if err == nil {
		h.obey()
	}
	return p, err
}
