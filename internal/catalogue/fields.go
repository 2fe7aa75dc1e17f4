package catalogue

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// decoding is one entry that is being read.
type decoding struct {
	*loading
	name  string // as problems name it
	entry Entry
	file  bool // it has the form of a file, which asks for more
	// It is no object, or its runtime is not known: what it lacks is no further mistake.
	unread bool
}

func (d *decoding) problem(field, format string, args ...any) {
	d.problems = append(d.problems, Problem{Entry: d.name, Field: field, Text: fmt.Sprintf(format, args...)})
}

// array reads the form that files have.
func (d *decoding) array(raw json.RawMessage) {
	d.file = true
	d.each(raw, "", func(m member) bool {
		e := &d.entry
		switch m.name {
		case "alias":
			d.read(m, "a string", &e.Alias)
		case "image":
			d.read(m, "a string", &e.Image)
		case "needs_network":
			d.read(m, "true or false", &e.NeedsNetwork)
		default:
			return d.shared(m, m.name) || d.built(m, m.name)
		}
		return true
	})
}

// object reads the form that the variable has: a string, or an object whose `runtime`
// says what is built. What is nested overrides nothing: the entry's own fields win.
func (d *decoding) object(raw json.RawMessage) {
	var short string
	if json.Unmarshal(raw, &short) == nil && len(raw) > 0 && raw[0] == '"' {
		if name, ok := strings.CutPrefix(short, "@"); ok {
			d.builtin("", name)
		} else if d.entry.Image = short; short == "" {
			d.problem("image", "it is empty")
		}
		return
	}
	var fields []member
	said := map[string]bool{}
	d.each(raw, "", func(m member) bool {
		fields = append(fields, m)
		said[m.name] = string(m.value) != "null"
		return true
	})
	if said["image"] == said["runtime"] {
		d.problem("image", "give either image or runtime")
	}
	for _, m := range fields {
		if m.name == "runtime" && said["runtime"] {
			d.runtime(m.value)
		}
	}
	for _, m := range fields {
		e := &d.entry
		switch m.name {
		case "runtime":
		case "image":
			if d.read(m, "a string", &e.Image); said["image"] && e.Image == "" {
				d.problem("image", "it is empty")
			}
		case "network_mode":
			d.network(m)
		default:
			if !d.shared(m, m.name) {
				d.problem(m.name, "there is no such field")
			}
		}
	}
}

// runtime reads the nested object of the variable's form, or the name of an entry that
// the program brings along.
func (d *decoding) runtime(raw json.RawMessage) {
	if raw[0] == '"' {
		var name string
		d.read(member{"runtime", raw}, "a string", &name)
		d.builtin("runtime", strings.TrimPrefix(name, "@"))
		return
	}
	manager, packages := "pip", []string(nil)
	named := false
	d.each(raw, "runtime", func(m member) bool {
		field := "runtime." + m.name
		in := member{field, m.value}
		switch m.name {
		case "name":
			var name string
			d.read(in, "a string", &name)
			named = name != ""
		case "description":
			d.read(in, "a string", &d.entry.Description)
		case "image":
			d.read(in, "a string", &d.entry.Image)
		case "packages":
			d.read(in, "a list of strings", &packages)
		case "package_manager":
			d.read(in, "a string", &manager)
		case "work_dir":
			// The work directory is the service's, whatever an entry says.
			var dir string
			if d.read(in, "a string", &dir) && !strings.HasPrefix(dir, "/") {
				d.problem(field, "it must begin with /")
			}
		case "cache_image":
			keep := true
			if d.read(in, "true or false", &keep); !keep {
				d.problem(field, "images are kept as long as what they are built from is the same")
			}
		case "run_as_uid":
			if string(m.value) != "null" {
				d.problem(field, "the user of built images is the service's to choose")
			}
		default:
			return d.built(m, field)
		}
		return true
	})
	if !named {
		d.problem("runtime.name", "it is missing")
	}
	to, ok := map[string]*[]string{"pip": &d.entry.Packages, "npm": &d.entry.NPMPackages, "apt": &d.entry.APTPackages}[manager]
	if !ok {
		d.problem("runtime.package_manager", "it must be pip, npm or apt; for others write setup_commands")
		return
	}
	*to = append(*to, packages...)
}

func (d *decoding) builtin(field, name string) {
	e, ok := builtin(name)
	if !ok {
		d.problem(field, "there is no built-in runtime %q; there are %s", name, strings.Join(builtinNames(), ", "))
		d.unread = true
		return
	}
	e.Alias = d.entry.Alias
	d.entry = e
}

func (d *decoding) network(m member) {
	var mode string
	if !d.read(m, "a string", &mode) {
		return
	}
	switch mode {
	case "bridge", "proxy":
		d.entry.NeedsNetwork = true
	case "none", "":
		d.entry.NeedsNetwork = false
	default:
		d.problem(m.name, "it must be none or bridge")
	}
}

