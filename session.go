package sandboxd

import (
	"context"
	"time"
)

// SessionRecord is what the sessions face keeps of a session, from its opening until
// it is closed. The sandbox behind it outlasts it: closing keeps the files.
type SessionRecord struct {
	ID        string // what its caller calls it; the key of the sandbox
	Life      string // of this opening, never reused; the session's token is derived from it
	SandboxID string
	Runtime   string
	Tenant    string // "" when its caller named none

	CreatedAt    time.Time
	LastActivity time.Time
	LastSeq      int64 // of the newest event of its activity
}

// SessionStore is what the sessions face knows durably. Its suite is
// internal/store/storetest. Every method is atomic and durable against kill -9 of the
// process when it returns; methods are safe for concurrent use.
type SessionStore interface {
	// CreateSession stores a new record. ClassConflict when its id has one.
	CreateSession(ctx context.Context, rec SessionRecord) error
	// GetSession answers the record of an id. ClassNotFound.
	GetSession(ctx context.Context, id string) (SessionRecord, error)
	// ListSessions answers every record, oldest first.
	ListSessions(ctx context.Context) ([]SessionRecord, error)
	// TouchSession moves LastActivity and LastSeq of a life forward, never back. A
	// life that is over is no error.
	TouchSession(ctx context.Context, life string, activity time.Time, seq int64) error
	// DeleteSession forgets a life. One that is over is no error.
	DeleteSession(ctx context.Context, life string) error
}
