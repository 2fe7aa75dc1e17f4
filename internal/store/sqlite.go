package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"sandboxd"
)

//go:embed migrations
var migrations embed.FS

// readers is how many reads run beside each other and beside the one writer.
const readers = 4

// sqliteStore keeps everything in one file with a write-ahead log. A commit is a
// write(2): it survives the process, and a power cut may take the newest ones.
//
// No statement is cancelled once it began, because a cancelled commit would leave
// the caller not knowing; each takes microseconds.
type sqliteStore struct {
	writer, reader *sql.DB
	in             statements
	nextUID        atomic.Uint32 // where the search for a free uid begins
}

// statements are prepared once: parsing would cost more than running them.
type statements struct {
	insertSandbox, updateSandbox, forUpdate           *sql.Stmt // on writer
	livingForKey, knownID, uidUsed                    *sql.Stmt // on writer
	insertCommand, intendCommand                      *sql.Stmt // on writer
	endCommand, deleteCommands, putDocument           *sql.Stmt // on writer
	document                                          *sql.Stmt // on reader
	getSandbox, byKey, list, getCommand, listCommands *sql.Stmt // on reader
	insertSession, touchSession, deleteSession        *sql.Stmt // on writer
	getSession, listSessions                          *sql.Stmt // on reader
}

// OpenSQLite opens or makes the database at path, of mode 0600, and brings its
// schema up to date. A database of a newer sandboxd is ClassUnsupported and left
// as it is. One process at a time may have it open; the caller sees to that.
func OpenSQLite(ctx context.Context, path string) (Store, error) {
	// SQLite gives the log and the index the mode of the database.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "cannot open the database")
	}
	f.Close()
	s := &sqliteStore{}
	if err := s.open(ctx, path); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *sqliteStore) open(ctx context.Context, path string) (err error) {
	if s.writer, err = connect(path, "_txlock=immediate"); err != nil {
		return err
	}
	s.writer.SetMaxOpenConns(1)
	if err := migrate(ctx, s.writer); err != nil {
		return err
	}
	if s.reader, err = connect(path, "_pragma=query_only(1)"); err != nil {
		return err
	}
	s.reader.SetMaxOpenConns(readers)
	s.reader.SetMaxIdleConns(readers)
	if err := s.prepare(ctx); err != nil {
		return failed(err)
	}
	var highest sql.NullInt64
	err = s.writer.QueryRowContext(ctx, `select max(uid) from sandboxes where state <> 'deleted'`).Scan(&highest)
	if err != nil {
		return failed(err)
	}
	s.nextUID.Store(uint32(highest.Int64 + 1))
	return nil
}

// connect makes a pool. busy_timeout comes first, because the pragmas after it
// may have to wait. secure_delete, because what a command was given may be secret
// and is to be gone when its record is.
func connect(path, more string) (*sql.DB, error) {
	name := (&url.URL{Scheme: "file", Path: path}).String() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)&_pragma=secure_delete(1)&" + more
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, failed(err)
	}
	return db, nil
}

