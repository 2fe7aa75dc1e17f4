package sandboxd

import (
	"context"
	"time"
)

// Policy is what a host lets sandboxes have and how long what nobody uses lasts. A
// nil number means: no bound; 0 is a bound. It is the host's: control and the faces
// show it in their own words.
type Policy struct {
	MaxRunning   *int `json:"max_running" doc:"Sandboxes that have an environment"`
	MaxOpen      *int `json:"max_open" doc:"Sandboxes that are not closed: with an environment, or put to sleep for room"`
	MaxPerTenant *int `json:"max_per_tenant" doc:"The same, of one tenant"`
	// EvictIdleAfterS lets an opening that finds no place put the longest idle one to
	// sleep, if it was idle for so long. Nil: the opening waits and is refused.
	EvictIdleAfterS *Seconds `json:"evict_idle_after_s"`

	IdleTimeoutS    *Seconds `json:"idle_timeout_s" doc:"A sandbox without work for so long is closed; its files stay"`
	WorkspaceTTLS   *Seconds `json:"workspace_ttl_s" doc:"Files that nobody used for so long are deleted"`
	EnvironmentTTLS *Seconds `json:"environment_ttl_s" doc:"A kept environment that is stopped for so long is removed; files stay"`

	CommandTimeoutS Seconds `json:"command_timeout_s" doc:"The most that a command of the sessions face may take"`
	MaxReadBytes    int64   `json:"max_read_bytes" doc:"The largest whole file that is put into JSON"`

	DefaultRuntime string                   `json:"default_runtime"`
	Limits         Limits                   `json:"limits" doc:"Of sandboxes whose runtime sets none"`
	Runtimes       map[string]RuntimeLimits `json:"runtimes" doc:"What was changed of catalogue entries, by name"`
}

// RuntimeLimits are changes of one catalogue entry's limits; nil leaves the entry's.
type RuntimeLimits struct {
	MemoryBytes *int64   `json:"memory_bytes,omitempty"`
	SwapBytes   *int64   `json:"swap_bytes,omitempty" doc:"Memory and swap together"`
	CPUs        *float64 `json:"cpus,omitempty"`
	CPUShares   *int64   `json:"cpu_shares,omitempty"`
	PIDs        *int64   `json:"pids,omitempty"`
}

// Clock says which rule ends a sandbox that nobody uses.
type Clock string

// The clocks: one governs each sandbox, by the face that opened it.
const (
	ClockIdle  Clock = "idle"  // without work
	ClockLease Clock = "lease" // without a request of its owner
	ClockNone  Clock = "none"
)

// Awake is why a sandbox is not closed yet.
type Awake struct {
	Clock   Clock      `json:"clock"`
	Reason  string     `json:"reason" doc:"What it does or did last: command, terminal, connection, hold, cpu, io, request, opened"`
	Detail  string     `json:"detail,omitempty" doc:"The numbers behind the reason"`
	Since   time.Time  `json:"since" doc:"When it last worked"`
	Lapses  *time.Time `json:"lapses,omitempty" doc:"When it is closed if nothing happens; absent: never"`
	Holding int        `json:"holding,omitempty" doc:"Holds in force"`
}

// Hold keeps a sandbox awake until it is released or lapses.
type Hold struct {
	ID      string    `json:"id"`
	Reason  string    `json:"reason,omitempty"`
	Expires time.Time `json:"expires"`
}

// SandboxUsage is what the processes of a sandbox use now. What the driver cannot tell is nil.
type SandboxUsage struct {
	MemoryBytes      *int64   `json:"memory_bytes" doc:"Without what the kernel can drop at once: inactive file pages"`
	MemoryLimitBytes *int64   `json:"memory_limit_bytes"`
	CPUSeconds       *float64 `json:"cpu_seconds"`
	PIDs             *int64   `json:"pids"`
}

// Lifetimes is what a host offers beside Host to callers that manage how long
// sandboxes last. Methods are safe for concurrent use; errors are Host's.
type Lifetimes interface {
	// Attach answers the sandbox of a key that exists. ClassNotFound.
	Attach(ctx context.Context, key string) (Sandbox, error)
	// Close ends the sandbox in cold, also where Stop keeps an environment that was
	// changed. Its files stay. Closing a cold one is no error.
	Close(ctx context.Context, id string) (Sandbox, error)
	// Awake says which clock governs the sandbox and what keeps it. It counts as no use.
	Awake(ctx context.Context, id string) (Awake, error)
	// Hold keeps it awake for so long; the same hold id again extends that hold.
	Hold(ctx context.Context, id string, hold Hold) (Hold, error)
	Release(ctx context.Context, id, hold string) error
	// Usage samples the sandbox; a cold one uses nothing. It counts as no use.
	Usage(ctx context.Context, id string) (SandboxUsage, error)

	Policy(ctx context.Context) (Policy, error)
	// ChangePolicy replaces the policy by what change makes of it, after it was checked
	// as a whole: ClassInvalid names the field and changes nothing. It is durable, and
	// holds for the next opening; cpu, memory and process limits of running sandboxes
	// change at once where the driver can.
	ChangePolicy(ctx context.Context, change func(*Policy) error) (Policy, error)
}
