package store

import (
	"context"
	"database/sql"
	"errors"
	"reflect"

	"sandboxd"
)

const sandboxColumns = `id, key, state, generation, driver, runtime, uid, created_at,
	nonce, handle, limits_json, labels_json, env_json, ending_json, image, oci_runtime, network_json,
	root, tenant, face, open, asleep, life_json, asked_json`

// row is what *sql.Row and *sql.Rows have in common.
type row interface{ Scan(dest ...any) error }

func scanSandbox(from row) (sandboxd.SandboxRecord, error) {
	var rec sandboxd.SandboxRecord
	var created int64
	var handle []byte
	var limits, labels, env, ending, network, life, asked string
	err := from.Scan(&rec.ID, &rec.Key, &rec.State, &rec.Generation, &rec.Driver, &rec.Runtime, &rec.UID, &created,
		&rec.Nonce, &handle, &limits, &labels, &env, &ending, &rec.Image, &rec.OCIRuntime, &network,
		&rec.Root, &rec.Tenant, &rec.Face, &rec.Open, &rec.Asleep, &life, &asked)
	if err != nil {
		return sandboxd.SandboxRecord{}, err
	}
	rec.CreatedAt = fromMicros(created)
	if len(handle) > 0 {
		rec.Handle = handle
	}
	err = errors.Join(decode(limits, &rec.Limits), decode(labels, &rec.Labels), decode(env, &rec.Env), decode(ending, &rec.LastEnding),
		decode(network, &rec.Network), decode(life, &rec.Life), decode(asked, &rec.Asked))
	return rec, err
}

// encoded are the columns of a record that are JSON; what is empty is no text.
func encoded(rec sandboxd.SandboxRecord) (limits, labels, env, ending, life string, err error) {
	var errs [5]error
	if !reflect.ValueOf(rec.Life).IsZero() {
		life, errs[4] = encode(rec.Life)
	}
	limits, errs[0] = encode(rec.Limits)
	if len(rec.Labels) > 0 {
		labels, errs[1] = encode(rec.Labels)
	}
	if len(rec.Env) > 0 {
		env, errs[2] = encode(rec.Env)
	}
	if rec.LastEnding != nil {
		ending, errs[3] = encode(rec.LastEnding)
	}
	return limits, labels, env, ending, life, errors.Join(errs[:]...)
}

// blob is b for a column that is never null.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Create implements sandboxd.HostStore.
func (s *sqliteStore) Create(ctx context.Context, rec sandboxd.SandboxRecord, pool sandboxd.UIDPool) (sandboxd.SandboxRecord, bool, error) {
	none := sandboxd.SandboxRecord{}
	if err := checkNew(rec); err != nil {
		return none, false, err
	}
	rec = normal(rec)
	limits, labels, env, ending, life, err := encoded(rec)
	if err != nil {
		return none, false, err
	}
	network, err := encode(rec.Network)
	if err != nil {
		return none, false, err
	}
	asked := ""
	if rec.Asked != (sandboxd.Limits{}) {
		if asked, err = encode(rec.Asked); err != nil {
			return none, false, err
		}
	}
	var old *sandboxd.SandboxRecord
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		found, err := scanSandbox(tx.StmtContext(ctx, s.in.livingForKey).QueryRowContext(ctx, rec.Key))
		if err == nil {
			old = &found
			return nil
		} else if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if yes, err := exists(ctx, tx, s.in.knownID, rec.ID); err != nil {
			return err
		} else if yes {
			return errIDUsed(rec.ID)
		}
		if rec.UID, err = s.freeUID(ctx, tx, pool); err != nil {
			return err
		}
		_, err = tx.StmtContext(ctx, s.in.insertSandbox).ExecContext(ctx, rec.ID, rec.Key, rec.State, rec.Generation, rec.Driver,
			rec.Runtime, rec.UID, toMicros(rec.CreatedAt), rec.Nonce, blob(rec.Handle), limits, labels, env, ending,
			rec.Image, rec.OCIRuntime, network, rec.Root, rec.Tenant, rec.Face, rec.Open, rec.Asleep, life, asked)
		return err
	})
	if err != nil {
		return none, false, err
	}
	if old != nil {
		return *old, false, nil
	}
	s.nextUID.Store(rec.UID + 1)
	return normal(rec), true, nil
}

// transact runs fn in one write transaction. Errors without a class are the
// database's.
func (s *sqliteStore) transact(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	ctx, err := begin(ctx)
	if err != nil {
		return err
	}
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return failed(err)
	}
	// After a commit this does nothing; after a panic of fn it frees the writer.
	defer tx.Rollback()
	if err := fn(ctx, tx); err != nil {
		var classed *sandboxd.Error
		var callers callerError
		switch {
		case errors.As(err, &callers):
			return callers.error
		case errors.As(err, &classed):
			return err
		}
		return failed(err)
	}
	if err := tx.Commit(); err != nil {
		return failed(err)
	}
	return nil
}