func migrate(ctx context.Context, db *sql.DB) error {
	dir, err := fs.Sub(migrations, "migrations/sqlite")
	if err != nil {
		return failed(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, dir)
	if err != nil {
		return failed(err)
	}
	have, known, err := p.GetVersions(ctx)
	if err != nil {
		return failed(err)
	}
	if have > known {
		return sandboxd.Errorf(sandboxd.ClassUnsupported,
			"the database has schema version %d and this sandboxd knows versions up to %d", have, known).
			WithHint("run the newer sandboxd that wrote it, or restore the backup made before the upgrade")
	}
	if have == known {
		return nil
	}
	if _, err := p.Up(ctx); err != nil {
		return failed(err)
	}
	return nil
}

func (s *sqliteStore) prepare(ctx context.Context) error {
	for _, p := range []struct {
		into *(*sql.Stmt)
		db   *sql.DB
		text string
	}{
		{&s.in.insertSandbox, s.writer, `insert into sandboxes (` + sandboxColumns + `)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)`},
		{&s.in.updateSandbox, s.writer, `update sandboxes set state = $2, generation = $3, driver = $4, runtime = $5,
			nonce = $6, handle = $7, limits_json = $8, labels_json = $9, env_json = $10, ending_json = $11, image = $12,
			open = $13, asleep = $14, life_json = $15 where id = $1`},
		{&s.in.forUpdate, s.writer, `select ` + sandboxColumns + ` from sandboxes where id = $1`},
		{&s.in.livingForKey, s.writer, `select ` + sandboxColumns + ` from sandboxes
			where key = $1 and state not in ('deleting', 'deleted')`},
		{&s.in.knownID, s.writer, `select 1 from sandboxes where id = $1`},
		{&s.in.uidUsed, s.writer, `select 1 from sandboxes where uid = $1 and state <> 'deleted'`},
		{&s.in.insertCommand, s.writer, `insert into commands (` + commandColumns + `)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) on conflict (sandbox_id, id) do nothing`},
		{&s.in.intendCommand, s.writer, `update commands set intent = $3
			where sandbox_id = $1 and id = $2 and intent = '' and ending_json = ''`},
		{&s.in.endCommand, s.writer, `update commands set end_offset = $3, ending_json = $4
			where sandbox_id = $1 and id = $2 and ending_json = ''`},
		{&s.in.deleteCommands, s.writer, `delete from commands where sandbox_id = $1`},
		{&s.in.putDocument, s.writer, `insert into documents (name, body) values ($1, $2)
			on conflict (name) do update set body = excluded.body`},
		{&s.in.document, s.reader, `select body from documents where name = $1`},
		{&s.in.getSandbox, s.reader, `select ` + sandboxColumns + ` from sandboxes where id = $1`},
		{&s.in.byKey, s.reader, `select ` + sandboxColumns + ` from sandboxes
			where key = $1 and state not in ('deleting', 'deleted')`},
		{&s.in.list, s.reader, `select ` + sandboxColumns + ` from sandboxes where state <> 'deleted' order by seq`},
		{&s.in.getCommand, s.reader, `select ` + commandColumns + ` from commands where sandbox_id = $1 and id = $2`},
		{&s.in.insertSession, s.writer, `insert into sessions (` + sessionColumns + `) values ($1, $2, $3, $4, $5, $6, $7, $8)`},
		{&s.in.touchSession, s.writer, `update sessions set last_activity = max(last_activity, $2), last_seq = max(last_seq, $3) where life = $1`},
		{&s.in.deleteSession, s.writer, `delete from sessions where life = $1`},
		{&s.in.getSession, s.reader, `select ` + sessionColumns + ` from sessions where id = $1`},
		{&s.in.listSessions, s.reader, `select ` + sessionColumns + ` from sessions order by seq`},
		{&s.in.listCommands, s.reader, `select ` + commandColumns + ` from commands where sandbox_id = $1 order by seq`},
	} {
		stmt, err := p.db.PrepareContext(ctx, p.text)
		if err != nil {
			return err
		}
		*p.into = stmt
	}
	return nil
}

// begin checks what every method checks, and gives a context that ends no
// statement halfway.
func begin(ctx context.Context) (context.Context, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return context.WithoutCancel(ctx), nil
}

// Close implements sandboxd.HostStore.
func (s *sqliteStore) Close() error {
	var errs []error
	// The writer is last, so that it folds the log into the database.
	for _, db := range []*sql.DB{s.reader, s.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return failed(err)
	}
	return nil
}

// failed gives an error of the database its class.
func failed(err error) error {
	class := sandboxd.ClassInternal
	var coded *sqlite.Error
	switch {
	case errors.As(err, &coded):
		switch coded.Code() & 0xff {
		case sqlite3.SQLITE_FULL:
			class = sandboxd.ClassNoSpace
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			class = sandboxd.ClassUnavailable
		}
	case errors.Is(err, sql.ErrConnDone), strings.Contains(err.Error(), "database is closed"):
		// database/sql has no value for a closed pool, only this text.
		class = sandboxd.ClassUnavailable
	}
	return sandboxd.Wrap(class, err, "the database failed")
}
