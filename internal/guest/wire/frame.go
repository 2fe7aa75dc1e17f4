package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"
)

// Sizes of the protocol. MaxFrame includes the header.
const (
	MaxFrame   = 64 << 10
	HeaderSize = 36
	MaxPayload = MaxFrame - HeaderSize
	// MaxStart bounds a start message, which may span several frames.
	MaxStart = 1 << 20
	// MaxGroups bounds the descriptors that come with one start.
	MaxGroups = 8
	// MaxCommands bounds the commands that an init holds, ended ones included.
	MaxCommands = 4096
	// CommandWindow and SandboxWindow bound the output that is sent or held and
	// not acknowledged, of one command and of all.
	CommandWindow = 256 << 10
	SandboxWindow = 1 << 20
	// MaxSegments bounds the unacknowledged changes between a command's streams.
	MaxSegments = 4096
	// StdinWindow is the credit of a new command's input.
	StdinWindow = 64 << 10
	// StreamWindow is the credit of a new stream, each way.
	StreamWindow = 64 << 10
	// MaxServices bounds the streams that an init has open to services.
	MaxServices = 64
	// MaxDials bounds the streams that a host has open to ports.
	MaxDials = 1024
	// MaxPorts bounds the listening sockets that are reported, MaxPortName the bytes
	// of the name of the process that has one.
	MaxPorts    = 200
	MaxPortName = 64
)

// The versions that this package speaks. Version 2 added TypePorts.
const (
	MinVersion = 1
	MaxVersion = 2
	// PortsVersion is the first that can list ports.
	PortsVersion = 2
)

// Type says what a frame means. Direction, and what Number, Arg and the payload
// are, stand beside each.
type Type uint8

// The frame types.
const (
	TypeSync     Type = 1 // host: JSON Sync
	TypeSyncAck  Type = 2 // init: JSON SyncAck
	TypeSyncNack Type = 3 // init: JSON SyncNack; the link is not made
	TypeKnown    Type = 4 // init: command, Arg the next offset; payload see Known
	TypeKnownEnd Type = 5 // init: no more Known
	TypeReset    Type = 6 // init: the link is given up; payload is why
	TypePing     Type = 7 // host: Arg any
	TypePong     Type = 8 // init: Arg of the ping

	TypeHave        Type = 16 // host: command, Arg the offset to send from
	TypeStart       Type = 17 // host: command, JSON Start, FlagMore on all but the last part
	TypeStarted     Type = 18 // init: command
	TypeStartFailed Type = 19 // init: command, JSON Exit; FlagConflict when the id exists
	TypeStdin       Type = 20 // host: command, data, FlagEOF ends the input after it
	TypeStdinCredit Type = 21 // init: command, Arg bytes more
	TypeStdinClosed Type = 22 // init: command takes no more input
	TypeOutput      Type = 23 // init: command, Flags the tag, Arg the offset, data
	TypeAck         Type = 24 // host: command, Arg: everything before is durable
	TypeEnded       Type = 25 // init: command, Arg the final offset, JSON Exit
	TypeForget      Type = 26 // host: command
	TypeSignal      Type = 27 // host: command, Arg the signal; FlagWhole when the command is to end
	TypeResize      Type = 28 // host: command, Arg columns<<16 | rows

	TypeDial         Type = 32 // host: new stream, Arg the port
	TypeService      Type = 33 // init: new stream, payload the service's name
	TypeOpened       Type = 34 // both: stream
	TypeRefused      Type = 35 // both: stream, payload why
	TypeStreamData   Type = 36 // both: stream, data
	TypeStreamCredit Type = 37 // both: stream, Arg bytes more
	TypeStreamEnd    Type = 38 // both: stream, no more data from the sender
	TypeStreamClose  Type = 39 // both: stream, no more data and no more reading; FlagReset
	TypePorts        Type = 40 // host: Arg any
	TypePortList     Type = 41 // init: Arg of the question, JSON PortList
)

// Flags of frames; their meaning depends on the type.
const (
	FlagMore     = 1 // TypeStart: another part follows at once
	FlagEOF      = 1 // TypeStdin
	FlagConflict = 1 // TypeStartFailed
	FlagEnded    = 1 // TypeKnown
	FlagStdin    = 2 // TypeKnown: takes input
	FlagReset    = 1 // TypeStreamClose: what came before is not all there was
	// TypeSignal: SIGKILL goes to every process of the command, whatever its session,
	// and what the leader leaves is killed before the end is told. It is for an init
	// whose commands have no cgroup that the host could end; others may ignore it.
	FlagWhole = 1
)

// Tags of output.
const (
	TagStdout = 1
	TagStderr = 2
)

// Frame is one message. Payload of a received frame is valid until the next read.
type Frame struct {
	Nonce   uint64
	Type    Type
	Flags   uint8
	Number  uint32
	Arg     uint64
	Payload []byte
}

// magic begins every frame. No byte is zero, so a run of zeros holds none of it.
var magic = [4]byte{0xf7, 'S', 'b', 0x9d}

// castagnoli takes a tenth of a millisecond to make, which a program that only
// imports this package, as an init that sets up, need not spend.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// ErrTooLarge is a payload that does not fit a frame.
var ErrTooLarge = errors.New("wire: payload above the frame size")

// Append encodes f after b. Layout, little endian: magic 4, nonce 8, type 1,
// flags 1, zero 2, number 4, length 4, arg 8, CRC32C 4 over all before it and the
// payload, payload.
func Append(b []byte, f Frame) ([]byte, error) {
	if len(f.Payload) > MaxPayload {
		return b, ErrTooLarge
	}
	at := len(b)
	b = append(b, magic[:]...)
	b = binary.LittleEndian.AppendUint64(b, f.Nonce)
	b = append(b, byte(f.Type), f.Flags, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, f.Number)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Payload)))
	b = binary.LittleEndian.AppendUint64(b, f.Arg)
	sum := crc32.Update(0, castagnoli(), b[at:])
	sum = crc32.Update(sum, castagnoli(), f.Payload)
	b = binary.LittleEndian.AppendUint32(b, sum)
	return append(b, f.Payload...), nil
}

// decode reads a frame from the start of b. need is how many bytes b must have
// before that can be decided; ok is false with need 0 when none begins here.
func decode(b []byte) (f Frame, size, need int, ok bool) {
	for i := 0; i < len(magic) && i < len(b); i++ {
		if b[i] != magic[i] {
			return f, 0, 0, false
		}
	}
	if len(b) < HeaderSize {
		return f, 0, HeaderSize, false
	}
	length := binary.LittleEndian.Uint32(b[20:])
	if length > MaxPayload || b[14] != 0 || b[15] != 0 {
		return f, 0, 0, false
	}
	size = HeaderSize + int(length)
	if len(b) < size {
		return f, 0, size, false
	}
	sum := crc32.Update(0, castagnoli(), b[:HeaderSize-4])
	sum = crc32.Update(sum, castagnoli(), b[HeaderSize:size])
	if sum != binary.LittleEndian.Uint32(b[HeaderSize-4:]) {
		return f, 0, 0, false
	}
	return Frame{
		Nonce: binary.LittleEndian.Uint64(b[4:]), Type: Type(b[12]), Flags: b[13],
		Number: binary.LittleEndian.Uint32(b[16:]), Arg: binary.LittleEndian.Uint64(b[24:]),
		Payload: b[HeaderSize:size:size],
	}, size, 0, true
}
