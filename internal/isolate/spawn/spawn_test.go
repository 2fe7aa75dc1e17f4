package spawn

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// Nobody reaps here: whoever is told that nothing started finds nothing.
func TestAProgramThatDoesNotStartLeavesNoProcess(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := New(nil, 0)
	for range 20 {
		_, err := s.Spawn(wire.Start{Argv: []string{program}, Cwd: "/"}, nil)
		if failed, ok := errors.AsType[*inside.SpawnError](err); !ok || failed.Code != 127 {
			t.Fatalf("%v", err)
		}
		if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != unix.ECHILD {
			t.Fatalf("a child is left: %v", err)
		}
	}
}
