package setup

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Stage one of a pooled init stops where the sandbox begins to matter: all that can
// be built without it is there, nothing is given up yet, and nothing of any sandbox
// has been near. What comes after the orders is what comes for every init, by the
// same steps: process 1 itself is executed when it is known whose it is.

// await says that everything is built, waits for the orders, and does with them what
// a specification without Pooled would have had done before. The host gone is an
// error, so that what waits ends with its server.
func await(spec *Spec) error {
	if _, err := unix.Write(FDSpec, Report{}.Encode()); err != nil {
		return err
	}
	var orders Orders
	trees, err := receive(make([]byte, 4096), make([]byte, unix.CmsgSpace(4*2)), &orders)
	if err != nil {
		return err
	}
	spec.UID, spec.Second.OpenFiles, spec.Second.Nonce = orders.UID, orders.OpenFiles, orders.Nonce
	if err := attach(trees); err != nil {
		return err
	}
	if err := write("/etc", accounts(orders.UID)); err != nil {
		return err
	}
	return seal()
}

// attach puts the two directories where the sandbox sees them.
func attach(trees []int) error {
	if len(trees) != 2 {
		return fmt.Errorf("%d directories came instead of 2", len(trees))
	}
	for i, to := range []string{"/workspace", "/home/sandbox"} {
		if err := unix.MoveMount(trees[i], "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("%s: move_mount: %w", to, err)
		}
		unix.Close(trees[i])
	}
	return nil
}
