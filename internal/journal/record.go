package journal

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"sandboxd"
)

// A record is a header and its data, little endian:
//
//	0  uint32 CRC32C of everything after it, data included
//	4  uint32 length of the data
//	8  int64  offset of the data's first byte
//	16 int64  time, unix microseconds
//	24 uint8  kind
//	25 3 bytes "sbj"
//
// The mark makes a run of zeros, as a file system leaves after a power cut, no
// record.
const (
	headerSize = 28
	// maxRecord is both the largest record and the largest frame of a follower.
	maxRecord = 32 << 10
	// maxEnding bounds the ending's record; its texts are cut to fit.
	maxEnding = maxRecord
)

const (
	kindStdout byte = 1
	kindStderr byte = 2
	kindEnding byte = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type record struct {
	kind   byte
	offset int64
	data   []byte // points into the buffer that was parsed
}

// end is the offset after the record. An ending takes no room in the offset space.
func (r record) end() int64 {
	if r.kind == kindEnding {
		return r.offset
	}
	return r.offset + int64(len(r.data))
}

func (r record) stream() sandboxd.Stream {
	if r.kind == kindStderr {
		return sandboxd.StreamStderr
	}
	return sandboxd.StreamStdout
}

func kindOf(s sandboxd.Stream) (byte, bool) {
	switch s {
	case sandboxd.StreamStdout:
		return kindStdout, true
	case sandboxd.StreamStderr:
		return kindStderr, true
	}
	return 0, false
}

// putHeader writes the header of a record into h.
func putHeader(h *[headerSize]byte, at time.Time, rec record) {
	le := binary.LittleEndian
	le.PutUint32(h[4:], uint32(len(rec.data)))
	le.PutUint64(h[8:], uint64(rec.offset))
	le.PutUint64(h[16:], uint64(at.UnixMicro()))
	h[24], h[25], h[26], h[27] = rec.kind, 's', 'b', 'j'
	sum := crc32.Update(crc32.Checksum(h[4:], castagnoli), castagnoli, rec.data)
	le.PutUint32(h[0:], sum)
}

// parse reads the record at the start of b. need is how many bytes of b a whole
// record takes; it is 0 when b does not start with a record, whatever follows.
// The record is valid when need is not 0 and at most len(b).
func parse(b []byte) (rec record, need int) {
	if len(b) < headerSize {
		return record{}, headerSize
	}
	le := binary.LittleEndian
	length := le.Uint32(b[4:])
	kind := b[24]
	if length == 0 || length > maxRecord || kind < kindStdout || kind > kindEnding ||
		b[25] != 's' || b[26] != 'b' || b[27] != 'j' {
		return record{}, 0
	}
	need = headerSize + int(length)
	if len(b) < need {
		return record{}, need
	}
	if crc32.Checksum(b[4:need], castagnoli) != le.Uint32(b) {
		return record{}, 0
	}
	rec = record{kind: kind, offset: int64(le.Uint64(b[8:])), data: b[headerSize:need:need]}
	if rec.offset < 0 {
		return record{}, 0
	}
	return rec, need
}
