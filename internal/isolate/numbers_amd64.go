package isolate

import "golang.org/x/sys/unix"

const (
	auditArch     = unix.AUDIT_ARCH_X86_64
	cloneFlagsArg = 0
	profileArch   = "SCMP_ARCH_X86_64"
)

var ownNumbers = map[string]uint32{
	"iopl":       unix.SYS_IOPL,
	"ioperm":     unix.SYS_IOPERM,
	"modify_ldt": unix.SYS_MODIFY_LDT,
	"uselib":     unix.SYS_USELIB,
}
