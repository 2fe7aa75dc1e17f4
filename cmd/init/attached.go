package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/inside"
	"sandboxd/internal/isolate/setup"
	"sandboxd/internal/isolate/spawn"
)

// stdio is the stream that a container engine passes on. It is one for the life of
// the container: each host makes a new link on it, and when it ends no host can
// come any more.
type stdio struct{ in, out *os.File }

func (s stdio) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s stdio) Write(b []byte) (int, error) { return s.out.Write(b) }

// Close keeps the descriptors: their numbers must not become another file's.
func (s stdio) Close() error { return nil }

// serveAttached is process 1 of a container. preference is spawn.Preference's.
func serveAttached(preference int) error {
	conn := stdio{in: poller(0), out: poller(1)}
	var spec setup.Attached
	if err := setup.ReadMessage(conn, &spec); err != nil {
		return fmt.Errorf("read the specification: %w", err)
	}
	step, err := setup.Settle(spec)
	spawner := spawn.New(nil, uint64(spec.OpenFiles))
	if err == nil {
		if err = spawner.Alone(0, 0); err != nil { // the container's limits are all there are
			step = "marks"
		}
	}
	report := setup.Report{Step: step}
	if err != nil {
		report.Error = err.Error()
	}
	if werr := setup.WriteMessage(conn, report); werr != nil || err != nil {
		return errors.Join(err, werr)
	}
	spawner.Outlive(preference)
	spawner.HaveThreads()
	go spawner.Reap()
	return inside.New(spawner, inside.Options{Nonce: spec.Nonce}).Serve(conn)
}

// poller makes reading and writing wait without a thread where the descriptor can.
func poller(fd int) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "stdio")
}
