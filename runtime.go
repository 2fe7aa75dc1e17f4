package sandboxd

import (
	"context"
	"io"
	"time"
)

// RuntimeMachine is the built-in runtime of a host without a catalogue: what the driver
// has, which is the machine's own /usr, read-only, or its default image. With a
// catalogue it is the runtime of a sandbox whose request names an image.
const RuntimeMachine = "machine"

// Runtime describes a catalogue entry as a host offers it.
type Runtime struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Default     bool     `json:"default,omitempty" doc:"Used where a request names none"`
	Drivers     []string `json:"drivers" doc:"Those that run it here; the first is used where none is named"`
	Builds      bool     `json:"builds,omitempty" doc:"Its image is built here, on drivers that run images"`
	Installed   string   `json:"installed,omitempty" doc:"An image, or a base and how many packages are put on it"`
	Image       string   `json:"image,omitempty" doc:"Of its sandboxes on drivers that run images"`
	Limits      Limits   `json:"limits"`
	Network     string   `json:"network" doc:"Of its sandboxes on the first driver, where their request says nothing"`
	Root        string   `json:"root,omitempty" enum:"readonly,writable" doc:"Of its sandboxes on drivers that have writable roots"`
	// Missing is about sandboxes without an image: there nothing is installed for them.
	Missing     []string     `json:"missing,omitempty" doc:"Commands of it that this machine lacks, where its sandboxes have the machine's own"`
	Preparation *Preparation `json:"preparation,omitempty" doc:"How far its image is; absent where no driver runs images"`
}

// PreparationState is how far an image is.
type PreparationState string

// The states of an image. One that is absent was not asked for yet, or is gone.
const (
	PreparationAbsent   PreparationState = "absent"
	PreparationWaiting  PreparationState = "waiting" // for another build, or to be tried again
	PreparationWorking  PreparationState = "working"
	PreparationPrepared PreparationState = "prepared"
	PreparationFailed   PreparationState = "failed"
)

// Preparation tells of an image that is built or pulled.
type Preparation struct {
	State PreparationState `json:"state" enum:"absent,waiting,working,prepared,failed"`
	Try   int              `json:"try,omitempty" doc:"Which try it is, from 1"`
	Step  int              `json:"step,omitempty" doc:"Of how many steps of the build this one goes on"`
	Steps int              `json:"steps,omitempty"`
	Doing string           `json:"doing,omitempty" doc:"The step, or what else is being done"`
	Line  string           `json:"line,omitempty" doc:"The last line that was printed"`
	Error string           `json:"error,omitempty" doc:"Why the last try failed: the step and its last lines"`
	Since time.Time        `json:"since,omitzero" doc:"When it was begun"`
}

// RuntimeEntry is what a host needs to know of a catalogue entry.
type RuntimeEntry struct {
	Name, Description string
	Builds            bool
	Installed         string // as in Runtime
	Image             string // for drivers that run images
	// UID is who its image makes the user of its sandboxes, in containers; 0: anybody.
	UID          uint32
	Limits       Limits // a zero field is not stated
	OCIRuntime   string
	NeedsNetwork bool
	Root         string
	Env          map[string]string
	Tools        []string // commands that are on PATH
}

// Runtimes are what a host may open sandboxes of: its catalogue, with what is built for
// it. Methods are safe for concurrent use.
type Runtimes interface {
	// Entries are in the order of the catalogue; there is one at least, and the first is
	// the default. They never change.
	Entries() []RuntimeEntry
	// Ready says whether the image of an entry is there, without having it made.
	Ready(ctx context.Context, name string) (bool, error)
	// Prepare returns when the image of an entry is there, and has it made if it is not.
	// Whoever else waits for it waits for the same work, which goes on as long as anybody
	// does: a caller leaves by its context. ClassNotFound for no such entry,
	// ClassUnavailable when it failed; the error names the step and its last lines.
	Prepare(ctx context.Context, name string) error
	// Preparation says how far the image of an entry is.
	Preparation(name string) Preparation
	// Missing are those of an entry's tools that this machine lacks.
	Missing(name string) []string
}

// ImageBuilder is the optional power of a driver to have images built. Sandboxes of a
// catalogue entry have the entry's image on such a driver, and what the driver has
// otherwise on any other.
type ImageBuilder interface {
	ImageBuilds() ImageBuilds
}

// ImageBuilds makes and removes images. Methods are safe for concurrent use; a bound on
// their time is the caller's, except that FindImage, TagImage, ListImages and
// RemoveImage do not wait for an engine that hangs.
type ImageBuilds interface {
	// FindImage answers an image by its reference. ClassNotFound.
	FindImage(ctx context.Context, ref string) (HeldImage, error)
	// PullImage brings an image. ClassInvalid when its registry has none.
	PullImage(ctx context.Context, ref string, said func(line string)) error
	// BuildImage makes an image, with a network whatever sandboxes get. ClassInvalid when
	// the recipe cannot be read; any other error is of a step. Cancelled, it ends what it
	// began before it returns, as far as the engine answers.
	BuildImage(ctx context.Context, build ImageBuild) error
	// TagImage gives an image one more name. ClassNotFound.
	TagImage(ctx context.Context, ref, tag string) error
	// ListImages answers the images that have a label, untagged ones too.
	ListImages(ctx context.Context, label string) ([]HeldImage, error)
	// RemoveImage takes a tag or an untagged image away, and what only it needed.
	// ClassConflict while a container uses it; nothing there is no error.
	RemoveImage(ctx context.Context, ref string) error
}

// HeldImage is an image that an engine has.
type HeldImage struct {
	ID     string
	Tags   []string
	Labels map[string]string
}

// ImageBuild is what BuildImage makes.
type ImageBuild struct {
	Context io.Reader // a tar archive with a Dockerfile for the classic builder
	Tag     string
	Labels  map[string]string
	Said    func(line string) // hears every line that is printed, in their order
}
