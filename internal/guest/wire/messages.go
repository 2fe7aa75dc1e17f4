package wire

// Start is the body of a start message: one command, resolved by the host. It is
// JSON on the wire.
type Start struct {
	ID      string   `json:"id"`
	Argv    []string `json:"argv"` // Argv[0] is looked up in the PATH of Env unless it has a '/'
	Env     []string `json:"env"`  // complete: nothing is added inside
	Cwd     string   `json:"cwd"`  // absolute inside the sandbox
	Stdin   bool     `json:"stdin"`
	TTY     bool     `json:"tty"`
	Cols    uint16   `json:"cols,omitempty"`
	Rows    uint16   `json:"rows,omitempty"`
	Wait    string   `json:"wait"`              // "leader" or "pipes", as sandboxd.WaitRule
	Groups  int      `json:"groups,omitempty"`  // how many descriptors of cgroups to join came with this message
	Restart string   `json:"restart,omitempty"` // reserved: restart policy; the init refuses any but "" and "never"
}

// MarkVariable is set, to the command's id, in the environment of a command that has
// no cgroup of its own: where the kernel has no better mark, what it starts is known
// by it.
const MarkVariable = "SANDBOXD_COMMAND_ID"

// Exit says how the leader of a command ended, as wait4 saw it. A start that
// failed is Code 126 (not executable, no such directory) or 127 (not found) with
// Error set.
type Exit struct {
	Code      int    `json:"code"`             // exit status when Signal is 0
	Signal    int    `json:"signal,omitempty"` // the signal that ended it
	CPUMicros int64  `json:"cpu_us"`           // user and system, of the leader and the children it waited for
	MaxRSS    int64  `json:"max_rss"`          // bytes, of the largest such process
	Error     string `json:"error,omitempty"`  // why it never ran
}

// PortList is what listens in a sandbox, the init's own ports left out.
type PortList struct {
	Ports      []Port `json:"ports"`      // at most MaxPorts
	Incomplete bool   `json:"incomplete"` // there are more, or not all could be looked at
}

// Port is one listening TCP socket. PID, Name and Command are empty when they are
// not known.
type Port struct {
	Port    int    `json:"port"`
	Address string `json:"address"`           // as 127.0.0.1, 0.0.0.0 or ::
	PID     int    `json:"pid,omitempty"`     // of a process that has it, as numbered inside
	Name    string `json:"name,omitempty"`    // of that process, at most MaxPortName bytes
	Command string `json:"command,omitempty"` // id of the command that it belongs to
}
