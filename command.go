package sandboxd

import (
	"context"
	"time"
)

// WaitRule says when a command has ended.
type WaitRule string

const (
	// WaitLeader: when its first process exits and what it had written is read.
	WaitLeader WaitRule = "leader"
	// WaitPipes: when in addition every process that inherited its output closed it.
	WaitPipes WaitRule = "pipes"
)

// TTY asks for a terminal of a size. Output and errors are then one stream.
type TTY struct {
	Cols uint16 `json:"cols" minimum:"1" maximum:"10000"`
	Rows uint16 `json:"rows" minimum:"1" maximum:"10000"`
}

// CommandLimits narrow the sandbox's limits for one command. Zero means the
// sandbox's.
type CommandLimits struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty" minimum:"0"`
	CPUs        float64 `json:"cpus,omitempty" minimum:"0"`
	PIDs        int64   `json:"pids,omitempty" minimum:"0"`
}

// DefaultTimeout is the total time of a command that names none.
const DefaultTimeout = 300 * time.Second

// CommandSpec is one process tree to be started. Exactly one of Argv and Shell
// is set; Shell runs as `/bin/sh -c` with a login PATH.
type CommandSpec struct {
	ID               string            `json:"command_id,omitempty" doc:"Chosen by the caller; a second start of it attaches" maxLength:"64"`
	Argv             []string          `json:"argv,omitempty"`
	Shell            string            `json:"shell,omitempty"`
	Env              map[string]string `json:"env,omitempty"`
	Cwd              string            `json:"cwd,omitempty" doc:"Relative to the workspace, or absolute inside the sandbox"`
	Stdin            []byte            `json:"stdin,omitempty" doc:"Sent to the command, base64; then closed unless stdin_open"`
	StdinOpen        bool              `json:"stdin_open,omitempty" doc:"Keep stdin open for later writes"`
	TTY              *TTY              `json:"tty,omitempty"`
	TimeoutS         *Seconds          `json:"timeout_s,omitempty" doc:"Total time, default 300; 0 means none"`
	NoOutputTimeoutS Seconds           `json:"no_output_timeout_s,omitempty" doc:"Longest silence, default none" minimum:"0"`
	Wait             WaitRule          `json:"wait,omitempty" enum:"leader,pipes" doc:"When it has ended, default leader"`
	OutputLimit      int64             `json:"output_limit,omitempty" doc:"Bytes of output the journal keeps, default 64 MiB" minimum:"0"`
	Limits           CommandLimits     `json:"limits,omitzero"`
	Background       bool              `json:"background,omitempty"`
	OrphanAfterS     Seconds           `json:"orphan_after_s,omitempty" doc:"Ends a foreground command that nobody followed for so long; 0 means never" minimum:"0"`
}

// Timeout is the total time in force; 0 means none.
func (s CommandSpec) Timeout() time.Duration {
	if s.TimeoutS == nil {
		return DefaultTimeout
	}
	return s.TimeoutS.Duration()
}

// Command is what callers see of a started command.
type Command struct {
	ID         string    `json:"command_id"`
	SandboxID  string    `json:"sandbox_id"`
	Generation int64     `json:"generation"`
	Argv       []string  `json:"argv,omitempty"`
	Shell      string    `json:"shell,omitempty"`
	TTY        bool      `json:"tty,omitempty"`
	StartedAt  time.Time `json:"started_at"`
	Offset     int64     `json:"offset" doc:"Bytes of output so far"`
	Ending     *Ending   `json:"ending,omitempty" doc:"Absent while it runs"`
}

// Cause says why something ended.
type Cause string

const (
	CauseExit        Cause = "exit"           // the program ended by itself
	CauseSignal      Cause = "signal"         // by a signal that nobody here sent
	CauseTimeout     Cause = "timeout"        // total time
	CauseNoOutput    Cause = "no_output"      // silence
	CauseMemory      Cause = "out_of_memory"  // the kernel killed it, or V8 gave up
	CausePIDs        Cause = "process_limit"  // it could not fork and failed
	CauseDisk        Cause = "disk"           // no space for files or for the journal
	CauseStopped     Cause = "stopped"        // a caller asked
	CauseStartFailed Cause = "start_failed"   // it never ran
	CauseOrphaned    Cause = "orphaned"       // nobody followed it
	CauseEnvironment Cause = "environment"    // its sandbox ended under it
	CauseHostRestart Cause = "host_restart"   // the machine restarted
	CauseEngine      Cause = "engine_restart" // the container engine stopped or restarted
	CauseRemoved     Cause = "removed"        // somebody else removed its container
	CauseIdle        Cause = "idle"           // its clock ran out: nobody needed it
	CauseAsleep      Cause = "asleep"         // put to sleep to make room; the next command wakes it
	CauseEvicted     Cause = "evicted"        // the machine ran short of memory
	CauseUnknown     Cause = "unknown"        // nobody saw it; never a guess
)

// Causes lists every cause.
func Causes() []Cause {
	return []Cause{CauseExit, CauseSignal, CauseTimeout, CauseNoOutput, CauseMemory, CausePIDs, CauseDisk,
		CauseStopped, CauseStartFailed, CauseOrphaned, CauseEnvironment, CauseHostRestart, CauseEngine, CauseRemoved,
		CauseIdle, CauseAsleep, CauseEvicted, CauseUnknown}
}

// Ending says why and how a command or an environment ended.
type Ending struct {
	Cause      Cause     `json:"cause"`
	ExitCode   *int      `json:"exit_code" doc:"128+N for a signal, 124 for a timeout, 126 and 127 as a shell; null if unknown"`
	Signal     string    `json:"signal,omitempty" doc:"Name of the signal that ended it, as SIGKILL"`
	Limit      string    `json:"limit,omitempty" doc:"The limit that was hit, with its unit"`
	PeakBytes  int64     `json:"peak_bytes,omitempty" doc:"Peak memory; where HOME held too much, what it held"`
	PeakSource string    `json:"peak_source,omitempty" enum:"cgroup,rusage,home" doc:"cgroup: the whole tree; rusage: the largest process; home: files in HOME"`
	CPUS       Seconds   `json:"cpu_s"`
	WallS      Seconds   `json:"wall_s"`
	LeftBehind int       `json:"left_behind,omitempty" doc:"Processes of the command that still run"`
	Truncated  int64     `json:"truncated,omitempty" doc:"Bytes of output that are not kept"`
	Remedy     string    `json:"remedy,omitempty"`
	Message    string    `json:"message,omitempty"`
	At         time.Time `json:"at"`
}

// Stream names where output came from.
type Stream string

const (
	StreamStdout Stream = "stdout"
	StreamStderr Stream = "stderr"
)

// Gap is a range of offsets whose bytes are no longer kept.
type Gap struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Frame is one piece of a command's output: data, a gap, or the ending, which is
// last. Offset is that of Data's first byte in the one offset space that both
// streams share.
type Frame struct {
	Stream Stream
	Offset int64
	Data   []byte
	Gap    *Gap
	Ending *Ending
}

// FollowOptions say from where to read and whether to wait for more.
type FollowOptions struct {
	Offset int64
	Follow bool
}

// CommandStream reads a command's output in order. It is for one goroutine.
type CommandStream interface {
	// Next returns the next frame. The frame's data is valid until the next call.
	// After the ending, or at the end of what is there without Follow, it returns
	// io.EOF. A stream that breaks is ClassUnavailable: the command may still run.
	Next(ctx context.Context) (Frame, error)
	Close() error
}
