package inside

import (
	"io"
	"net"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/wire"
)

// messages is a connection that carries descriptors, as *net.UnixConn.
type messages interface {
	ReadMsgUnix(b, oob []byte) (n, oobn, flags int, addr *net.UnixAddr, err error)
}

// maxQueued bounds the descriptors that came and belong to no start yet.
const maxQueued = 4 * wire.MaxGroups

// descriptors reads a connection and keeps the descriptors that come with it, in
// order, for the starts that announce them. For the goroutine of Serve only.
type descriptors struct {
	r      io.Reader
	msgs   messages // nil where the connection carries none
	oob    []byte
	queued []int
}

func newDescriptors(conn io.Reader) *descriptors {
	d := &descriptors{r: conn}
	if m, ok := conn.(messages); ok {
		d.msgs = m
		d.oob = make([]byte, unix.CmsgSpace(4*wire.MaxGroups))
	}
	return d
}

// Read implements io.Reader.
func (d *descriptors) Read(b []byte) (int, error) {
	if d.msgs == nil {
		return d.r.Read(b)
	}
	n, oobn, _, _, err := d.msgs.ReadMsgUnix(b, d.oob)
	if oobn > 0 {
		if qerr := d.queue(d.oob[:oobn]); qerr != nil {
			return 0, qerr
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (d *descriptors) queue(oob []byte) error {
	parts, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for _, part := range parts {
		fds, err := unix.ParseUnixRights(&part)
		if err != nil {
			continue // not descriptors
		}
		d.queued = append(d.queued, fds...)
	}
	if len(d.queued) > maxQueued {
		return violation("%d descriptors without a start", len(d.queued))
	}
	return nil
}

// take answers the next n descriptors, which are the caller's to close.
func (d *descriptors) take(n int) ([]int, error) {
	if n > len(d.queued) {
		return nil, violation("a start announces %d descriptors, %d came", n, len(d.queued))
	}
	fds := d.queued[:n:n]
	d.queued = d.queued[n:]
	return fds, nil
}

func (d *descriptors) drop() {
	closeAll(d.queued)
	d.queued = nil
}

func (d *descriptors) close() { d.drop() }

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
