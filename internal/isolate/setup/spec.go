// Package setup is the first stage of a sandbox's init: it runs as root in fresh
// namespaces, builds what the sandbox will see, gives up every privilege and
// executes the init again as process 1. The host uses its types to say what to
// build; nothing here is host code, and nothing here runs a command.
//
// The second execution costs a millisecond of a start and stays: it leaves
// nothing in process 1 of what root's memory held, ends the threads that still
// have root's credentials and cgroups (the steps change the calling thread
// alone), and makes process 1 undumpable before its first instruction.
package setup

import "encoding/json"

// The descriptors that the host passes, and those that stage two finds.
const (
	FDListen = 3 // a bound unix socket that process 1 listens on
	FDSpec   = 4 // a socket of packets with one Spec, and with it FDGroups, and perhaps Orders; in stage two a pipe with a Second
	FDReady  = 5 // takes one Report

	// FDGroups and the numbers after it are the files by which commands join that
	// bring no group. They come later than the others, so they are above what the
	// Go runtime opens for itself.
	FDGroups = 64

	MaxFD = 1<<31 - 1 // above every descriptor, for close_range
)

// MaxSpec bounds an encoded Spec.
const MaxSpec = 64 << 10

// maxGroups bounds the descriptors that come with it.
const maxGroups = 16

// Environment is of both stages: what the Go runtime would otherwise find out, or
// be told later at the cost of a stop. Two threads at once gain process 1 nothing
// but wake-ups: what it does between two system calls is short.
var Environment = []string{"GOMAXPROCS=1", "GOGC=50"}

// Spec is what the host wants built. Paths are host paths.
type Spec struct {
	Base      string // an empty directory to mount the new root on
	Root      string // an unpacked image; empty for the machine's own /usr
	Workspace string
	Home      string
	CABundle  string // a file to show at caBundle; empty for none
	UID       uint32
	Hostname  string
	TmpBytes  int64  // size of /tmp and of /dev/shm, 0 for the default
	Seccomp   []byte // struct sock_filter array
	Landlock  int    // ABI to use; 0 for none
	OOMScore  int    // oom_score_adj of everything in the sandbox

	// Rootless says that the namespaces are in a user namespace with one id, UID:
	// then nothing can be made that needs another id or a device. See rootless.go.
	Rootless bool

	// InitGroups is how many descriptors come after those of Second.Groups: of
	// where the init itself goes.
	InitGroups int

	// Pooled says that the sandbox is not known yet: without Workspace, Home and UID
	// all is built that does not depend on them; the rest comes as Orders.
	Pooled bool

	Second Second

	// Without leaves out a step of the set-up by its name, or StepMasks. It is for
	// the tests of the selftest, which must see that each missing protection is
	// found: the process driver sends what a field of its own holds that only tests
	// of its own package can set, and no setting, variable or request reaches it.
	Without []string
}

// The steps that a test may leave out.
const (
	StepCapabilities = "empty the bounding set"
	StepUser         = "change the user"
	StepSeccomp      = "seccomp"
	StepMasks        = "masks" // the covers over files of /proc
)

// Orders hand what was built to a sandbox. Stage one says on FDSpec, by a Report,
// that it waits for them. They come as one packet, with two detached mounts: of the
// workspace and of the home. In a container it says so on stdout, they come on stdin
// before Attached, and the host has attached the mounts itself; OpenFiles and Nonce come
// later.
type Orders struct {
	UID       uint32
	OpenFiles int64
	Nonce     string
}

// Second is what stage two needs to know.
type Second struct {
	OpenFiles int64  // RLIMIT_NOFILE of a command
	Groups    int    // descriptors from FDGroups on
	Nonce     string // secret by which this init and its host know each other

	// Alone says that no cgroup holds a command together: then it is marked, and
	// each of its processes is limited by itself. 0 is no limit.
	Alone     bool
	DataBytes int64 // RLIMIT_DATA
	Processes int64 // RLIMIT_NPROC, which counts what is in the sandbox
}

// Attached is what an init needs to know that was started by a container engine
// and speaks over its own stdin and stdout. It is the first message on stdin, one
// Report the first on stdout; see ReadMessage. The guest protocol follows.
type Attached struct {
	Second
	Seccomp []byte // struct sock_filter array; empty for none
}

// Report is the one message on FDReady. Step is empty when the init is ready.
type Report struct {
	Step  string
	Error string
}

// Encode is the wire form of a report.
func (r Report) Encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic("setup: a struct of strings did not marshal: " + err.Error())
	}
	return b
}
