package sandboxd

import (
	"context"
	"io"
	"os"
	"time"
)

// Driver makes isolated environments, each with an init that speaks the guest
// protocol. It prepares, starts, connects and stops; it never runs a command,
// opens a file of a workspace or forwards a port, and no pid crosses it.
//
// Its suite is internal/driver/drivertest. Methods are safe for concurrent use,
// also for one id.
type Driver interface {
	Name() string
	// Fingerprint says whether the driver works here and how well it isolates. It
	// does real work and may take a second; callers keep the answer.
	Fingerprint(ctx context.Context) Fingerprint
	// Start makes and starts an environment and returns a handle that a later
	// process can adopt it by. When it fails nothing is left. ClassConflict if the
	// id has one; ClassUnavailable with the reason otherwise.
	Start(ctx context.Context, spec EnvironmentSpec) (Handle, error)
	// Adopt takes over a running environment that another process started. An
	// environment that is gone, or is not provably the one of the handle, is
	// ClassGone, and nothing of it is left.
	Adopt(ctx context.Context, id string, handle Handle) error
	// Connect opens the byte stream to the init. A newer connection replaces the
	// older one. ClassGone when there is no environment. A connection that is a
	// Continued may begin in the middle of what an earlier one carried.
	Connect(ctx context.Context, id string) (io.ReadWriteCloser, error)
	// Stop ends every process of the environment and removes what Start made,
	// within a second. Nothing there is no error.
	Stop(ctx context.Context, id string) error
	// Inspect says whether the environment lives. ClassNotFound if unknown.
	Inspect(ctx context.Context, id string) (EnvironmentStatus, error)
	// List names every environment of this driver on the machine that belongs to
	// this data directory, adopted or not.
	List(ctx context.Context) ([]string, error)
	// Events delivers what happened to environments without our asking. The
	// channel is closed with the driver; a slow reader loses nothing.
	Events() <-chan DriverEvent
	// Close lets go without ending any environment.
	Close() error
}

// Handle is what a driver needs to find an environment again. Opaque; at most 4 KiB.
type Handle []byte

// EnvironmentSpec is what an environment is made of. Paths are host paths.
type EnvironmentSpec struct {
	ID         string
	Generation int64
	Workspace  string // the directory seen as WorkDir
	Home       string // the directory seen as HomeDir
	Seed       Seed   // makes Home; nil when it is there, as it is for what was Kept
	CABundle   string // a file shown read-only at CABundle; "" for none
	UID        uint32 // user and group inside; the directories are already owned by it
	Hostname   string
	Limits     Limits
	Nonce      string // secret by which the init and its host know each other

	// What only some drivers have; ClassUnsupported by the others.
	Tenant string // whose it is; what tenants may not share is made per tenant

	Image        string // what is installed; empty for the driver's default
	OCIRuntime   string // how a container is isolated, as "runsc"; empty for the default
	WritableRoot bool   // the root file system takes writes; they are lost with the environment unless a Keeper keeps them
	Bridge       bool   // a network of the tenant's own, which reaches the world
	Kept         bool   // begin with what Keeper.Keep kept, else ClassGone; nothing of it is lost by a failure
}

// Seed makes the home of a sandbox that has none yet. Start calls it once, when it knows
// what the environment's image is and before anything uses Home, also where there are no
// images; what it fails with, Start fails with.
type Seed interface {
	// SeedHome is given what the image has at HomeDir: a tar whose names are relative to
	// that, nil for nothing. Nobody has looked at what is in it.
	SeedHome(ctx context.Context, archive io.Reader) error
}

// EnvironmentStatus is a driver's observation.
type EnvironmentStatus struct {
	Running bool
	Ending  *Ending // when not running and known
}

// DriverEvent reports an environment that ended by itself.
type DriverEvent struct {
	ID         string
	Generation int64
	Ending     Ending
}

// Capabilities are facts about a driver, as data.
type Capabilities struct {
	SurvivesHostRestart bool     `json:"survives_host_restart"` // environments outlive the server process
	OwnGroup            bool     `json:"own_group"`             // they outlive the end of the server's whole control group
	CommandCgroup       bool     `json:"command_cgroup"`        // implements CommandGroups
	WritableRoot        bool     `json:"writable_root"`
	Networks            []string `json:"networks"`
	WorkspaceBind       bool     `json:"workspace_bind"` // false: files live only in the guest
	Pool                bool     `json:"pool"`           // EnvironmentPool keeps some ready here
	Images              bool     `json:"images"`         // has images, or pulls them
	OCIRuntimes         []string `json:"oci_runtimes,omitempty"`
}

// LevelLine is one line of a driver's isolation report.
type LevelLine struct {
	Name   string `json:"name"`   // as "seccomp"
	OK     bool   `json:"ok"`     // this protection is in force
	Needed bool   `json:"needed"` // without it the driver refuses to start
	Detail string `json:"detail"` // what was found
	Why    string `json:"why"`    // what is lost without it, or what to install
}

// Fingerprint is the outcome of probing a driver on this machine.
type Fingerprint struct {
	Works        bool         `json:"works"`
	Reason       string       `json:"reason,omitempty"` // why not
	Hint         string       `json:"hint,omitempty"`   // what to install or change
	Level        []LevelLine  `json:"level"`
	Capabilities Capabilities `json:"capabilities"`
}

