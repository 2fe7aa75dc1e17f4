package host

import (
	"context"
	"maps"
	"slices"

	"sandboxd"
)

var _ sandboxd.Variables = (*Host)(nil)

// SetVariables implements sandboxd.Variables.
func (h *Host) SetVariables(ctx context.Context, id string, env map[string]string) error {
	if err := checkEnv(env); err != nil {
		return err
	}
	_, b, err := h.lookup(ctx, id)
	if err != nil {
		return err
	}
	_, err = b.exclusive(ctx, func(ctx context.Context) (sandboxd.SandboxRecord, error) {
		rec, err := b.update(ctx, func(r *sandboxd.SandboxRecord) error {
			r.Env, r.Life.EnvLost = maps.Clone(env), false
			return nil
		})
		if running := b.environment(); err == nil && running != nil {
			vars := h.varsOf(rec)
			running.vars.Store(&vars)
		}
		return rec, err
	})
	return err
}

// VariableNames implements sandboxd.Variables.
func (h *Host) VariableNames(ctx context.Context, id string) ([]string, error) {
	rec, err := h.record(ctx, id)
	if err != nil {
		return nil, err
	}
	return append([]string{}, slices.Sorted(maps.Keys(rec.Env))...), nil
}
