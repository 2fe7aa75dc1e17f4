package spawn

import (
	"strings"

	"golang.org/x/sys/unix"
)

// outlive makes the kernel take commands before process 1 where both have one limit of
// memory. Whom it takes is said by a number that children inherit and that everybody may
// raise, and lower again to what it was given. Process 1 raises its own for as long as
// a fork takes. Of what is born then everything has the high number; that a program
// may lower its own costs only its sandbox.
type outlive struct {
	file int
	low  []byte // what process 1 was given
}

const preferenceFile = "/proc/self/oom_score_adj"

// first is the number of what the kernel takes before all else.
var first = []byte("1000")

// Preference opens what Outlive needs, which a program that is not dumpable cannot;
// -1 if there is none.
func Preference() int {
	fd, err := unix.Open(preferenceFile, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// Outlive has the kernel end commands for want of memory before it ends this process.
// Before the first Spawn. Where the kernel has no such preference, or does not let a
// process have its own back, nothing changes.
func (s *Spawner) Outlive(preference int) {
	if preference < 0 {
		return
	}
	var low [16]byte
	n, err := unix.Pread(preference, low[:], 0)
	if err != nil {
		return
	}
	o := &outlive{file: preference, low: []byte(strings.TrimSpace(string(low[:n])))}
	if o.write(first) != nil || o.write(o.low) != nil {
		return
	}
	s.outlive = o
}

func (o *outlive) write(text []byte) error {
	_, err := unix.Pwrite(o.file, text, 0)
	return err
}

// offer and withdraw are around a fork, under the spawner's lock. What fails leaves the
// usual order, which is no reason not to start a command.
func (o *outlive) offer() {
	if o != nil {
		_ = o.write(first)
	}
}

func (o *outlive) withdraw() {
	if o != nil {
		_ = o.write(o.low)
	}
}