// callerError is an error of a caller's function, to be returned as it is.
type callerError struct{ error }

func exists(ctx context.Context, tx *sql.Tx, stmt *sql.Stmt, arg any) (bool, error) {
	var one int
	err := tx.StmtContext(ctx, stmt).QueryRowContext(ctx, arg).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// freeUID finds a uid without an owner. It begins behind the one given last, so
// that a uid rests as long as possible before it gets a new owner, and searches
// the table when the neighbours are taken.
func (s *sqliteStore) freeUID(ctx context.Context, tx *sql.Tx, pool sandboxd.UIDPool) (uint32, error) {
	if pool.Shared {
		return pool.First, nil
	}
	const guesses = 4
	uid := s.nextUID.Load()
	for range guesses {
		if uid < pool.First || uid > pool.Last {
			uid = pool.First
		}
		if taken, err := exists(ctx, tx, s.in.uidUsed, uid); err != nil {
			return 0, err
		} else if !taken && pool.First <= pool.Last {
			return uid, nil
		}
		uid++
	}
	// The first of the pool, or the first behind an owned one, that has no owner.
	var free sql.NullInt64
	err := tx.QueryRowContext(ctx, `select min(uid) from (
			select $1 as uid union all
			select uid + 1 from sandboxes where state <> 'deleted' and uid >= $1 and uid < $2) as candidate
		where uid <= $2 and not exists (
			select 1 from sandboxes as owner where owner.uid = candidate.uid and owner.state <> 'deleted')`,
		pool.First, pool.Last).Scan(&free)
	if err != nil {
		return 0, err
	}
	if !free.Valid {
		return 0, errPoolEmpty(pool)
	}
	return uint32(free.Int64), nil
}

// Get implements sandboxd.HostStore.
func (s *sqliteStore) Get(ctx context.Context, id string) (sandboxd.SandboxRecord, error) {
	return s.one(ctx, s.in.getSandbox, id)
}

// ByKey implements sandboxd.HostStore.
func (s *sqliteStore) ByKey(ctx context.Context, key string) (sandboxd.SandboxRecord, error) {
	return s.one(ctx, s.in.byKey, key)
}

func (s *sqliteStore) one(ctx context.Context, stmt *sql.Stmt, name string) (sandboxd.SandboxRecord, error) {
	ctx, err := begin(ctx)
	if err != nil {
		return sandboxd.SandboxRecord{}, err
	}
	rec, err := scanSandbox(stmt.QueryRowContext(ctx, name))
	if errors.Is(err, sql.ErrNoRows) {
		return sandboxd.SandboxRecord{}, errNoSandbox(name)
	} else if err != nil {
		return sandboxd.SandboxRecord{}, failed(err)
	}
	return rec, nil
}

// List implements sandboxd.HostStore.
func (s *sqliteStore) List(ctx context.Context) ([]sandboxd.SandboxRecord, error) {
	ctx, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.in.list.QueryContext(ctx)
	return all(rows, err, scanSandbox)
}

// all scans every row of what a query answered; without an error it is never nil.
func all[T any](rows *sql.Rows, err error, scan func(row) (T, error)) ([]T, error) {
	if err != nil {
		return nil, failed(err)
	}
	defer rows.Close()
	list := []T{}
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, failed(err)
		}
		list = append(list, one)
	}
	if err := rows.Err(); err != nil {
		return nil, failed(err)
	}
	return list, nil
}

// Update implements sandboxd.HostStore. fn must not call the store: it holds the
// only writer.
func (s *sqliteStore) Update(ctx context.Context, id string, fn func(*sandboxd.SandboxRecord) error) (sandboxd.SandboxRecord, error) {
	var rec sandboxd.SandboxRecord
	err := s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		was, err := scanSandbox(tx.StmtContext(ctx, s.in.forUpdate).QueryRowContext(ctx, id))
		if errors.Is(err, sql.ErrNoRows) {
			return errNoSandbox(id)
		} else if err != nil {
			return err
		}
		rec = was
		if err := fn(&rec); err != nil {
			return callerError{err}
		}
		if err := checkChange(was, rec); err != nil {
			return err
		}
		rec = normal(rec)
		limits, labels, env, ending, life, err := encoded(rec)
		if err != nil {
			return err
		}
		_, err = tx.StmtContext(ctx, s.in.updateSandbox).ExecContext(ctx, id, rec.State, rec.Generation, rec.Driver, rec.Runtime,
			rec.Nonce, blob(rec.Handle), limits, labels, env, ending, rec.Image, rec.Open, rec.Asleep, life)
		return err
	})
	if err != nil {
		return sandboxd.SandboxRecord{}, err
	}
	return normal(rec), nil
}
