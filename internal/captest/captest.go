// Package captest lets a test say which capability of the machine it needs, and
// makes the answer visible: a test that cannot run is skipped by that name, a
// capability that CI expects turns the skip into a failure, and each capability
// that ran is recorded.
//
// SANDBOXD_TEST_EXPECT is a space-separated list of capabilities that must be
// there. SANDBOXD_TEST_CAPS names a file to which those that ran are appended.
package captest

import (
	"os"
	"strings"
	"sync"
	"testing"
)

var (
	mu   sync.Mutex
	seen = map[string]bool{}
)

// Need skips t unless have, loudly and by name; see the package comment. why
// says what was missing.
func Need(t testing.TB, capability string, have bool, why string) {
	t.Helper()
	if !have {
		for _, want := range strings.Fields(os.Getenv("SANDBOXD_TEST_EXPECT")) {
			if want == capability {
				t.Fatalf("capability %s is expected here and missing: %s", capability, why)
			}
		}
		t.Skipf("SKIPPED for want of capability %s: %s", capability, why)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen[capability] {
		return
	}
	seen[capability] = true
	if name := os.Getenv("SANDBOXD_TEST_CAPS"); name != "" {
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatalf("capability record: %v", err)
		}
		defer f.Close()
		if _, err := f.WriteString(capability + "\n"); err != nil {
			t.Fatalf("capability record: %v", err)
		}
	}
}

// Root needs to run as root.
func Root(t testing.TB) {
	t.Helper()
	Need(t, "root", os.Geteuid() == 0, "not running as root")
}
