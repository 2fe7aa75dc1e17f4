package isolate

import "golang.org/x/sys/unix"

var profileArchs = []string{"SCMP_ARCH_AARCH64"}

const (
	auditArch     = unix.AUDIT_ARCH_AARCH64
	cloneFlagsArg = 0
)

var ownNumbers = map[string]uint32{}
