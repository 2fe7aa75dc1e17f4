package meta

import (
	"strings"
	"testing"
)

// floors is the order of the packages, lowest first: a package may import those
// of its own row's `may` list and of rows below it that the list names. A prefix
// ending in "/..." is a package and everything under it.
//
// Why a table and not levels by number: two mechanisms stand side by side and
// must not know each other, however low they are.
var floors = []struct {
	packages string
	may      []string
	why      string
}{
	{".", nil, "the contracts: everything shares them, so they know nothing"},
	{"client", []string{"."}, "what the API cannot do, the product cannot do"},
	{"internal/captest", nil, "for tests everywhere"},
	{"internal/leaktest", nil, "for tests everywhere"},
	{"internal/failpoint", nil, "a mark that any durable step may carry"},
	{"internal/pace", nil, "the processors are one for everybody"},
	{"internal/clock", []string{"."}, "time that is kept enters here"},
	{"internal/guest/wire", nil, "shared by both ends of the link"},
	{"internal/relay", nil, "runs inside every sandbox too"},
	{"internal/guest/inside", []string{"internal/guest/wire", "internal/relay"}, "runs inside every sandbox: small, and independent of the host's code"},
	{"internal/isolate/setup", nil, "between clone and exec nothing of the host may be in reach"},
	{"internal/isolate/prober/...", []string{"internal/isolate/prober/act"}, "a program of the tests and the selftest, run inside"},
	{"internal/isolate/spawn", []string{"internal/guest/wire", "internal/guest/inside", "internal/isolate/setup"}, "starts commands inside a sandbox"},
	{"cmd/init", []string{"internal/guest/wire", "internal/guest/inside", "internal/isolate/setup", "internal/isolate/spawn"}, "as internal/guest/inside"},
	{"internal/guest", []string{".", "internal/failpoint", "internal/guest/wire"}, "the host's end of the link trusts nothing and needs nothing"},
	{"internal/guest/...", []string{".", "internal/failpoint", "internal/captest", "internal/guest/..."}, "suites of the link"},
	{"internal/isolate", []string{"."}, "mechanism: does not know who uses it"},
	{"internal/catalogue/...", []string{".", "internal/catalogue/..."}, "mechanism: pure, knows no engine and no host"},
	{"internal/egress/...", []string{".", "internal/relay"}, "mechanism: knows streams, not whose"},
	{"internal/journal/...", []string{".", "internal/failpoint", "internal/journal/..."}, "mechanism"},
	{"internal/workspace/workspacetest", []string{".", "internal/captest"}, "the suite of Files knows the contract only"},
	{"internal/workspace/...", []string{".", "internal/failpoint", "internal/pace", "internal/workspace/..."}, "mechanism"},
	{"internal/image", []string{".", "internal/failpoint", "internal/workspace/beneath"}, "mechanism: unpacks what nobody has looked at, by the helper that may"},
	{"internal/admission", []string{"."}, "counts, and knows no sandbox"},
	{"internal/pressure", nil, "reads two files of the kernel"},
	{"internal/policy", []string{"."}, "keeps what others obey"},
	{"internal/store/...", []string{".", "internal/failpoint", "internal/store/..."}, "mechanism"},
	{"internal/builder", []string{".", "internal/catalogue/recipe"}, "mechanism: builds what it is told to, and knows no sandbox"},
	{"internal/runtimes", []string{".", "internal/builder", "internal/catalogue", "internal/catalogue/recipe"}, "joins a catalogue and a builder; hosts know it by its contract"},
	{"internal/driver/pool", nil, "decides how many of what are kept ready, and not what they are"},
	{"internal/driver/process/...", []string{".", "internal/failpoint", "internal/isolate/...", "internal/guest/wire", "internal/guest/inside", "internal/driver/initbin", "internal/driver/limits", "internal/driver/names", "internal/driver/pool", "internal/driver/proc", "internal/driver/queue", "internal/image", "internal/driver/process/..."}, "a driver makes environments; it runs no command and opens no file of a workspace"},
	{"internal/driver/docker/dockertest", []string{"internal/captest", "internal/isolate"}, "where tests find an engine"},
	{"internal/driver/docker/...", []string{".", "internal/failpoint", "internal/isolate", "internal/isolate/setup", "internal/driver/initbin", "internal/driver/limits", "internal/driver/names", "internal/driver/pool", "internal/driver/proc", "internal/driver/queue", "internal/image", "internal/driver/docker/..."}, "as internal/driver/process"},
	{"internal/driver/initbin", nil, "the init is every driver's"},
	{"internal/driver/limits", []string{"."}, "what a limit is to a kernel, for every driver that has one keep it"},
	{"internal/driver/names", []string{"."}, "which environment is whose, for every driver that has a pool"},
	{"internal/driver/proc", nil, "reads /proc"},
	{"internal/driver/queue", []string{"."}, "of events, for every driver"},
	{"internal/driver/fake/...", []string{".", "internal/guest/...", "internal/driver/fake/..."}, "speaks the real protocol in process"},
	{"internal/driver/drivertest/...", []string{".", "internal/captest", "internal/guest/...", "internal/driver/drivertest/..."}, "the suite of every driver"},
	{"internal/host/hosttest/...", []string{".", "internal/captest", "internal/host/hosttest/..."}, "the suite of both hosts knows the contract only"},
	{"internal/host/...", []string{".", "internal/failpoint", "internal/pace", "internal/clock", "internal/admission", "internal/policy", "internal/pressure", "internal/guest", "internal/guest/wire", "internal/egress", "internal/image", "internal/journal/...", "internal/workspace/...", "internal/host/..."}, "the role asks for drivers and stores by interface"},
	{"internal/excerpt", nil, "both ends of a text, for every face that shows one"},
	{"internal/pdftext", []string{"."}, "mechanism: parses in a process of its own"},
	{"internal/api/...", []string{".", "internal/excerpt", "internal/relay", "internal/api/..."}, "a face decodes, asks, encodes"},
	{"internal/follow", []string{"."}, "what a client does with any Host"},
	{"internal/selftest", []string{".", "internal/follow", "internal/isolate/prober/act"}, "judges what holds through any Host, and knows no driver"},
	{"internal/mcp/...", []string{".", "internal/excerpt", "internal/follow", "internal/mcp/..."}, "a face"},
	{"internal/app/datadir", []string{"."}, "where a client and a server find the same secrets"},
	{"internal/cli/...", []string{".", "client", "internal/follow", "internal/relay", "internal/mcp/...", "internal/app/datadir", "internal/cli/..."}, "client commands reach a server by its API only"},
	{"internal/app/...", []string{"..."}, "composes a role from parts"},
	{"cmd/sandboxd", []string{"internal/app/...", "internal/cli/...", "."}, "parses, calls app, maps errors to exit codes"},
	{"examples/...", []string{".", "client"}, "what a user of the client may import"},
	{"bench/...", []string{".", "client", "bench/..."}, "measures the shipped program from outside"},
	{"internal/meta", nil, "tests only"},
	{"test/...", []string{"..."}, "tests of the whole"},
}