// CommandGroups is the optional power of a driver to give each command a cgroup
// of its own. Command names are valid command ids.
type CommandGroups interface {
	// CreateGroup makes the group and returns the files, opened for writing, to
	// which a process writes "0" to join it. The caller closes them.
	CreateGroup(ctx context.Context, id, command string, limits CommandLimits) ([]*os.File, error)
	// KillGroup kills every process of the group, new forks included, and returns
	// when none is left or ctx ends.
	KillGroup(ctx context.Context, id, command string) error
	// GroupUsage reads counters; it works until RemoveGroup.
	GroupUsage(ctx context.Context, id, command string) (GroupUsage, error)
	// RemoveGroup removes an empty group; ClassBusy while processes are in it: then
	// it goes after they have ended, with the group of a later command or with the
	// environment.
	RemoveGroup(ctx context.Context, id, command string) error
}

// EnvironmentPool is the optional power of a driver to keep environments ready
// before it is known whose they are. Start takes one that suits and makes one where
// none does; nothing else of the contract changes by it. A ready one is no
// environment: List does not name it, Close ends it, and it is never used twice. Where
// Capabilities.Pool is false nothing is ever ready.
type EnvironmentPool interface {
	// KeepReady says how many may be ready at most; before the first call, none. The
	// driver decides how many are, from what Start is asked for, and ends what is one
	// too many. The first call ends those of a server that had no time to. It does
	// not wait for any to be made.
	KeepReady(n int)
}

// Continued is a connection to an init on a stream that outlives it, as that of a
// container's stdin.
type Continued interface {
	// Continued says that an earlier connection used the stream: a link begins with
	// a flush.
	Continued() bool
}

// Images is the optional power of a driver to run what an image holds, and to keep
// images. The errors of the last three are those of ImageHost.
type Images interface {
	// ChooseImage answers the image that an environment has whose request names these
	// two, of which either may be empty: the driver's default for none, which is ""
	// where that is the machine's own programs. ClassInvalid where one must be named,
	// ClassNotFound for one that is not here and cannot be pulled, ClassUnsupported for
	// an OCI runtime of a driver that has none.
	ChooseImage(image, ociRuntime string) (string, error)
	// Environ is what the image of a running environment sets, as KEY=VALUE.
	Environ(id string) []string

	// ImportImage takes a plain tar.
	ImportImage(ctx context.Context, req ImageImport, archive io.Reader) (Image, error)
	ListImages(ctx context.Context) ([]Image, error)
	// RemoveImage is ClassConflict while an environment has the image.
	RemoveImage(ctx context.Context, name string) error
}

// ImagePuller is the optional power of a driver with Images to bring them from
// registries. Start does, too, when the image of an environment is not there.
type ImagePuller interface {
	PullImage(ctx context.Context, req ImagePull, tell func(PullProgress)) (Image, error)
}

// MemoryKills is the optional power of a driver without CommandGroups to tell that
// the kernel killed for memory.
type MemoryKills interface {
	// MemoryKills counts the processes of a running environment that the kernel
	// killed for memory since it was started or adopted. A kill is counted a moment
	// after it happened.
	MemoryKills(id string) int64
}

// Bridges is the optional power of a driver to give environments a bridge: a network
// of their tenant's own that reaches the world, and neither the machine, nor private
// networks, nor another environment.
type Bridges interface {
	// BridgeWorks is nil where it does, under an OCI runtime, empty for the default;
	// ClassUnsupported with the reason otherwise.
	BridgeWorks(ociRuntime string) error
}

// ProcessRefusals is the optional power of a driver without CommandGroups to tell that
// the limit of processes was met.
type ProcessRefusals interface {
	// ProcessRefusals counts the processes and threads that a running environment was
	// refused since it was started or adopted. counted is false where nobody can tell.
	ProcessRefusals(id string) (n int64, counted bool)
}

// Keeper is the optional power of a driver to keep what was installed in an
// environment with a writable root, while it has no processes.
type Keeper interface {
	// Keep ends every process of an environment as Stop does, but keeps its root for a
	// Start that says Kept; one that has ended, or was kept before, too. Stop removes
	// what was kept. ClassGone when nothing is there.
	Keep(ctx context.Context, id string) error
}

// LimitChanger is the optional power of a driver to change the limits of an environment
// that runs.
type LimitChanger interface {
	// ChangeLimits puts those of limits in force that bound memory, swap, processors and
	// processes, all of them or none, and answers handle for an environment that has
	// them. ClassConflict: more memory is in use than there is to be; ClassGone without
	// an environment.
	ChangeLimits(ctx context.Context, id string, handle Handle, limits Limits) (Handle, error)
}

// Sampler is the optional power of a driver to measure what the processes of an
// environment use. A sample costs the sandbox nothing, not even a context switch.
type Sampler interface {
	// Sample reads the counters of a running environment. ClassGone without one.
	Sample(ctx context.Context, id string) (Sample, error)
}

// Sample are the counters of an environment. CPU and IOBytes only grow while it
// lives. What the driver cannot tell is nil, or for these two 0.
type Sample struct {
	CPU         time.Duration // of all processes, ended ones too
	IOBytes     int64         // read and written: files and network, as far as the driver sees them
	MemoryBytes *int64        // without inactive file pages
	MemoryLimit *int64
	PIDs        *int64
}

// GroupUsage are the counters of a command's group.
type GroupUsage struct {
	Processes    int           // alive now
	CPU          time.Duration // of all processes, ended ones too
	PeakBytes    int64
	MemoryLimit  int64 // the limit in force for the command or, if lower, the sandbox
	OOMKills     int64 // processes the kernel killed for memory, in the command's or sandbox's limit
	PIDsLimit    int64
	PIDsRefused  int64 // forks refused
	OOMInSandbox bool  // the sandbox's limit was hit, not the command's own
}
