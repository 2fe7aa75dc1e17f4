package store

import (
	"encoding/json"
	"reflect"
	"time"

	"sandboxd"
)

// living says whether a record in this state holds its key. One that
// is being deleted holds only its uid, until its files are gone.
func living(s sandboxd.State) bool {
	return s != sandboxd.StateDeleting && s != sandboxd.StateDeleted
}

// checkNew says whether rec may be stored as a new record.
func checkNew(rec sandboxd.SandboxRecord) error {
	if rec.ID == "" || rec.Key == "" {
		return sandboxd.Errorf(sandboxd.ClassInternal, "a sandbox record needs an id and a key")
	}
	if rec.Root == "" || rec.Face == "" {
		return sandboxd.Errorf(sandboxd.ClassInternal, "a sandbox record needs a root and a face")
	}
	if !sandboxd.CanMove("", rec.State) {
		return sandboxd.Errorf(sandboxd.ClassConflict, "a sandbox cannot begin as %q", rec.State)
	}
	return nil
}

// checkChange says whether a record may become another.
func checkChange(was, is sandboxd.SandboxRecord) error {
	if is.ID != was.ID || is.Key != was.Key || is.UID != was.UID || toMicros(is.CreatedAt) != toMicros(was.CreatedAt) ||
		is.OCIRuntime != was.OCIRuntime || is.Root != was.Root || is.Tenant != was.Tenant || is.Face != was.Face || !reflect.DeepEqual(normal(is).Network, normal(was).Network) {
		return sandboxd.Errorf(sandboxd.ClassInternal, "id, key, uid, OCI runtime, root, tenant, face, network and time of creation of a sandbox never change")
	}
	if is.State != was.State && !sandboxd.CanMove(was.State, is.State) {
		return sandboxd.Errorf(sandboxd.ClassConflict, "a sandbox that is %s cannot become %s", was.State, is.State)
	}
	return nil
}

// normal gives rec the form in which it is kept: times in UTC with microseconds,
// and nothing instead of what is empty.
func normal(rec sandboxd.SandboxRecord) sandboxd.SandboxRecord {
	rec.CreatedAt = fromMicros(toMicros(rec.CreatedAt))
	if len(rec.Labels) == 0 {
		rec.Labels = nil
	}
	if len(rec.Env) == 0 {
		rec.Env = nil
	}
	if len(rec.Handle) == 0 {
		rec.Handle = nil
	}
	if len(rec.Life.Holds) == 0 {
		rec.Life.Holds = nil
	}
	rec.Life.Worked, rec.Life.Used, rec.Life.Ended = normalMoment(rec.Life.Worked), normalMoment(rec.Life.Used), normalMoment(rec.Life.Ended)
	holds := make([]sandboxd.HeldHold, 0, len(rec.Life.Holds))
	for _, h := range rec.Life.Holds {
		h.From = normalMoment(h.From)
		holds = append(holds, h)
	}
	if len(holds) > 0 {
		rec.Life.Holds = holds
	}
	for _, list := range []*[]string{&rec.Network.Allow, &rec.Network.Deny} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	return rec
}

func normalMoment(m sandboxd.Moment) sandboxd.Moment {
	m.Wall = fromMicros(toMicros(m.Wall))
	m.Boot.Since = m.Boot.Since.Truncate(time.Microsecond)
	return m
}

// normalCommand does for a command what normal does for a sandbox.
func normalCommand(rec sandboxd.CommandRecord) sandboxd.CommandRecord {
	rec.StartedAt = fromMicros(toMicros(rec.StartedAt))
	rec.StartedBoot.Since = rec.StartedBoot.Since.Truncate(time.Microsecond)
	if len(rec.Argv) == 0 {
		rec.Argv = nil
	}
	return rec
}

// toMicros is t as it is stored; no time is 0.
func toMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// encode is v as JSON text.
func encode(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", sandboxd.Wrap(sandboxd.ClassInternal, err, "cannot encode a record")
	}
	return string(text), nil
}

// decode is the inverse of encode; the empty text changes nothing.
func decode(text string, v any) error {
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return sandboxd.Wrap(sandboxd.ClassInternal, err, "a stored record is damaged")
	}
	return nil
}

func errNoSandbox(id string) error {
	return sandboxd.Errorf(sandboxd.ClassNotFound, "no sandbox %q", id)
}

func errNoCommand(id string) error {
	return sandboxd.Errorf(sandboxd.ClassNotFound, "no command %q in the sandbox", id)
}

func errIDUsed(id string) error {
	return sandboxd.Errorf(sandboxd.ClassConflict, "there has been a sandbox %s", id)
}

func errClosed() error { return sandboxd.Errorf(sandboxd.ClassUnavailable, "the store is closed") }

func errPoolEmpty(pool sandboxd.UIDPool) error {
	return sandboxd.Errorf(sandboxd.ClassCapacity, "every user id from %d to %d belongs to a sandbox", pool.First, pool.Last).
		WithHint("delete a sandbox that is no longer needed")
}
