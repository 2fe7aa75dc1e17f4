package setup

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An init that nobody has orders for does not wait for ever.
func TestWaitsForInput(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if err := awaitInput(int32(pipe[0]), 10*time.Millisecond); err == nil {
		t.Error("waited for nothing and found something")
	}
	if _, err := unix.Write(pipe[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := awaitInput(int32(pipe[0]), time.Minute); err != nil {
		t.Error(err)
	}
}
