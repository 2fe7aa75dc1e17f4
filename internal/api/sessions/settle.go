package sessions

import (
	"context"
	"errors"

	"sandboxd"
)

// Settle closes what a process before this one was opening when it ended: a sandbox of
// this wire that is open and belongs to no session. Nobody was told of it and it would
// hold a place. Its files are kept, for nothing here says that there were none before. It
// is for before the first request.
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
		_, err := lifetimes.CloseSandbox(ctx, sb.ID)
		if class := sandboxd.ClassOf(err); err != nil && class != sandboxd.ClassGone && class != sandboxd.ClassNotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
