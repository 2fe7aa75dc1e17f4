package sandboxd

import (
	"context"
	"time"
)

// SandboxRecord is what a host keeps of one id. Key, ID, UID, OCIRuntime, Root,
// Tenant, Face, Network and CreatedAt never change; Image does with a new generation.
type SandboxRecord struct {
	Sandbox
	UID    uint32            // owner of the files, from the pool, for the life of the id
	Env    map[string]string // environment of every command
	Handle Handle            // of the running environment
	Nonce  string            // secret of the link to the init of this generation
	Life   Life              // what its clocks count from
	Asked  Limits            // those that its request named; the others are the policy's
}

// Life is what a host keeps of how a sandbox is used.
type Life struct {
	Worked Moment     `json:"worked,omitzero"` // when it worked last, or was opened
	Reason string     `json:"reason,omitempty"`
	Detail string     `json:"detail,omitempty"`
	Used   Moment     `json:"used,omitzero"`  // when somebody used its files or its environment last
	Ended  Moment     `json:"ended,omitzero"` // when its last environment ended
	Holds  []HeldHold `json:"holds,omitempty"`
	// EnvLost says that the record was made anew from the files, which do not have the
	// sandbox's variables: it takes those of the next opening that names any.
	EnvLost bool `json:"env_lost,omitempty"`
}

// HeldHold is a hold as it is kept: for so long from a moment on.
type HeldHold struct {
	ID     string        `json:"id"`
	Reason string        `json:"reason,omitempty"`
	From   Moment        `json:"from"`
	For    time.Duration `json:"for"`
}

// Moment is a point in time as it is kept: what nobody sets counts, as long as the
// machine does not restart.
type Moment struct {
	Wall time.Time `json:"wall"`
	Boot BootTime  `json:"boot"`
}

// CommandRecord is what a host keeps of a command beside its journal.
type CommandRecord struct {
	Command
	Spec CommandSpec
	// StartedBoot is StartedAt by the clock that nobody sets: what counts from there.
	StartedBoot BootTime
	// Intent is what the host had decided to end it for, empty for nothing.
	Intent Cause
}

// BootTime is a time as so long after a boot of the machine, time asleep included;
// kept in microseconds. The zero value is of no boot.
type BootTime struct {
	ID    string        `json:"id"`
	Since time.Duration `json:"since"`
}

// HostStore is what a host knows durably: the authority for "one key, one
// sandbox" and for which uid belongs to whom. Its suite is
// internal/store/storetest. Every method is atomic and durable against kill -9
// of the process when it returns; methods are safe for concurrent use.
type HostStore interface {
	// Create stores a new record unless a living one has its key; then it answers
	// that one and created is false. It assigns UID from the pool [first,last]:
	// one that no record which is not deleted has. ClassCapacity when none
	// is free.
	Create(ctx context.Context, rec SandboxRecord, pool UIDPool) (SandboxRecord, bool, error)
	// Get answers any record, deleted ones too. ClassNotFound.
	Get(ctx context.Context, id string) (SandboxRecord, error)
	// ByKey answers the living record of a key. ClassNotFound.
	ByKey(ctx context.Context, key string) (SandboxRecord, error)
	// List answers every record that is not deleted, oldest first.
	List(ctx context.Context) ([]SandboxRecord, error)
	// Update changes a record inside one transaction. A change of State that
	// CanMove forbids is ClassConflict; an error of fn is returned as it is, and
	// nothing is stored.
	Update(ctx context.Context, id string, fn func(*SandboxRecord) error) (SandboxRecord, error)

	// CreateCommand stores a command unless its id exists in the sandbox; then it
	// answers that one and created is false.
	CreateCommand(ctx context.Context, rec CommandRecord) (CommandRecord, bool, error)
	GetCommand(ctx context.Context, sandbox, command string) (CommandRecord, error)
	ListCommands(ctx context.Context, sandbox string) ([]CommandRecord, error)
	// IntendCommand notes, before anything is done for it, what a command is to be
	// ended for. The first cause stands; after the ending nothing changes.
	// ClassNotFound.
	IntendCommand(ctx context.Context, sandbox, command string, cause Cause) error
	// EndCommand stores the ending and the final offset. The first one stands: for
	// a later one kept is false and nothing changes. ClassNotFound.
	EndCommand(ctx context.Context, sandbox, command string, offset int64, ending Ending) (kept bool, err error)
	// DeleteCommands forgets a sandbox's commands.
	DeleteCommands(ctx context.Context, sandbox string) error

	// Document answers what PutDocument stored last under a name; nil when nothing.
	Document(ctx context.Context, name string) ([]byte, error)
	// PutDocument stores a text under a name. An empty one is kept as nothing.
	PutDocument(ctx context.Context, name string, text []byte) error
	Close() error
}

// UIDPool is a range of user ids, both ends included, of which each sandbox gets one.
type UIDPool struct {
	First, Last uint32
	// Shared is of a server that has one id only, its own: every sandbox gets First.
	Shared bool
}
