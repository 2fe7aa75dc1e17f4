// Package v2 runs suites on cgroup v2: it boots a kernel in user mode over the
// machine's own file system, read-only, and runs static test binaries inside as
// root. A kernel in user mode needs no virtualisation and changes nothing outside. The
// package has tests only and is not a measure of speed; the kernel inside has no
// Landlock and no pressure counters.
package v2
