package attack

import (
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
)

// TestHeapOfNode has the heap of a real program exhausted: what V8 says is as it says it,
// with its stack after it, and without a control group having killed anything.
func TestHeapOfNode(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	captest.Need(t, "node", *b.shell("node -e 0").ending.ExitCode == 0, "node is not among the machine's programs")
	const grow = `node --max-old-space-size=20 -e 'const all = []; for (;;) all.push(new Array(1000).fill(Math.random()))'`
	for _, c := range []struct {
		name, shell, signal string
		cause               sandboxd.Cause
		code                int
	}{
		{"the command itself", "exec " + grow, "SIGABRT", sandboxd.CauseMemory, 134},
		{"a child, whose end is told", grow + "; exit $?", "", sandboxd.CauseMemory, 134},
		{"both streams in one", "exec " + grow + " 2>&1", "SIGABRT", sandboxd.CauseMemory, 134},
		{"a child, whose end is survived", grow + "; exit 1", "", sandboxd.CauseExit, 1},
		{"an abort of its own", `exec node -e 'console.error("JavaScript heap out of memory"); process.abort()'`, "SIGABRT", sandboxd.CauseSignal, 134},
	} {
		e := b.shell(c.shell).ending
		if e.Cause != c.cause || e.ExitCode == nil || *e.ExitCode != c.code || e.Signal != c.signal {
			t.Errorf("%s: %+v", c.name, e)
		}
		if heap := strings.Contains(e.Limit, "JavaScript heap") && strings.Contains(e.Remedy, "--max-old-space-size"); heap != (c.cause == sandboxd.CauseMemory) {
			t.Errorf("%s: limit %q, remedy %q", c.name, e.Limit, e.Remedy)
		}
	}
}
