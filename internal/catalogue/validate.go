package catalogue

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/distribution/reference"

	"sandboxd"
)

// The bounds of one entry.
const (
	maxAlias       = 32
	maxDescription = 200
	maxLine        = 8 << 10 // a setup command, the value of a variable
	maxSentence    = 500
	maxItems       = 500
	maxName        = 200 // a package with its version
	maxReference   = 255
)

// What names look like. No letter of these means anything to a shell in single quotes,
// none begins with '-', and none has a space: a package cannot be an option, a path or
// an address.
var (
	aliasShape   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	envShape     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	toolShape    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)
	ociShape     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	pythonShape  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(\[[A-Za-z0-9._-]+(,[A-Za-z0-9._-]+)*\])?((==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]+(,(==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]+)*)?$`)
	npmShape     = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*(@[\^~]?[A-Za-z0-9][A-Za-z0-9._+-]*)?$`)
	aptShape     = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9][A-Za-z0-9.+:~-]*)?$`)
	decidedNames = []string{"PATH", "HOME", "VIRTUAL_ENV", "NPM_CONFIG_PREFIX"}
)

// validate checks what reading did not.
func (d *decoding) validate() {
	e := &d.entry
	switch {
	case e.Alias == "":
		d.problem("alias", "it is missing")
	case !aliasShape.MatchString(e.Alias) || len(e.Alias) > maxAlias:
		d.problem("alias", "it must be a lower-case letter and then letters, digits and -, at most %d", maxAlias)
	case e.Alias == sandboxd.RuntimeMachine:
		d.problem("alias", "%s is the machine's own runtime", e.Alias)
	}
	if d.file && e.Description == "" {
		d.problem("description", "it is missing")
	}
	d.line("description", e.Description, maxDescription)
	d.whence()
	for _, list := range []struct {
		field string
		items []string
		shape *regexp.Regexp
	}{
		{"packages", e.Packages, pythonShape}, {"npm_packages", e.NPMPackages, npmShape},
		{"apt_packages", e.APTPackages, aptShape}, {"tools", e.Tools, toolShape},
	} {
		d.list(list.field, list.items)
		for _, item := range list.items {
			if !list.shape.MatchString(item) || len(item) > maxName {
				d.problem(list.field, "invalid name: %q", item)
			}
		}
	}
	d.list("setup_commands", e.SetupCommands)
	for _, c := range e.SetupCommands {
		if strings.TrimSpace(c) == "" {
			d.problem("setup_commands", "a command is empty")
		}
		d.line("setup_commands", c, maxLine)
	}
	d.list("briefing", e.Briefing)
	for _, s := range e.Briefing {
		if strings.TrimSpace(s) == "" {
			d.problem("briefing", "a sentence is empty")
		}
		d.line("briefing", s, maxSentence)
	}
	d.env()
	d.ceilings()
	if e.Root != RootWritable && e.Root != RootReadonly {
		d.problem("root", "it must be %s or %s", RootWritable, RootReadonly)
	}
}

// whence checks where the entry's image comes from.
func (d *decoding) whence() {
	e := &d.entry
	switch {
	case e.Image != "" && e.BaseImage != "":
		d.problem("image", "image and base_image exclude each other")
	case d.file && e.Image == "" && e.BaseImage == "":
		d.problem("base_image", "give either image or base_image")
	}
	d.reference("image", e.Image)
	d.reference("base_image", e.BaseImage)
	if e.Image == "" {
		return
	}
	for _, list := range []struct {
		field string
		items []string
	}{{"setup_commands", e.SetupCommands}, {"packages", e.Packages}, {"npm_packages", e.NPMPackages}, {"apt_packages", e.APTPackages}} {
		if len(list.items) > 0 {
			d.problem(list.field, "nothing is installed into a finished image; name it as base_image")
		}
	}
}

func (d *decoding) reference(field, name string) {
	if name == "" {
		return
	}
	if _, err := reference.ParseNormalizedNamed(name); err != nil || len(name) > maxReference {
		d.problem(field, "it is no name of an image")
	}
}

func (d *decoding) env() {
	if len(d.entry.Env) > maxItems {
		d.problem("env_vars", "more than %d", maxItems)
	}
	for _, name := range slices.Sorted(maps.Keys(d.entry.Env)) {
		switch {
		case !envShape.MatchString(name):
			d.problem("env_vars", "%q is no name of a variable", name)
		case slices.Contains(decidedNames, name):
			d.problem("env_vars."+name, "it follows from where things are installed and cannot be set")
		default:
			d.line("env_vars."+name, d.entry.Env[name], maxLine)
		}
	}
}

// ceilings are bounded as those of a request are.
func (d *decoding) ceilings() {
	c := d.entry.Ceilings
	for _, row := range []struct {
		field        string
		v, low, high int64
	}{
		{"mem_limit", c.MemoryBytes, 16 << 20, 1 << 44}, {"memswap_limit", c.SwapBytes, 16 << 20, 1 << 45},
		{"tmpfs_size", c.TmpBytes, 64 << 10, 1 << 44}, {"pids_limit", c.PIDs, 8, 1 << 20}, {"cpu_shares", c.CPUShares, 2, 1 << 18},
	} {
		if row.v > 0 && (row.v < row.low || row.v > row.high) {
			d.problem(row.field, "it must be between %s and %s", FormatSize(row.low), FormatSize(row.high))
		}
	}
	if c.CPUs > 0 && (c.CPUs < 0.1 || c.CPUs > 1024) {
		d.problem("cpus", "it must be between 0.1 and 1024")
	}
	if c.SwapBytes > 0 && c.SwapBytes < c.MemoryBytes {
		d.problem("memswap_limit", "it counts memory and swap together and must not be below mem_limit")
	}
	if c.OCIRuntime != "" && (!ociShape.MatchString(c.OCIRuntime) || len(c.OCIRuntime) > 64) {
		d.problem("oci_runtime", "it is no name of an OCI runtime")
	}
}

func (d *decoding) list(field string, items []string) {
	if len(items) > maxItems {
		d.problem(field, "more than %d", maxItems)
	}
}

// line checks that a text is one line of printable characters.
func (d *decoding) line(field, text string, most int) {
	switch {
	case strings.ContainsAny(text, "\n\r"):
		d.problem(field, "it contains a newline")
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }):
		d.problem(field, "it contains a control character")
	}
	if utf8.RuneCountInString(text) > most {
		d.problem(field, "it has more than %d characters", most)
	}
}
