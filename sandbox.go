package sandboxd

import (
	"crypto/rand"
	"time"
)

// Seconds is a duration on the wire.
type Seconds float64

// Duration converts; the zero value is 0.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// InSeconds converts a duration for the wire.
func InSeconds(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// State is where a sandbox stands. Transitions lists the moves between states.
type State string

// The states that exist so far. cold: files, no environment. preparing: it waits for
// the image of its runtime. stopped: an environment without processes, kept for what
// was installed in it. lost: the record says there was an environment or files and the
// host finds neither.
const (
	StateCold      State = "cold"
	StatePreparing State = "preparing"
	StateStarting  State = "starting"
	StateRunning   State = "running"
	StateStopping  State = "stopping"
	StateStopped   State = "stopped"
	StateLost      State = "lost"
	StateDeleting  State = "deleting"
	StateDeleted   State = "deleted"
)

// States lists every state, for tests that must reach each.
func States() []State {
	return []State{StateCold, StatePreparing, StateStarting, StateRunning, StateStopping, StateStopped, StateLost, StateDeleting, StateDeleted}
}

var transitions = map[State][]State{
	"":             {StateCold},
	StateCold:      {StatePreparing, StateStarting, StateDeleting, StateLost},
	StatePreparing: {StateStarting, StateCold, StateDeleting},
	StateStarting:  {StateRunning, StateCold, StateStopped, StateDeleting},
	StateRunning:   {StateStopping, StateCold, StateStopped, StateDeleting},
	StateStopping:  {StateCold, StateStopped, StateDeleting},
	StateStopped:   {StateStarting, StateCold, StateDeleting, StateLost},
	StateLost:      {StateDeleting},
	StateDeleting:  {StateDeleted},
	StateDeleted:   {},
}

// CanMove says whether the table of transitions allows from -> to. A record is
// created with from == "".
func CanMove(from, to State) bool {
	for _, s := range transitions[from] {
		if s == to {
			return true
		}
	}
	return false
}

// HasEnvironment says whether a sandbox in this state may have processes.
func (s State) HasEnvironment() bool {
	return s == StateStarting || s == StateRunning || s == StateStopping
}

// Limits bound one sandbox. In a request a zero field means the default; in a
// Sandbox every field is what is in force.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty" doc:"Memory of all processes together, in bytes" minimum:"0"`
	SwapBytes   int64   `json:"swap_bytes,omitempty" doc:"Memory and swap together, in bytes; what is below memory_bytes means no swap" minimum:"0"`
	CPUs        float64 `json:"cpus,omitempty" doc:"Cores, 0.1 and up" minimum:"0"`
	CPUShares   int64   `json:"cpu_shares,omitempty" doc:"Weight against other sandboxes when processors are short, 2 to 262144" minimum:"0"`
	PIDs        int64   `json:"pids,omitempty" doc:"Processes and threads together" minimum:"0"`
	TmpBytes    int64   `json:"tmp_bytes,omitempty" doc:"Size of /tmp and of /dev/shm, in bytes; full, both leave 16 MiB of the memory" minimum:"0"`
	HomeBytes   int64   `json:"home_bytes,omitempty" doc:"What HOME may hold, in bytes of disk, and a file for each 4 KiB of them" minimum:"0"`
	OpenFiles   int64   `json:"open_files,omitempty" doc:"Open descriptors of one process" minimum:"0"`
}

// DefaultMaxSandboxes is how many sandboxes of a host that is not told otherwise may
// have an environment at once.
const DefaultMaxSandboxes = 20

// DefaultLimits are those of a natively opened sandbox.
func DefaultLimits() Limits {
	return Limits{MemoryBytes: 1 << 30, CPUs: 2, PIDs: 512, TmpBytes: 64 << 20, HomeBytes: 4 << 30, OpenFiles: 4096}
}

// WorkDir is where a sandbox sees its workspace.
const WorkDir = "/workspace"

// HomeDir is HOME inside a sandbox.
const HomeDir = "/home/sandbox"

