package sessions

import (
	"context"
	"errors"

	"sandboxd"
)

// Settle ends what a process before this one was opening when it ended: a sandbox of this
// wire that is open and belongs to no session. Nobody was told of it and it would hold a
// place. One that never had an environment has nothing in it and is deleted; of another
// the files were there before. It is for before the first request.
func Settle(ctx context.Context, host sandboxd.Host, lifetimes sandboxd.Lifetimes, records sandboxd.SessionStore) error {
	sessions, err := records.ListSessions(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, rec := range sessions {
		known[rec.SandboxID] = true
	}
	list, err := host.List(ctx, "")
	if err != nil {
		return err
	}
	var errs []error
	for _, sb := range list {
		if sb.Face != sandboxd.FaceSessions || !sb.Open || known[sb.ID] {
			continue
		}
		if sb.Generation == 0 {
			err = host.Delete(ctx, sb.ID)
		} else {
			_, err = lifetimes.CloseSandbox(ctx, sb.ID)
		}
		if class := sandboxd.ClassOf(err); err != nil && class != sandboxd.ClassGone && class != sandboxd.ClassNotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