// shared reads what both forms have.
func (d *decoding) shared(m member, field string) bool {
	e, in := &d.entry, member{field, m.value}
	switch m.name {
	case "description":
		d.read(in, "a string", &e.Description)
	case "briefing":
		d.read(in, "a list of strings", &e.Briefing)
	case "tools":
		d.read(in, "a list of strings", &e.Tools)
	case "apps":
		d.read(in, "true or false", &e.Apps)
	case "root":
		var root string
		if d.read(in, "a string", &root) {
			e.Root = Root(root)
		}
	case "mem_limit":
		d.size(in, &e.Ceilings.MemoryBytes)
	case "memswap_limit":
		d.size(in, &e.Ceilings.SwapBytes)
	case "tmpfs_size":
		d.size(in, &e.Ceilings.TmpBytes)
	case "cpus":
		d.positive(in, &e.Ceilings.CPUs)
	case "cpu_shares":
		d.count(in, &e.Ceilings.CPUShares)
	case "pids_limit":
		d.count(in, &e.Ceilings.PIDs)
	case "oci_runtime":
		d.read(in, "a string", &e.Ceilings.OCIRuntime)
	default:
		return false
	}
	return true
}

// built reads what says how an image is built.
func (d *decoding) built(m member, field string) bool {
	e, in := &d.entry, member{field, m.value}
	switch m.name {
	case "base_image":
		if d.read(in, "a string", &e.BaseImage) && e.BaseImage == "" {
			d.problem(field, "it is empty")
		}
	case "packages":
		d.read(in, "a list of strings", &e.Packages)
	case "npm_packages":
		d.read(in, "a list of strings", &e.NPMPackages)
	case "apt_packages":
		d.read(in, "a list of strings", &e.APTPackages)
	case "setup_commands":
		d.read(in, "a list of strings", &e.SetupCommands)
	case "env_vars":
		if string(m.value) == "null" {
			break
		}
		env, err := members(m.value)
		if err != nil {
			d.problem(field, "an object of strings is expected: %v", err)
			break
		}
		for _, v := range env {
			var value string
			if d.read(member{field + "." + v.name, v.value}, "a string", &value) {
				if e.Env == nil {
					e.Env = map[string]string{}
				}
				e.Env[v.name] = value
			}
		}
	default:
		return false
	}
	return true
}

// each hands over the members of an object; take answers false for an unknown one.
func (d *decoding) each(raw json.RawMessage, field string, take func(member) bool) {
	all, err := members(raw)
	if err != nil {
		d.problem(field, "an object is expected: %v", err)
		d.unread = true
		return
	}
	for _, m := range all {
		if !take(m) {
			d.problem(strings.TrimPrefix(field+"."+m.name, "."), "there is no such field")
		}
	}
}

// read decodes a value; null is as if the field were not there. It answers whether
// there was a value of the right kind.
func (d *decoding) read(m member, what string, to any) bool {
	if string(m.value) == "null" {
		return false
	}
	if err := json.Unmarshal(m.value, to); err != nil {
		d.problem(m.name, "%s is expected", what)
		return false
	}
	return true
}

func (d *decoding) positive(m member, to *float64) {
	if d.read(m, "a number", to) && *to <= 0 {
		d.problem(m.name, "it must be more than 0")
	}
}

func (d *decoding) count(m member, to *int64) {
	if d.read(m, "a whole number", to) && *to <= 0 {
		d.problem(m.name, "it must be more than 0")
	}
}

func (d *decoding) size(m member, to *int64) {
	var text string
	if !d.read(m, "a size as 512m or 2g, in quotes,", &text) {
		return
	}
	n, ok := ParseSize(text)
	if !ok {
		d.problem(m.name, "it must be a size as 512m or 2g")
		return
	}
	*to = n
}

var sizeUnits = []struct {
	letter string
	bytes  int64
}{{"g", 1 << 30}, {"m", 1 << 20}, {"k", 1 << 10}, {"b", 1}, {"", 1}}

// ParseSize reads a size as container engines write them: digits and one of b, k, m
// and g, or nothing for bytes. Zero is no size.
func ParseSize(text string) (bytes int64, ok bool) {
	text = strings.ToLower(text)
	for _, u := range sizeUnits {
		digits, is := strings.CutSuffix(text, u.letter)
		if !is {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n == 0 || int64(n) > (1<<62)/u.bytes {
			return 0, false
		}
		return int64(n) * u.bytes, true
	}
	return 0, false
}

// FormatSize is the inverse of ParseSize, with the largest unit that is exact.
func FormatSize(bytes int64) string {
	for _, u := range sizeUnits {
		if bytes%u.bytes == 0 {
			if u.letter == "b" {
				u.letter = ""
			}
			return strconv.FormatInt(bytes/u.bytes, 10) + u.letter
		}
	}
	return ""
}
