package sessions

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandboxd/internal/captest"
)

// buildRow is the one that needs runtimes which have to be built, and so a host of its own.
const buildRow = "c15"

// listed are the rows that testdata/rows has for a driver and a version of the client.
func listed(t *testing.T, driver, version string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "rows"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == driver && words[1] == version {
			return words[2:]
		}
	}
	t.Fatalf("testdata/rows has no line for %s and version %s of the client", driver, version)
	return nil
}

// passedRow is what conftest.py says of a row that passed as a whole.
var passedRow = regexp.MustCompile(`(?m)^ROW (\S+)(.*)$`)

// ran says of each row over which restarts it passed.
func ran(report string) map[string]string {
	all := map[string]string{}
	for _, m := range passedRow.FindAllStringSubmatch(report, -1) {
		all[m[1]] = strings.TrimSpace(m[2])
	}
	return all
}

// judge answers what is wrong with the rows that ran where others were wanted.
func judge(want []string, got map[string]string) (wrong []string) {
	for _, row := range want {
		if got[row] != "kill term" {
			wrong = append(wrong, fmt.Sprintf("row %s did not pass with a restart by SIGTERM and by SIGKILL in its middle, but with %q", row, got[row]))
		}
	}
	for row := range got {
		if !slices.Contains(want, row) {
			wrong = append(wrong, fmt.Sprintf("row %s ran and is not in testdata/rows", row))
		}
	}
	return wrong
}

// conclude judges the rows of a report and records those that ran, which CI asks for.
func conclude(t *testing.T, driver, version, report string, build bool) {
	t.Helper()
	want := slices.DeleteFunc(listed(t, driver, version), func(row string) bool { return (row == buildRow) != build })
	wrong := judge(want, ran(report))
	for _, text := range wrong {
		t.Error(text)
	}
	for _, row := range want {
		if len(wrong) == 0 {
			captest.Need(t, fmt.Sprintf("ws-%s/%s/%s", row, driver, version), true, "")
		}
	}
}

func TestARowThatDidNotRunIsMissed(t *testing.T) {
	got := ran("1 passed\nROW c1 kill term\nROW c2 term\nROW c3\nROWS c4 kill term\n")
	if fmt.Sprint(got) != "map[c1:kill term c2:term c3:]" {
		t.Errorf("%v", got)
	}
	for _, c := range []struct {
		want  []string
		wrong int
	}{
		{[]string{"c1", "c2", "c3"}, 2}, {[]string{"c1", "c2", "c3", "c4"}, 3}, {[]string{"c1", "c2"}, 2},
	} {
		if wrong := judge(c.want, got); len(wrong) != c.wrong {
			t.Errorf("%q of %v: %q", c.want, got, wrong)
		}
	}
	if wrong := judge([]string{"c1"}, map[string]string{"c1": "kill term"}); len(wrong) != 0 {
		t.Errorf("%q", wrong)
	}
}