// Sandbox is what callers see of one life of a key.
type Sandbox struct {
	ID         string            `json:"id" doc:"One life of the key, 20 lower-case base32 characters"`
	Key        string            `json:"key" doc:"The name it was opened by"`
	State      State             `json:"state" enum:"cold,preparing,starting,running,stopping,stopped,lost,deleting,deleted"`
	Generation int64             `json:"generation" doc:"Environments this id has had"`
	Driver     string            `json:"driver"`
	Runtime    string            `json:"runtime"`
	Image      string            `json:"image,omitempty" doc:"What is installed, where the driver runs images"`
	OCIRuntime string            `json:"oci_runtime,omitempty" doc:"How its containers are isolated; absent: the host's default"`
	Root       string            `json:"root" enum:"readonly,writable" doc:"Whether programs may change what is installed; the workspace and the home they always may"`
	Tenant     string            `json:"tenant,omitempty" doc:"Whose it is; counted against the ceiling of one tenant"`
	Face       string            `json:"face" enum:"native,sessions,sandboxes,apps" doc:"The interface it was opened through, whose defaults and clock it has"`
	Open       bool              `json:"open" doc:"Opened and not closed since: it counts for the ceilings and has a clock"`
	Asleep     bool              `json:"asleep,omitempty" doc:"Open, and put to sleep to make room; it wakes with the next command"`
	Clock      SandboxClock      `json:"clock" doc:"What ends it if nobody uses it"`
	CreatedAt  time.Time         `json:"created_at"`
	Limits     Limits            `json:"limits"`
	Next       *Limits           `json:"next,omitempty" doc:"The limits of its next environment, where the policy was changed and what runs keeps others"`
	HomeLimit  string            `json:"home_limit" enum:"measured" doc:"How home_bytes is enforced. measured: HOME is looked at while commands run, and those that run when it holds more are ended with the cause disk"`
	Network    Network           `json:"network"`
	Labels     map[string]string `json:"labels,omitempty"`
	Preparing  *Preparation      `json:"preparing,omitempty" doc:"How far the image is that it waits for"`
	LastEnding *Ending           `json:"last_ending,omitempty" doc:"How the last environment or failed start ended"`
}

// OpenRequest creates the sandbox of a key or attaches to it.
type OpenRequest struct {
	Key     string            `json:"key,omitempty" doc:"1-64 of [A-Za-z0-9._-]; made up when empty" maxLength:"64"`
	Runtime string            `json:"runtime,omitempty" doc:"Catalogue entry, default the first one; without a catalogue: machine"`
	Driver  string            `json:"driver,omitempty" doc:"Driver, default the host's first, or its first that runs images if image is set"`
	Limits  Limits            `json:"limits,omitzero"`
	Network Network           `json:"network,omitzero"`
	Env     map[string]string `json:"env,omitempty" doc:"Environment of every command; values are write-only. A name has neither = nor control characters"`
	Labels  map[string]string `json:"labels,omitempty"`
	Tenant  string            `json:"tenant,omitempty" doc:"Whose it is, 1-64 of [A-Za-z0-9._-]; empty: nobody's, and counted against no tenant" maxLength:"64"`
	Start   *bool             `json:"start,omitempty" doc:"Start the environment, default true"`
	Prepare bool              `json:"prepare,omitempty" doc:"Answer when the image of its runtime is there, also with start false"`
	Attach  bool              `json:"attach,omitempty" doc:"Only attach: a key that no sandbox has is not found"`
	WaitS   *Seconds          `json:"wait_s,omitempty" doc:"How long to wait for a place when none is free, default 30 s; 0 refuses at once" minimum:"0" maximum:"600"`

	// Image and OCIRuntime need a driver that runs images and a host that lets its
	// callers choose.
	Image      string `json:"image,omitempty" doc:"Reference of an image, as python:3.12-slim; pulled when it is not there" maxLength:"255"`
	OCIRuntime string `json:"oci_runtime,omitempty" doc:"OCI runtime that the container engine knows, as runsc" maxLength:"64"`

	// Face is set by the face that asks, never by its caller; empty means FaceNative.
	Face string `json:"-"`
}

// The faces: each has its own defaults for limits and for how long a sandbox that
// nobody uses lasts.
const (
	FaceNative    = "native"    // /v1
	FaceSessions  = "sessions"  // the sessions wire
	FaceSandboxes = "sandboxes" // the sandboxes wire
	FaceApps      = "apps"      // apps of the control plane
)

// What programs may do with the root file system.
const (
	RootReadonly = "readonly"
	RootWritable = "writable" // what they install lasts as long as the environment
)

const idAlphabet = "abcdefghijklmnopqrstuvwxyz234567"

// NewID makes an id: 20 characters of base32, 100 random bits. It is never
// reused, because the generator is the kernel's and 2^100 is large.
func NewID() string {
	var raw [20]byte
	if _, err := rand.Read(raw[:]); err != nil {
		panic("sandboxd: the kernel gave no randomness: " + err.Error())
	}
	for i, b := range raw {
		raw[i] = idAlphabet[b&31]
	}
	return string(raw[:])
}

// ValidID says whether s has the shape of an id.
func ValidID(s string) bool {
	if len(s) != 20 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

// ValidKey says whether s may name a sandbox. "." and ".." are refused because a
// key is a directory name; so is a leading '-' because a key may be an argument.
func ValidKey(s string) bool { return validName(s, 64) }

// ValidCommandID says whether s may name a command: the same letters as a key.
func ValidCommandID(s string) bool { return validName(s, 64) }

func validName(s string, most int) bool {
	if s == "" || len(s) > most || s == "." || s == ".." || s[0] == '-' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
