package catalogue

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"

	"sandboxd"
)

// written is an entry as either form has it, in the order of the documentation.
type written struct {
	Alias         string            `json:"alias,omitempty"`
	Description   string            `json:"description,omitempty"`
	Image         string            `json:"image,omitempty"`
	Runtime       *writtenRuntime   `json:"runtime,omitempty"` // of the object's form
	BaseImage     string            `json:"base_image,omitempty"`
	APTPackages   []string          `json:"apt_packages,omitempty"`
	SetupCommands []string          `json:"setup_commands,omitempty"`
	Packages      []string          `json:"packages,omitempty"`
	NPMPackages   []string          `json:"npm_packages,omitempty"`
	Env           map[string]string `json:"env_vars,omitempty"`
	Tools         []string          `json:"tools,omitempty"`
	Briefing      []string          `json:"briefing,omitempty"`
	MemLimit      string            `json:"mem_limit,omitempty"`
	SwapLimit     string            `json:"memswap_limit,omitempty"`
	CPUs          float64           `json:"cpus,omitempty"`
	CPUShares     int64             `json:"cpu_shares,omitempty"`
	PIDs          int64             `json:"pids_limit,omitempty"`
	TmpSize       string            `json:"tmpfs_size,omitempty"`
	OCIRuntime    string            `json:"oci_runtime,omitempty"`
	NeedsNetwork  bool              `json:"needs_network,omitempty"`
	NetworkMode   string            `json:"network_mode,omitempty"` // of the object's form
	Root          Root              `json:"root,omitempty"`
	Apps          bool              `json:"apps,omitempty"`
}

type writtenRuntime struct {
	Name          string            `json:"name"`
	Image         string            `json:"image,omitempty"`
	BaseImage     string            `json:"base_image,omitempty"`
	APTPackages   []string          `json:"apt_packages,omitempty"`
	SetupCommands []string          `json:"setup_commands,omitempty"`
	Packages      []string          `json:"packages,omitempty"`
	NPMPackages   []string          `json:"npm_packages,omitempty"`
	Env           map[string]string `json:"env_vars,omitempty"`
}

func write(e Entry) written {
	c := e.Ceilings
	w := written{Alias: e.Alias, Description: e.Description, Image: e.Image, BaseImage: e.BaseImage, APTPackages: e.APTPackages,
		SetupCommands: e.SetupCommands, Packages: e.Packages, NPMPackages: e.NPMPackages, Env: e.Env, Tools: e.Tools, Briefing: e.Briefing,
		MemLimit: sizeText(c.MemoryBytes), SwapLimit: sizeText(c.SwapBytes), CPUs: c.CPUs, CPUShares: c.CPUShares, PIDs: c.PIDs,
		TmpSize: sizeText(c.TmpBytes), OCIRuntime: c.OCIRuntime, NeedsNetwork: e.NeedsNetwork, Root: e.Root, Apps: e.Apps}
	if w.Root == RootWritable {
		w.Root = ""
	}
	return w
}

func sizeText(n int64) string {
	if n == 0 {
		return ""
	}
	return FormatSize(n)
}

// File is the form that a catalogue has in a file. Loading it answers entries equal to
// these, with one exception: it cannot say that an entry has no base, and says fallback
// instead.
func File(entries []Entry, fallback string) []byte {
	all := make([]written, len(entries))
	for i, e := range entries {
		all[i] = write(e)
		if e.Image == "" && e.BaseImage == "" {
			all[i].BaseImage = fallback
		}
		if e.Description == "" {
			all[i].Description = e.Alias
		}
	}
	return append(marshal(all, "  "), '\n')
}

// Object is the form that a catalogue has in SANDBOXD_RUNTIMES: one line, in the
// entries' order. Loading it answers entries equal to these.
func Object(entries []Entry) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range entries {
		if i > 0 {
			b.WriteByte(',')
		}
		w := write(e)
		w.Alias = ""
		if e.NeedsNetwork {
			w.NeedsNetwork, w.NetworkMode = false, string(sandboxd.NetworkBridge)
		}
		if e.Builds() || len(e.Env) > 0 {
			w.Runtime = &writtenRuntime{Name: e.Alias, Image: w.Image, BaseImage: w.BaseImage, APTPackages: w.APTPackages,
				SetupCommands: w.SetupCommands, Packages: w.Packages, NPMPackages: w.NPMPackages, Env: w.Env}
			w.Image, w.BaseImage, w.APTPackages, w.SetupCommands, w.Packages, w.NPMPackages, w.Env = "", "", nil, nil, nil, nil, nil
		}
		b.WriteString(jsonText(e.Alias))
		b.WriteByte(':')
		b.Write(marshal(w, ""))
	}
	b.WriteByte('}')
	return b.Bytes()
}

func marshal(v any, indent string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		panic("catalogue: an entry has no JSON form: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Compose is Object as the value of a variable in a compose file: `$` doubled, because
// compose replaces variables there, and the whole a single-quoted string of YAML.
func Compose(entries []Entry) string {
	value := strings.ReplaceAll(string(Object(entries)), "$", "$$")
	return "'" + strings.ReplaceAll(value, "'", "''") + "'"
}

// Variable is the name under which a compose file holds its copy of the catalogue.
const Variable = "SANDBOXD_RUNTIMES"

var composeLine = regexp.MustCompile(`(?m)^([ \t]+` + Variable + `:).*$`)

// Refresh is a compose file whose copies of the catalogue are made anew.
// ClassInvalid when it has none.
func Refresh(file string, text []byte, entries []Entry) ([]byte, error) {
	if !composeLine.Match(text) {
		return nil, sandboxd.Errorf(sandboxd.ClassInvalid, "%s has no line `%s: ...` to write the runtimes to", file, Variable)
	}
	return composeLine.ReplaceAllFunc(text, func(line []byte) []byte {
		return append(composeLine.FindSubmatch(line)[1], " "+Compose(entries)...)
	}), nil
}

// Drift is nil when a compose file's copies of the catalogue are those of the entries;
// else an error that names the file and the command that makes them anew.
func Drift(file string, text []byte, entries []Entry) error {
	want, err := Refresh(file, text, entries)
	if err == nil && !bytes.Equal(text, want) {
		err = sandboxd.Errorf(sandboxd.ClassConflict, "%s has another copy of the runtimes than the catalogue: run `make sandbox-runtimes`", file)
	}
	return err
}
