package isolate

import "golang.org/x/sys/unix"

// profileArchs has x32 too: what is left out ends a thread, where the program of
// Seccomp answers.
var profileArchs = []string{"SCMP_ARCH_X86_64", "SCMP_ARCH_X32"}

const (
	auditArch     = unix.AUDIT_ARCH_X86_64
	cloneFlagsArg = 0
)

var ownNumbers = map[string]uint32{
	"iopl":       unix.SYS_IOPL,
	"ioperm":     unix.SYS_IOPERM,
	"modify_ldt": unix.SYS_MODIFY_LDT,
	"uselib":     unix.SYS_USELIB,
}
