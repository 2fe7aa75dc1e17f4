package docker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// attached is a connection to a container's streams: what is written is its
// stdin, what is read its stdout. What it says on stderr is kept apart; only the
// init writes there, when it gives up.
type attached struct {
	conn      net.Conn
	r         *bufio.Reader
	left      int  // bytes of the present piece not read yet
	continued bool // earlier hosts have used the container's streams

	once sync.Once
	mu   sync.Mutex
	said []byte
}

// The streams of a piece, and its header: the stream, three zeros, the length.
const (
	pieceStdout = 1
	pieceStderr = 2
	pieceHeader = 8
	maxSaid     = 2048
)

func newAttached(conn net.Conn, r io.Reader) *attached {
	return &attached{conn: conn, r: bufio.NewReaderSize(r, 64<<10)}
}

// Continued is sandboxd.Continued's.
func (a *attached) Continued() bool { return a.continued }

// Read is for one goroutine.
func (a *attached) Read(b []byte) (int, error) {
	for a.left == 0 {
		var header [pieceHeader]byte
		if _, err := io.ReadFull(a.r, header[:]); err != nil {
			return 0, err
		}
		size := int64(binary.BigEndian.Uint32(header[4:]))
		switch header[0] {
		case pieceStdout:
			a.left = int(size)
		case pieceStderr:
			if err := a.hear(size); err != nil {
				return 0, err
			}
		default:
			return 0, fmt.Errorf("the engine sent a piece of stream %d", header[0])
		}
	}
	n, err := a.r.Read(b[:min(len(b), a.left)])
	a.left -= n
	return n, err
}

// hear keeps the end of what comes on stderr.
func (a *attached) hear(size int64) error {
	text, err := io.ReadAll(io.LimitReader(a.r, min(size, maxSaid)))
	if err == nil {
		_, err = io.CopyN(io.Discard, a.r, size-int64(len(text)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, text...)
	a.said = a.said[max(0, len(a.said)-maxSaid):]
	return err
}

// Said is what came on stderr so far.
func (a *attached) Said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.TrimSpace(string(a.said))
}

func (a *attached) Write(b []byte) (int, error) { return a.conn.Write(b) }

// Close detaches; the container lives on.
func (a *attached) Close() error {
	var err error
	a.once.Do(func() { err = a.conn.Close() })
	return err
}
