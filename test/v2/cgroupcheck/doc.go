// Package cgroupcheck holds the proof that a machine's cgroup v2 is a real one:
// its controllers, cgroup.kill, the memory limit, and a clone straight into a
// group. It has tests only; the virtual machine of test/v2 runs them first, so
// that a broken machine is not mistaken for a broken driver.
package cgroupcheck
