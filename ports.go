package sandboxd

import "io"

// PortConn is a connection to a port of a sandbox. Reads, writes and closes may run
// at the same time. A read that meets an end which is not the program's own, as when
// it breaks off or the sandbox stops, is an error and not io.EOF.
type PortConn interface {
	// Close gives up both directions; what was written before arrives.
	io.ReadWriteCloser
	// CloseWrite ends the data of this side; what the other side still sends comes.
	CloseWrite() error
	// Reset is Close that lets the program know that there was more to send.
	Reset() error
}

// Port is one TCP socket that listens in a sandbox. Which process has it is what the
// sandbox says of itself.
type Port struct {
	Port      uint16 `json:"port"`
	Address   string `json:"address" doc:"What it is bound to, as 127.0.0.1, 0.0.0.0 or ::; only what loopback reaches can be connected to"`
	PID       int    `json:"pid,omitempty" doc:"A process that has it, as numbered inside; absent if not known"`
	Process   string `json:"process,omitempty" doc:"Name of that process"`
	CommandID string `json:"command_id,omitempty" doc:"The command that the process belongs to"`
}

// PortList is what listens, ordered by port.
type PortList struct {
	Ports      []Port `json:"ports" nullable:"false"`
	Incomplete bool   `json:"incomplete" doc:"There is more, or some processes could not be looked at"`
}
