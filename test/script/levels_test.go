package script

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// row is a check on the page: the mechanism, and what was tried.
var row = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \| .* \| (?:ok|WEAK|FAIL) \| .*\|$`)

// TestThePageOfLevelsIsCurrent: docs/security-levels.md has the checks that the
// program has now. What they find is the machine's; `make levels` writes it.
func TestThePageOfLevelsIsCurrent(t *testing.T) {
	captest.Root(t)
	page, err := os.ReadFile(filepath.Join(server.Repository(), "docs/security-levels.md"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(server.Program("sandboxd"), "selftest", "--markdown")
	cmd.Env = environ(t.TempDir(), "")
	now, err := cmd.Output()
	if err != nil {
		t.Fatalf("selftest: %v\n%s", err, now)
	}
	checks := func(text []byte) (list []string) {
		for _, m := range row.FindAllSubmatch(text, -1) {
			// A check of Landlock is there where the kernel has it, and what is said of a
			// container in one.
			if name := string(m[1]); name != "landlock" && name != "own machine" {
				list = append(list, name+": "+string(m[2]))
			}
		}
		return list
	}
	if have, want := checks(page), checks(now); len(want) < 40 || !slices.Equal(have, want) {
		t.Errorf("the page has\n%q\nthe program\n%q\nrun make levels", have, want)
	}
}
