package inside

import (
	"io"

	"sandboxd/internal/guest/wire"
)

// Spawner makes processes. The init's forks real ones; the fake driver's runs a
// table of built-in programs.
type Spawner interface {
	// Spawn starts a command. groups are files of cgroups, open, that the child
	// joins before it runs; Spawn owns and closes them, also when it fails. A
	// program that cannot be run is a *SpawnError.
	Spawn(spec wire.Start, groups []int) (Process, error)
}

// SpawnError is a start that failed for a reason of the caller's: Code is 126 or
// 127 as a shell has them.
type SpawnError struct {
	Code int
	Text string
}

func (e *SpawnError) Error() string { return e.Text }

// Process is one started command. Signal and Resize after the end are no error.
type Process interface {
	// Stdin is nil when the command has none. Closing it is the end of input; for
	// a terminal that is an end-of-file character.
	Stdin() io.WriteCloser
	// Outputs are read to their end, each by one goroutine. A terminal has one.
	// Close gives up on a reader that a background child holds open.
	Outputs() []Output
	// Signal reaches the leader's process group.
	Signal(sig int) error
	Resize(cols, rows uint16) error
	// Wait blocks until the leader ended.
	Wait() wire.Exit
}

// leader is a Process of which the number inside is known.
type leader interface{ Leader() int }

// Tree is the optional power of a Process to reach all that it started.
type Tree interface {
	// KillAll kills every process of the command that is known to be its, also when
	// its leader has ended, and returns when none is left or it gives up. It does
	// nothing where the host has a cgroup to end.
	KillAll()
}

// Output is one stream of a process; Tag is 1 for stdout (and a terminal), 2 for stderr.
type Output struct {
	Tag byte
	R   io.ReadCloser
}
