package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// Sync is the host's first message: the versions it speaks and the proof that it
// knows the sandbox's secret. Flush asks for the zero preamble before the answer.
// Listen names ports of the sandbox's own loopback, by the service that their
// connections are to become streams of. An init goes on listening when the link
// has ended, and holds new connections until there is another.
type Sync struct {
	Min    int               `json:"min"`
	Max    int               `json:"max"`
	Proof  []byte            `json:"proof,omitempty"`
	Flush  bool              `json:"flush,omitempty"`
	Listen map[string]uint16 `json:"listen,omitempty"`
}

// SyncAck makes the link.
type SyncAck struct {
	Version int    `json:"version"`
	Proof   []byte `json:"proof,omitempty"`
}

// SyncNack refuses it: no common version when Min is set, otherwise Reason is why.
type SyncNack struct {
	Reason string `json:"reason"`
	Min    int    `json:"min,omitempty"`
	Max    int    `json:"max,omitempty"`
}

// The sides that prove themselves. They differ so that neither can be answered
// with its own proof.
const (
	SideHost = "host"
	SideInit = "init"
)

// Proof shows that a side knows the secret, for one link. Without a secret it is
// empty.
func Proof(secret, side string, nonce uint64) []byte {
	if secret == "" {
		return nil
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(side))
	mac.Write(binary.LittleEndian.AppendUint64(nil, nonce))
	return mac.Sum(nil)
}

// Proves checks a proof; without a secret everything proves it.
func Proves(proof []byte, secret, side string, nonce uint64) bool {
	return secret == "" || hmac.Equal(proof, Proof(secret, side, nonce))
}

// Version is the highest version in both ranges, 0 if there is none.
func Version(min1, max1, min2, max2 int) int {
	v := min(max1, max2)
	if v < max(min1, min2) || v < 1 {
		return 0
	}
	return v
}

// Known is what an init says of one command when a link is made; Next is the
// frame's Arg.
type Known struct {
	Base   int64 // the first offset that is still held
	Credit uint32
	ID     string
}

// AppendKnown encodes the payload of a known message.
func AppendKnown(b []byte, k Known) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(k.Base))
	b = binary.LittleEndian.AppendUint32(b, k.Credit)
	return append(b, k.ID...)
}

// ParseKnown is its inverse.
func ParseKnown(b []byte) (Known, error) {
	if len(b) < 13 || len(b) > 12+64 {
		return Known{}, errors.New("wire: malformed known message")
	}
	base := binary.LittleEndian.Uint64(b)
	if base > MaxOffset {
		return Known{}, errors.New("wire: offset out of range")
	}
	return Known{Base: int64(base), Credit: binary.LittleEndian.Uint32(b[8:]), ID: string(b[12:])}, nil
}

// MaxOffset is the largest offset that is believed; sums with it do not overflow.
const MaxOffset = 1 << 60
