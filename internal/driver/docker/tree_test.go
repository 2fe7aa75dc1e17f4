package docker

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/guest/wire"
)

// Without cgroups the init ends what a command started: children, those that left
// the session, and orphans; where the kernel has marks also what left all by which
// it could be known.
func TestTreesEnd(t *testing.T) {
	const deserter = `(env -i setsid /bin/sh -c 'exec /bin/sleep 98766' &) ; `
	const script = `sleep 98761 & setsid sleep 98762 & (setsid sleep 98763 & sh -c 'sleep 98764 & sleep 98765' &) ; echo up; wait`
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			b := openBox(t, dockertest.Find(t, runtime), nil)
			shell, asleep := script, 6
			if runtime == "runc" {
				shell, asleep = deserter+script, 7
			}
			if r := b.Run("bash", "-c", "ulimit -x && (ulimit -x 7 || prlimit --locks=7:7) && echo changed"); strings.Contains(r.Stdout, "changed") {
				t.Errorf("a command has changed its mark: %+v", r)
			} else if runtime == "runc" && strings.HasPrefix(r.Stdout, "unlimited") {
				t.Errorf("a command has no mark: %+v", r)
			}
			sleeping := func() int {
				r := b.Run("/bin/sh", "-c", `cat /proc/[0-9]*/cmdline | tr '\0' '\n'`)
				return strings.Count("\n"+r.Stdout, "\n9876")
			}
			other, err := b.Start(wire.Start{Argv: []string{"sleep", "98760"}, Env: append(drivertest.Environment(), wire.MarkVariable+"=other")})
			if err != nil {
				t.Fatal(err)
			}
			id, err := b.Start(wire.Start{Argv: []string{"/bin/sh", "-c", shell}, Env: append(drivertest.Environment(), wire.MarkVariable+"=mine")})
			if err != nil {
				t.Fatal(err)
			}
			until(t, "all sleep", func() bool { return sleeping() == asleep })
			if err := b.Link.End(t.Context(), id, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if r := b.Wait(id); r.Exit.Signal != 9 {
				t.Errorf("the leader: %+v", r.Exit)
			}
			until(t, "only the other command's is left", func() bool { return sleeping() == 1 })
			if err := b.Link.End(t.Context(), other, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			b.Wait(other)
		})
	}
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(drivertest.Patience); !ok(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("does not happen: %s", what)
		}
	}
}
