package beneath

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// AddWatch makes an inotify instance watch the very directory that is open as
// dir, whatever its name leads to by now.
func AddWatch(inotify, dir int, mask uint32) (int, error) {
	return unix.InotifyAddWatch(inotify, "/proc/self/fd/"+strconv.Itoa(dir), mask|unix.IN_ONLYDIR)
}