// matches says whether a package is meant by a row's pattern.
func matches(pattern, pkg string) bool {
	if pattern == "..." {
		return true
	}
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == base || strings.HasPrefix(pkg, base+"/")
	}
	return pkg == pattern
}

// longest answers the row that means pkg most closely.
func longest(pkg string) int {
	best, size := -1, -1
	for i, f := range floors {
		if matches(f.packages, pkg) {
			exact := len(strings.TrimSuffix(f.packages, "/...")) * 2
			if f.packages == pkg {
				exact++
			}
			if exact > size {
				best, size = i, exact
			}
		}
	}
	return best
}

func TestImportsGoDown(t *testing.T) {
	for _, p := range allPackages(t) {
		row := longest(p.path())
		if row < 0 {
			t.Errorf("%s stands on no floor: add a row to the table", p.path())
			continue
		}
		for _, imported := range p.Imports {
			if imported != "sandboxd" && !strings.HasPrefix(imported, "sandboxd/") {
				continue
			}
			allowed := false
			for _, pattern := range floors[row].may {
				allowed = allowed || matches(pattern, below(imported))
			}
			if !allowed {
				t.Errorf("%s imports %s: not below it (%s)", p.path(), below(imported), floors[row].why)
			}
		}
	}
}

// outside lists the only modules that a package may import beside the standard
// library and this one.
var outside = map[string][]string{
	".":                      nil,
	"client":                 {"github.com/coder/websocket"},
	"cmd/init":               {"golang.org/x/sys/unix"},
	"internal/relay":         {"golang.org/x/sys/unix"},
	"internal/guest/wire":    {"golang.org/x/sys/unix"},
	"internal/guest/inside":  {"golang.org/x/sys/unix"},
	"internal/isolate/setup": {"golang.org/x/sys/unix"},
	"internal/isolate/spawn": {"golang.org/x/sys/unix"},
	"internal/captest":       nil,
}

func TestSmallProgramsImportLittle(t *testing.T) {
	found := 0
	for _, p := range allPackages(t) {
		may, ruled := outside[p.path()]
		if !ruled {
			continue
		}
		found++
		for _, imported := range p.Imports {
			first, _, _ := strings.Cut(imported, "/")
			if !strings.Contains(first, ".") {
				if imported == "testing" && p.path() != "internal/captest" {
					t.Errorf("%s imports testing", p.path())
				}
				continue
			}
			allowed := false
			for _, m := range may {
				allowed = allowed || imported == m
			}
			if !allowed {
				t.Errorf("%s imports %s; it may import %v and the standard library", p.path(), imported, may)
			}
		}
	}
	if found != len(outside) {
		t.Errorf("%d of the %d ruled packages exist", found, len(outside))
	}
}

func TestForbiddenPackageNames(t *testing.T) {
	for _, p := range allPackages(t) {
		for _, word := range []string{"util", "utils", "helper", "helpers", "common", "manager", "misc", "base"} {
			if p.Name == word || strings.HasSuffix(p.path(), "/"+word) {
				t.Errorf("%s: a package is named by its idea", p.path())
			}
		}
	}
}
