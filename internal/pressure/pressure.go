// Package pressure tells whether the machine runs short of memory. It does nothing
// about it.
package pressure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Reading is what the kernel says of memory.
type Reading struct {
	Total, Available int64 // bytes
	// Stalled is the share of the last ten seconds, in percent, in which nothing
	// could go on for want of memory; negative where the kernel does not count it.
	Stalled float64
}

// The bounds, in percent. Stalls alone are no sign: one sandbox that meets its own
// limit makes them too. Where they are not counted, more has to be left.
const (
	stalledMuch    = 10
	leftIfStalled  = 20
	leftAlways     = 3
	leftUnmeasured = 8
)

// Short says whether somebody has to go.
func (r Reading) Short() bool {
	if r.Total <= 0 {
		return false
	}
	left := 100 * float64(r.Available) / float64(r.Total)
	switch {
	case left < leftAlways:
		return true
	case r.Stalled < 0:
		return left < leftUnmeasured
	}
	return r.Stalled >= stalledMuch && left < leftIfStalled
}

// String is the numbers, for an ending.
func (r Reading) String() string {
	text := fmt.Sprintf("%d MiB of %d MiB of memory are left on the machine", r.Available>>20, r.Total>>20)
	if r.Stalled >= 0 {
		text += fmt.Sprintf(", and %.0f %% of the time nothing could go on for want of it", r.Stalled)
	}
	return text
}

// Machine reads this machine.
func Machine() (Reading, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Reading{}, err
	}
	stalls, err := os.ReadFile("/proc/pressure/memory")
	if err != nil {
		stalls = nil // the kernel does not count them, or was told not to
	}
	return parse(string(text), string(stalls))
}

// parse reads /proc/meminfo and /proc/pressure/memory; the latter may be empty.
func parse(meminfo, stalls string) (Reading, error) {
	r := Reading{Stalled: -1}
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "MemTotal:":
			r.Total = n << 10
		case "MemAvailable:":
			r.Available = n << 10
		}
	}
	if r.Total <= 0 || r.Available <= 0 {
		return r, fmt.Errorf("/proc/meminfo has no MemTotal or no MemAvailable")
	}
	for line := range strings.Lines(stalls) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "full" {
			continue
		}
		if v, ok := strings.CutPrefix(f[1], "avg10="); ok {
			if n, err := strconv.ParseFloat(v, 64); err == nil {
				r.Stalled = n
			}
		}
	}
	return r, nil
}
