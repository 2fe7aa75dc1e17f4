package host

import (
	"context"

	"sandboxd"
)

// keeps says whether an environment of the sandbox is kept when its processes end:
// what was installed in it is lost otherwise.
func (b *box) keeps(rec sandboxd.SandboxRecord) bool {
	_, able := b.driver.(sandboxd.Keeper)
	return able && rec.Root == sandboxd.RootWritable
}

// without is the state of a sandbox whose environment has no processes.
func without(kept bool) sandboxd.State {
	if kept {
		return sandboxd.StateStopped
	}
	return sandboxd.StateCold
}

// endProcesses ends what runs. It keeps the rest of the environment, if it is to and
// there is any, and else removes it.
func (b *box) endProcesses(ctx context.Context, keep bool) (kept bool, err error) {
	if keep {
		err := b.driver.(sandboxd.Keeper).Keep(ctx, b.id)
		if err == nil || sandboxd.ClassOf(err) != sandboxd.ClassGone {
			return err == nil, err
		}
	}
	return false, b.driver.Stop(ctx, b.id)
}

// discardKept removes the environment of a stopped sandbox, which is cold then.
func (b *box) discardKept(ctx context.Context) (sandboxd.SandboxRecord, error) {
	if err := b.driver.Stop(ctx, b.id); err != nil {
		return sandboxd.SandboxRecord{}, err
	}
	return b.update(ctx, func(r *sandboxd.SandboxRecord) error {
		if r.State == sandboxd.StateStopped {
			r.State = sandboxd.StateCold
		}
		return nil
	})
}
