package hosttest_test

import (
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
)

// A program that fills HOME is ended, with what it left running; who removes the files is
// not, and then there is room again.
func TestAFullHomeOfProcesses(t *testing.T) {
	captest.Root(t)
	fillHome(t, embedded(t, 1, processDriver))
}

func TestAFullHomeOfContainers(t *testing.T) {
	dockertest.Find(t, "runc")
	fillHome(t, embedded(t, 1, dockerDriver("runc")))
}

func fillHome(t *testing.T, h sandboxd.Host) {
	t.Helper()
	sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Limits: sandboxd.Limits{HomeBytes: 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	if sb.HomeLimit != "measured" || sb.Limits.HomeBytes != 8<<20 {
		t.Errorf("%+v", sb)
	}
	end := func(script string) sandboxd.Ending {
		t.Helper()
		cmd, _, err := h.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Shell: script})
		if err != nil {
			t.Fatal(err)
		}
		return endingOf(t, h, sb.ID, cmd.ID)
	}
	// With names as deep as a link and a mode can hide them, and holes that are no bytes.
	got := end("mkdir -p ~/a/b && truncate -s 1G ~/a/holes && cd ~/a/b && (head -c 20M /dev/zero >full; chmod 0 ..; sleep 1000) & sleep 1000")
	if got.Cause != sandboxd.CauseDisk || got.Limit != "8388608 bytes of HOME" || got.PeakBytes < 8<<20 || got.PeakBytes > 24<<20 || got.PeakSource != "home" || got.Remedy == "" {
		t.Errorf("who fills HOME: %+v", got)
	}
	if got := end("chmod 700 ~/a && sleep 2 && rm -r ~/a && sleep 2 && exit 7"); got.Cause != sandboxd.CauseExit || *got.ExitCode != 7 {
		t.Errorf("who removes files: %+v", got)
	}
	if got := end("head -c 4M /dev/zero >~/f && sleep 2 && exit 8"); got.Cause != sandboxd.CauseExit || *got.ExitCode != 8 {
		t.Errorf("with room again: %+v", got)
	}
}
