// Package limits says what the limits of a sandbox mean to a kernel, and when those of one
// that runs may be lowered: the same for every driver. It puts none in force.
package limits

import (
	"context"
	"math"

	"sandboxd"
)

const (
	// Period is the kernel's usual one, in microseconds.
	Period = 100_000
	// UsualShares is the weight of a sandbox that none was given.
	UsualShares = 1024

	leastQuota = 1000 // the kernel takes no less
)

// Quota is the processor time of a Period, in microseconds. 0 is no limit.
func Quota(cpus float64) int64 {
	if cpus <= 0 {
		return 0
	}
	return max(int64(math.Round(cpus*Period)), leastQuota)
}

// Fits is asked before the limits of an environment are changed from was to wanted, as
// version 2 of cgroups makes room by killing. ClassConflict: more memory is in use than
// there is to be; ClassUnsupported: nobody counts it, so no limit holds either.
func Fits(ctx context.Context, d sandboxd.Sampler, id string, was, wanted sandboxd.Limits) error {
	if wanted.MemoryBytes >= was.MemoryBytes {
		return nil
	}
	s, err := d.Sample(ctx, id)
	switch {
	case err != nil:
		return err
	case s.MemoryBytes == nil:
		return sandboxd.Errorf(sandboxd.ClassUnsupported, "nothing keeps the sandbox below a limit of memory")
	case *s.MemoryBytes > wanted.MemoryBytes:
		return InUse(*s.MemoryBytes)
	}
	return nil
}

// InUse says that there would be less memory than a sandbox uses.
func InUse(bytes int64) error {
	return sandboxd.Errorf(sandboxd.ClassConflict, "the sandbox uses at least %d bytes of memory, which is more than the new limit", bytes).
		WithHint("the limit holds from its next start on; stop it to have it now")
}
