package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"sandboxd"
)

// Store is everything that a host keeps in one place.
type Store interface {
	sandboxd.HostStore
	sandboxd.SessionStore
}

var (
	_ Store = (*sqliteStore)(nil)
	_ Store = (*memory)(nil)
)

const sessionColumns = `id, life, sandbox_id, runtime, tenant, created_at, last_activity, last_seq`

func scanSession(from row) (sandboxd.SessionRecord, error) {
	var rec sandboxd.SessionRecord
	var created, activity int64
	err := from.Scan(&rec.ID, &rec.Life, &rec.SandboxID, &rec.Runtime, &rec.Tenant, &created, &activity, &rec.LastSeq)
	rec.CreatedAt, rec.LastActivity = fromMicros(created), fromMicros(activity)
	return rec, err
}

// CreateSession implements sandboxd.SessionStore.
func (s *sqliteStore) CreateSession(ctx context.Context, rec sandboxd.SessionRecord) error {
	ctx, err := begin(ctx)
	if err != nil {
		return err
	}
	_, err = s.in.insertSession.ExecContext(ctx, rec.ID, rec.Life, rec.SandboxID, rec.Runtime, rec.Tenant,
		toMicros(rec.CreatedAt), toMicros(rec.LastActivity), rec.LastSeq)
	var coded *sqlite.Error
	if errors.As(err, &coded) && coded.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE {
		return errSessionOpen(rec.ID)
	} else if err != nil {
		return failed(err)
	}
	return nil
}

// GetSession implements sandboxd.SessionStore.
func (s *sqliteStore) GetSession(ctx context.Context, id string) (sandboxd.SessionRecord, error) {
	ctx, err := begin(ctx)
	if err != nil {
		return sandboxd.SessionRecord{}, err
	}
	rec, err := scanSession(s.in.getSession.QueryRowContext(ctx, id))
	if errors.Is(err, sql.ErrNoRows) {
		return sandboxd.SessionRecord{}, errNoSession(id)
	} else if err != nil {
		return sandboxd.SessionRecord{}, failed(err)
	}
	return rec, nil
}

// ListSessions implements sandboxd.SessionStore.
func (s *sqliteStore) ListSessions(ctx context.Context) ([]sandboxd.SessionRecord, error) {
	ctx, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.in.listSessions.QueryContext(ctx)
	return all(rows, err, scanSession)
}

// TouchSession implements sandboxd.SessionStore.
func (s *sqliteStore) TouchSession(ctx context.Context, life string, activity time.Time, seq int64) error {
	return s.change(ctx, s.in.touchSession, life, toMicros(activity), seq)
}

// DeleteSession implements sandboxd.SessionStore.
func (s *sqliteStore) DeleteSession(ctx context.Context, life string) error {
	return s.change(ctx, s.in.deleteSession, life)
}

// change runs a statement that may find nothing to change.
func (s *sqliteStore) change(ctx context.Context, stmt *sql.Stmt, args ...any) error {
	ctx, err := begin(ctx)
	if err != nil {
		return err
	}
	if _, err := stmt.ExecContext(ctx, args...); err != nil {
		return failed(err)
	}
	return nil
}

func (m *memory) CreateSession(ctx context.Context, rec sandboxd.SessionRecord) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for _, old := range m.sessions {
		if old.ID == rec.ID || old.Life == rec.Life {
			return errSessionOpen(rec.ID)
		}
	}
	rec.CreatedAt, rec.LastActivity = fromMicros(toMicros(rec.CreatedAt)), fromMicros(toMicros(rec.LastActivity))
	m.sessions = append(m.sessions, rec)
	return nil
}

func (m *memory) GetSession(ctx context.Context, id string) (sandboxd.SessionRecord, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return sandboxd.SessionRecord{}, err
	}
	defer leave()
	for _, rec := range m.sessions {
		if rec.ID == id {
			return rec, nil
		}
	}
	return sandboxd.SessionRecord{}, errNoSession(id)
}

func (m *memory) ListSessions(ctx context.Context) ([]sandboxd.SessionRecord, error) {
	leave, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return append([]sandboxd.SessionRecord{}, m.sessions...), nil
}

func (m *memory) TouchSession(ctx context.Context, life string, activity time.Time, seq int64) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for i := range m.sessions {
		if rec := &m.sessions[i]; rec.Life == life {
			rec.LastActivity = fromMicros(max(toMicros(rec.LastActivity), toMicros(activity)))
			rec.LastSeq = max(rec.LastSeq, seq)
		}
	}
	return nil
}

func (m *memory) DeleteSession(ctx context.Context, life string) error {
	leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for i, rec := range m.sessions {
		if rec.Life == life {
			m.sessions = append(m.sessions[:i:i], m.sessions[i+1:]...)
			break
		}
	}
	return nil
}

func errNoSession(id string) error {
	return sandboxd.Errorf(sandboxd.ClassNotFound, "no session %q", id)
}

func errSessionOpen(id string) error {
	return sandboxd.Errorf(sandboxd.ClassConflict, "the session %q is open", id)
}
