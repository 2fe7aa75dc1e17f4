// Package isolate is the host's side of isolation on Linux: it compiles the
// seccomp program and finds out which protections the kernel has. It applies
// none of them; internal/isolate/setup does that inside.
package isolate
