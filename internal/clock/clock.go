// Package clock is where a host learns what time it is, for every time that is
// kept on disk and later makes something happen. It is not for durations within
// one process: those are the runtime's, which are monotonic.
//
// A wall clock can be set, backward and forward, while a host is up or down. So a
// kept moment has the boot of the machine and the time since that boot beside the
// wall time: in the same boot that decides, and only over a restart of the machine
// the wall clock.
package clock

import (
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// Moment is a point in time as it is kept.
type Moment = sandboxd.Moment

// Clock answers the present moment. It is safe for concurrent use.
type Clock func() Moment

// Machine is the clock of this machine.
func Machine() Moment {
	m := Moment{Wall: time.Now()}
	var since unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &since); err == nil {
		m.Boot = sandboxd.BootTime{ID: bootID(), Since: time.Duration(since.Nano())}
	}
	return m
}

// bootID names this boot; empty, which equals no boot, if the kernel does not say.
var bootID = sync.OnceValue(func() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
})

// Elapsed is the time from one moment to a later one: by the time since boot if
// both are of one boot, else by the wall clock. It is never negative.
func Elapsed(from, to Moment) time.Duration {
	if from.Boot.ID != "" && from.Boot.ID == to.Boot.ID {
		return max(0, to.Boot.Since-from.Boot.Since)
	}
	// Round strips the readings of the runtime's clock, which one of them may lack.
	return max(0, to.Wall.Round(0).Sub(from.Wall.Round(0)))
}

// Leap is an overdue time that no ordinary absence explains: the wall clock was
// set forward, or the machine slept. What is overdue for longer is ended one
// sandbox at a time, so that a wrong clock ends one and not all before it is seen.
const Leap = time.Hour
