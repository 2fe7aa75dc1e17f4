package pool

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// MachineBusy is an Options.Busy: no core is idle. The kernel counts who runs or could,
// this thread among them.
func MachineBusy() bool {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text))
	if len(fields) < 4 {
		return false
	}
	var running, all int
	if _, err := fmt.Sscanf(fields[3], "%d/%d", &running, &all); err != nil {
		return false
	}
	return running > runtime.NumCPU()
}
