package selftest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sandboxd"
)

// Verdict is the outcome of one check.
type Verdict string

// OK: as it must be. Weak: it holds, with one layer of defence less. Fail: it does
// not hold.
const (
	OK   Verdict = "ok"
	Weak Verdict = "WEAK"
	Fail Verdict = "FAIL"
)

// Line is one check: a mechanism, what was tried against it, and what happened.
type Line struct {
	Section   string  `json:"section"`   // as "network"
	Mechanism string  `json:"mechanism"` // as "seccomp"
	Tried     string  `json:"tried"`
	Got       string  `json:"got"`
	Verdict   Verdict `json:"verdict"`
	Why       string  `json:"why"` // why it matters
	// Attempts are the single answers that the verdict comes from, where there are
	// several: name to outcome.
	Attempts map[string]string `json:"attempts,omitempty"`
}

// Report is all that was found out about one driver on this machine.
type Report struct {
	Version string `json:"version"`
	Driver  string `json:"driver"`
	// OCIRuntime is how containers are isolated, where sandboxes are some.
	OCIRuntime string `json:"oci_runtime,omitempty"`
	Machine    string `json:"machine"` // kernel and processor
	Green      bool   `json:"green"`   // no line is FAIL
	Lines      []Line `json:"lines"`
}

// Failed names the mechanisms that have a line that is FAIL, each once, in order.
func (r Report) Failed() []string {
	var names []string
	for _, l := range r.Lines {
		if l.Verdict == Fail && !slices.Contains(names, l.Mechanism) {
			names = append(names, l.Mechanism)
		}
	}
	return names
}

// conclude is the last line for a person.
func (r Report) conclude() string {
	count, attempts := map[Verdict]int{}, 0
	for _, l := range r.Lines {
		count[l.Verdict]++
		attempts += max(1, len(l.Attempts))
	}
	text := fmt.Sprintf("%d checks of %d attempts: %d ok, %d weak, %d failed", len(r.Lines), attempts, count[OK], count[Weak], count[Fail])
	if r.Green {
		return "green: " + text
	}
	return "red: " + text + ": " + strings.Join(r.Failed(), ", ")
}

// JSON writes the report for programs.
func (r Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// level names what sandboxes are isolated by.
func (r Report) level() string {
	if r.OCIRuntime == "" {
		return r.Driver
	}
	return r.Driver + " with " + r.OCIRuntime
}

// Text writes the report for a person at a terminal.
func (r Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "sandboxd %s, driver %s, %s\n", r.Version, r.level(), r.Machine)
	section := ""
	for _, l := range r.Lines {
		if l.Section != section {
			section = l.Section
			fmt.Fprintf(&b, "\n%s\n", section)
		}
		fmt.Fprintf(&b, "  %-5s %-18s %s: %s\n", l.Verdict, l.Mechanism, l.Tried, l.Got)
		if l.Why != "" {
			fmt.Fprintf(&b, "  %-5s %-18s   %s\n", "", "", l.Why)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.conclude())
	_, err := io.WriteString(w, b.String())
	return err
}

// Markdown writes the report as a page of the documentation.
func (r Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# What holds a sandbox in\n\nWritten by `sandboxd selftest --markdown` on the development machine: driver `%s`, %s.\n"+
		"Run `sandboxd selftest` on yours; it opens sandboxes of its own and needs no server.\n\nThe result here is %s.\n", r.level(), kernel.FindString(r.Machine), r.conclude())
	section := ""
	for _, l := range r.Lines {
		if l.Section != section {
			section = l.Section
			fmt.Fprintf(&b, "\n## %s\n\n| mechanism | what was tried | what happened | | why it matters |\n|---|---|---|---|---|\n", strings.ToUpper(section[:1])+section[1:])
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", cell(l.Mechanism), cell(l.Tried), cell(l.Got), l.Verdict, cell(l.Why))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// kernel is its name and number, without what a distribution adds.
var kernel = regexp.MustCompile(`^\S+ [0-9.]+`)

func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", "\\|"), "\n", " ")
}

// uses say why one wants what a machine has; the driver says why one misses what it
// has not.
var uses = map[string]string{
	"root":           "only root can give each sandbox a user of its own",
	"namespaces":     "each keeps a part of the machine out of sight",
	"cgroups":        "they bound what a sandbox takes, and find all that a command started",
	"seccomp":        "it takes away the kernel's calls that honest programs do not make",
	"no_new_privs":   "no program gives more rights than its caller has",
	"user":           "what belongs to one sandbox is closed to every other",
	"user namespace": "without root it gives the set-up power over the sandbox's own namespaces and nothing else",
	"pidfd":          "a process is held by a descriptor, so that no other one is meant by its number",
	"openat2":        "no link in a workspace leads the host out of it",
	"engine":         "it makes the containers",
	"runtime":        "it isolates them",
	"limits":         "they bound what a sandbox takes",
	"gVisor":         "a kernel of its own answers a sandbox in the machine's place",
	"live-restore":   "sandboxes outlive a restart of the engine",
	"process limit":  "who meets it is told so",
	"mount_setattr":  "a whole tree of mounts becomes read-only in one step",
	"landlock":       "it repeats by other means what mounts and user say",
}

// level says what the driver's own look at the machine found.
func level(lines []sandboxd.LevelLine) []Line {
	var found []Line
	for _, l := range lines {
		line := Line{Section: "machine", Mechanism: l.Name, Tried: "looked for", Got: l.Detail, Verdict: OK, Why: l.Why}
		switch {
		case l.OK:
			line.Why = uses[l.Name]
		case l.Needed:
			line.Verdict = Fail
		default:
			line.Verdict = Weak
		}
		found = append(found, line)
	}
	return found
}

// bad lists the attempts of which wrong is true, for people.
func bad(attempts map[string]string, wrong func(name, got string) bool) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(attempts)) {
		if wrong(name, attempts[name]) {
			list = append(list, fmt.Sprintf("%s: %s", name, attempts[name]))
		}
	}
	return strings.Join(list, "; ")
}
