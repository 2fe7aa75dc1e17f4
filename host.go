package sandboxd

import "context"

// Host is a machine that runs sandboxes. It has two implementations under one
// suite (internal/host/hosttest): the embedded host, and the client over HTTP.
//
// A sandbox is named by id. An id that never was is ClassNotFound; one that was
// deleted is ClassGone. Methods are safe for concurrent use. Cancelling a
// context ends the wait, not the work already begun: a command, a start or a
// delete goes on.
type Host interface {
	// Open creates the sandbox of a key (created is true) or attaches to it. Of
	// two opens at once one creates. With Start not false it answers when the
	// environment runs. ClassCapacity, with the Ceiling, when none of the policy's leaves
	// room for it, and for a place nobody made room in WaitS; ClassInvalid, also when
	// the start failed for what the request names, and then nothing was created;
	// ClassNotFound with Attach; ClassUnavailable when it failed otherwise: the sandbox is
	// cold, with the ending kept. ClassConflict, with the field, when the sandbox of the
	// key is not as the request says; what the request leaves open is as the sandbox has it.
	Open(ctx context.Context, req OpenRequest) (sb Sandbox, created bool, err error)
	Get(ctx context.Context, id string) (Sandbox, error)
	// List answers every sandbox that is not deleted, oldest first; with key set,
	// that one or none.
	List(ctx context.Context, key string) ([]Sandbox, error)
	// Start brings a cold or stopped sandbox to running; running is no error.
	Start(ctx context.Context, id string) (Sandbox, error)
	// Stop ends the environment and keeps the files: in cold, or in stopped where the
	// root is writable and the driver keeps what was installed. Neither is an error.
	Stop(ctx context.Context, id string) (Sandbox, error)
	// Delete removes environment and files, from every state. It returns when the
	// delete is accepted and the place free; a second delete is ClassGone.
	Delete(ctx context.Context, id string) error

	// StartCommand starts a command in a running sandbox, starting a cold one
	// first. With an id already used in this sandbox and the same spec it answers
	// that command instead (started false); another spec is ClassConflict.
	StartCommand(ctx context.Context, id string, spec CommandSpec) (cmd Command, started bool, err error)
	GetCommand(ctx context.Context, id, command string) (Command, error)
	// ListCommands answers the commands that are kept, oldest first.
	ListCommands(ctx context.Context, id string) ([]Command, error)
	// FollowCommand reads output from an offset; ClassRange beyond the end.
	FollowCommand(ctx context.Context, id, command string, opts FollowOptions) (CommandStream, error)
	// WriteStdin sends data; eof closes stdin after it. ClassConflict when the
	// command has ended or its stdin is closed; ClassUnavailable when the command
	// did not take it in time, with nothing of data sent twice.
	WriteStdin(ctx context.Context, id, command string, data []byte, eof bool) error
	// SignalCommand sends a signal ("INT" or "SIGINT") to the command's leader's
	// process group.
	SignalCommand(ctx context.Context, id, command, signal string) error
	// StopCommand ends the whole tree: SIGTERM, after grace SIGKILL. It answers
	// the command with its ending; ended before is no error, and then what it left
	// behind is killed.
	StopCommand(ctx context.Context, id, command string, grace Seconds) (Command, error)
	// ResizeCommand sets the size of the command's terminal; ClassInvalid without one.
	ResizeCommand(ctx context.Context, id, command string, size TTY) error

	// DialPort connects to a TCP port of the sandbox's loopback, 127.0.0.1 first and
	// then ::1; ports of its own process 1 are not among them. It needs no network in
	// the sandbox. As StartCommand does, it starts a cold sandbox first. ctx bounds the
	// dial, not the connection. ClassUnavailable with Field "port" when nothing answers
	// there; ClassCapacity with too many connections open. A connection ends with its
	// environment and with the server that carries it.
	DialPort(ctx context.Context, id string, port uint16) (PortConn, error)
	// ListPorts lists what listens in the sandbox now. It starts nothing: without an
	// environment nothing listens. ClassUnsupported where a running environment is of
	// a version that cannot tell.
	ListPorts(ctx context.Context, id string) (PortList, error)

	// Files is the sandbox's workspace.
	Files(ctx context.Context, id string) (Files, error)
	// NetworkActivity is what the sandbox's proxy let through and refused since the
	// server started, which it says; empty for a sandbox without one.
	NetworkActivity(ctx context.Context, id string) (NetworkActivity, error)
	// Runtimes lists the catalogue.
	Runtimes(ctx context.Context) ([]Runtime, error)
}
