package isolate

import "golang.org/x/sys/unix"

const (
	auditArch     = unix.AUDIT_ARCH_AARCH64
	cloneFlagsArg = 0
	profileArch   = "SCMP_ARCH_AARCH64"
)

var ownNumbers = map[string]uint32{}
