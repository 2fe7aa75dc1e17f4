// Package isolate is the host's side of isolation on Linux: it compiles the
// seccomp program, finds out which protections the kernel has, and copies mounts for a
// sandbox to be attached. It applies none of them; internal/isolate/setup does that inside.
package isolate
