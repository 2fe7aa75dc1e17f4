package process

import (
	"encoding/json"
	"errors"
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
)

// A handle of another boot says for certain what ended the environment.
func TestAdoptAfterRestartOfTheMachine(t *testing.T) {
	captest.Root(t)
	d := openDriver(t, t.TempDir())
	defer d.Close()
	raw, err := json.Marshal(handle{PID: 12345, Start: 1, Boot: "another boot"})
	if err != nil {
		t.Fatal(err)
	}
	err = d.Adopt(t.Context(), sandboxd.NewID(), raw)
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Class != sandboxd.ClassGone || e.Ending == nil || e.Ending.Cause != sandboxd.CauseHostRestart {
		t.Errorf("adopt: %+v", err)
	}
}
