package store

import (
	"context"
	"database/sql"
	"errors"
)

// Document implements sandboxd.HostStore.
func (s *sqliteStore) Document(ctx context.Context, name string) ([]byte, error) {
	ctx, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	var body []byte
	err = s.in.document.QueryRowContext(ctx, name).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) || err == nil && len(body) == 0 {
		return nil, nil
	} else if err != nil {
		return nil, failed(err)
	}
	return body, nil
}

// PutDocument implements sandboxd.HostStore.
func (s *sqliteStore) PutDocument(ctx context.Context, name string, text []byte) error {
	return s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.StmtContext(ctx, s.in.putDocument).ExecContext(ctx, name, blob(text))
		return err
	})
}
