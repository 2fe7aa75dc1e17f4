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

const commandColumns = `sandbox_id, id, generation, started_at, started_boot, started_since, tty, shell, argv_json, spec_json, end_offset, intent, ending_json`

func scanCommand(from row) (sandboxd.CommandRecord, error) {
	var rec sandboxd.CommandRecord
	var started, since int64
	var argv, spec, ending string
	err := from.Scan(&rec.SandboxID, &rec.ID, &rec.Generation, &started, &rec.StartedBoot.ID, &since, &rec.TTY, &rec.Shell, &argv, &spec, &rec.Offset, &rec.Intent, &ending)
	if err != nil {
		return sandboxd.CommandRecord{}, err
	}
	rec.StartedAt, rec.StartedBoot.Since = fromMicros(started), time.Duration(since)*time.Microsecond
	return rec, errors.Join(decode(argv, &rec.Argv), decode(spec, &rec.Spec), decode(ending, &rec.Ending))
}

// CreateCommand implements sandboxd.HostStore. A sandbox that never was is
// ClassNotFound. It is on the path of every command and so one statement, which
// is its own transaction.
func (s *sqliteStore) CreateCommand(ctx context.Context, rec sandboxd.CommandRecord) (sandboxd.CommandRecord, bool, error) {
	none := sandboxd.CommandRecord{}
	var argv, ending string
	spec, err := encode(rec.Spec)
	if err == nil && len(rec.Argv) > 0 {
		argv, err = encode(rec.Argv)
	}
	if err == nil && rec.Ending != nil {
		ending, err = encode(rec.Ending)
	}
	if err != nil {
		return none, false, err
	}
	if ctx, err = begin(ctx); err != nil {
		return none, false, err
	}
	result, err := s.in.insertCommand.ExecContext(ctx, rec.SandboxID, rec.ID, rec.Generation, toMicros(rec.StartedAt),
		rec.StartedBoot.ID, rec.StartedBoot.Since.Microseconds(), rec.TTY, rec.Shell, argv, spec, rec.Offset, rec.Intent, ending)
	var coded *sqlite.Error
	if errors.As(err, &coded) && coded.Code() == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY {
		return none, false, errNoSandbox(rec.SandboxID)
	} else if err != nil {
		return none, false, failed(err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return none, false, failed(err)
	}
	if n == 0 {
		old, err := s.GetCommand(ctx, rec.SandboxID, rec.ID)
		return old, false, err
	}
	return normalCommand(rec), true, nil
}

// GetCommand implements sandboxd.HostStore.
func (s *sqliteStore) GetCommand(ctx context.Context, sandbox, command string) (sandboxd.CommandRecord, error) {
	ctx, err := begin(ctx)
	if err != nil {
		return sandboxd.CommandRecord{}, err
	}
	rec, err := scanCommand(s.in.getCommand.QueryRowContext(ctx, sandbox, command))
	if errors.Is(err, sql.ErrNoRows) {
		return sandboxd.CommandRecord{}, errNoCommand(command)
	} else if err != nil {
		return sandboxd.CommandRecord{}, failed(err)
	}
	return rec, nil
}

// ListCommands implements sandboxd.HostStore.
func (s *sqliteStore) ListCommands(ctx context.Context, sandbox string) ([]sandboxd.CommandRecord, error) {
	ctx, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.in.listCommands.QueryContext(ctx, sandbox)
	return all(rows, err, scanCommand)
}

// IntendCommand implements sandboxd.HostStore.
func (s *sqliteStore) IntendCommand(ctx context.Context, sandbox, command string, cause sandboxd.Cause) error {
	ctx, err := begin(ctx)
	if err != nil {
		return err
	}
	result, err := s.in.intendCommand.ExecContext(ctx, sandbox, command, cause)
	if err != nil {
		return failed(err)
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return err
	}
	_, err = s.GetCommand(ctx, sandbox, command) // which says whether there is one
	return err
}

// EndCommand implements sandboxd.HostStore.
func (s *sqliteStore) EndCommand(ctx context.Context, sandbox, command string, offset int64, ending sandboxd.Ending) (bool, error) {
	text, err := encode(ending)
	if err != nil {
		return false, err
	}
	if ctx, err = begin(ctx); err != nil {
		return false, err
	}
	result, err := s.in.endCommand.ExecContext(ctx, sandbox, command, offset, text)
	if err != nil {
		return false, failed(err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return false, failed(err)
	}
	if n == 0 {
		_, err := s.GetCommand(ctx, sandbox, command) // which says whether there is one
		return false, err
	}
	return true, nil
}

// DeleteCommands implements sandboxd.HostStore.
func (s *sqliteStore) DeleteCommands(ctx context.Context, sandbox string) error {
	ctx, err := begin(ctx)
	if err != nil {
		return err
	}
	if _, err := s.in.deleteCommands.ExecContext(ctx, sandbox); err != nil {
		return failed(err)
	}
	return nil
}
