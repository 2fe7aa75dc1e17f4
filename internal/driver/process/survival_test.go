package process

import (
	"strings"
	"testing"

	"sandboxd/internal/captest"
)

// The report tells whether the end of the server's control group would end sandboxes,
// by looking at one.
func TestWhatASupervisorWouldEnd(t *testing.T) {
	captest.Root(t)
	need(t)
	h := harness(t)
	d := h.Open(t)
	defer d.Close()
	fp := d.Fingerprint(t.Context())
	mine, err := hierarchies("self")
	if err != nil {
		t.Fatal(err)
	}
	_, named := mine["systemd"]
	for _, line := range fp.Level {
		if line.Name != "own group" {
			continue
		}
		// On version 1 sandboxes have groups of their own in the controllers' hierarchies only.
		if line.OK == named || fp.Capabilities.OwnGroup != line.OK {
			t.Errorf("with the hierarchies %v: %+v, capability %v", mine, line, fp.Capabilities.OwnGroup)
		}
		if !line.OK && !strings.Contains(line.Why, "KillMode=process") {
			t.Errorf("%+v", line)
		}
		return
	}
	t.Error("nothing is said")
}
