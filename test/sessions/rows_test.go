package sessions

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandboxd/internal/captest"
)

// rows are those of the matrix that each generation of the client can ask: the first has
// no suite of its own (C4) and no way to cancel a command (C5); the second has no
// RemoteSandbox (C1).
var rows = map[string][]string{
	"generation1": {"c1", "c2", "c3", "c6", "c7", "c8", "c9", "c10", "c11", "c12", "c13", "c14"},
	"generation2": {"c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "c10", "c11", "c12", "c13", "c14"},
}

// buildRows need a driver that builds images.
var buildRows = []string{"c15"}

// passedRow is a test that passed: its row, and the restart in its middle.
var passedRow = regexp.MustCompile(`(?m)^PASSED test_\w+\.py::(?:Test|test_)([cC]\d+)(?:\w*(OverARestart)::)?\S*?(?:\[.*?(term|kill)\])?$`)

// ran says of each row over which restarts it passed. The rules of the client's own suite
// take the two ends of a host in turn.
func ran(report string) map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for _, m := range passedRow.FindAllStringSubmatch(report, -1) {
		row := strings.ToLower(m[1])
		if all[row] == nil {
			all[row] = map[string]bool{}
		}
		switch {
		case m[2] != "":
			all[row]["term"], all[row]["kill"] = true, true
		case m[3] != "":
			all[row][m[3]] = true
		}
	}
	return all
}

// judge fails for each row that did not run over both restarts, and records those that did.
func judge(t *testing.T, want []string, driver, version, report string) {
	t.Helper()
	got := ran(report)
	for _, row := range want {
		if !got[row]["term"] || !got[row]["kill"] {
			t.Errorf("row WS-%s did not run with a restart by SIGTERM and by SIGKILL in its middle, only %v", strings.ToUpper(row), slices.Collect(maps.Keys(got[row])))
			continue
		}
		captest.Need(t, fmt.Sprintf("ws-%s/%s/%s", row, driver, version), true, "")
	}
}

func TestRowsAreFoundInAReport(t *testing.T) {
	got := ran(`PASSED test_generation1.py::test_c1_files[kill]
PASSED test_generation2.py::TestC4Conformance::test_x
PASSED test_generation2.py::TestC4ConformanceOverARestart::test_x
FAILED test_generation2.py::test_c5_y[term]
SKIPPED [1] test_generation2.py::test_c6_y[term]
PASSED test_generation2.py::test_c7_z[asyncio-term]
PASSED test_generation2.py::test_c14_p99
PASSED test_generation2.py::test_trees[term]`)
	want := map[string]map[string]bool{"c1": {"kill": true}, "c4": {"term": true, "kill": true}, "c7": {"term": true}, "c14": {}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}
