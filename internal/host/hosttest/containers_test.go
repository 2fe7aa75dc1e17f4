package hosttest_test

import (
	"errors"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/docker"
	"sandboxd/internal/host"
)

// endingOf waits for the end of a command.
func endingOf(t *testing.T, h sandboxd.Host, id, command string) sandboxd.Ending {
	t.Helper()
	stream, err := h.FollowCommand(t.Context(), id, command, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for {
		f, err := stream.Next(t.Context())
		if err != nil {
			t.Fatalf("no ending: %v", err)
		}
		if f.Ending != nil {
			return *f.Ending
		}
	}
}

// What can never start because of what a request names is not kept: the same key with
// the right request is next. What is there is not changed by a request for another.
func TestImagesThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	d := dockerDriver("runc")(t, dir)
	h := embeddedWith(t, dir, host.Config{MaxSandboxes: 1, Images: true, Drivers: []sandboxd.Driver{d}})
	image, err := d.(*docker.Driver).ChooseImage("", "")
	if err != nil {
		t.Fatal(err)
	}
	var e *sandboxd.Error
	for field, req := range map[string]sandboxd.OpenRequest{
		"image":       {Image: "sha256:0123456789012345678901234567890123456789012345678901234567890123"},
		"oci_runtime": {OCIRuntime: "no-such-runtime"},
	} {
		req.Key = "the-key"
		_, _, err := h.Open(t.Context(), req)
		if !errors.As(err, &e) || e.Class != sandboxd.ClassInvalid || e.Field != field {
			t.Fatalf("%s: %v", field, err)
		}
		if list, err := h.List(t.Context(), ""); err != nil || len(list) != 0 {
			t.Fatalf("kept: %+v, %v", list, err)
		}
	}
	sb, created, err := h.Open(t.Context(), sandboxd.OpenRequest{Key: "the-key", Image: image})
	if err != nil || !created {
		t.Fatalf("the right request: %v, %v", created, err)
	}
	for field, req := range map[string]sandboxd.OpenRequest{"image": {Image: "another:1"}, "oci_runtime": {OCIRuntime: "runsc"}} {
		req.Key = "the-key"
		_, _, err := h.Open(t.Context(), req)
		if !errors.As(err, &e) || e.Class != sandboxd.ClassConflict || e.Field != field {
			t.Errorf("another %s: %v", field, err)
		}
	}
	if again, created, err := h.Open(t.Context(), sandboxd.OpenRequest{Key: "the-key", Image: image}); err != nil || created || again.ID != sb.ID {
		t.Errorf("the same again: %v, %v", created, err)
	}
}

// Where a command has no cgroup of its own, the container's tells that the limit of
// processes was met; what fails before or after that just fails.
func TestProcessLimitOfContainers(t *testing.T) {
	for runtime, met := range map[string]sandboxd.Cause{"runc": sandboxd.CausePIDs, "runsc": sandboxd.CauseExit} {
		t.Run(runtime, func(t *testing.T) {
			h := embedded(t, 1, dockerDriver(runtime))
			sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Limits: sandboxd.Limits{PIDs: 16}})
			if err != nil {
				t.Fatal(err)
			}
			end := func(script string) sandboxd.Ending {
				t.Helper()
				cmd, _, err := h.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Shell: script})
				if err != nil {
					t.Fatal(err)
				}
				return endingOf(t, h, sb.ID, cmd.ID)
			}
			if got := end("exit 3"); got.Cause != sandboxd.CauseExit || *got.ExitCode != 3 {
				t.Errorf("before: %+v", got)
			}
			const bomb = "for i in $(seq 100); do sleep 0.2 & done; wait; exit 2"
			if got := end(bomb); got.Cause != met || met == sandboxd.CausePIDs && (got.Limit != "16 processes and threads, of the whole sandbox" || got.Remedy == "") {
				t.Errorf("who meets the limit: %+v", got)
			}
			// What the shell left behind ends soon; until then nothing can be started.
			got := end("exit 4")
			for got.Cause == sandboxd.CauseStartFailed {
				got = end("exit 4")
			}
			if got.Cause != sandboxd.CauseExit || *got.ExitCode != 4 {
				t.Errorf("after: %+v", got)
			}
		})
	}
}
