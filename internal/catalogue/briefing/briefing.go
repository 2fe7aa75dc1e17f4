// Package briefing writes what a model is told about the runtime that it works in: what
// is installed, what is not, whether there is a network, and how to go about it. It is
// composed from the catalogue, so that it says what is there. It asks nobody: what a
// machine lacks it is told.
package briefing

import (
	"regexp"
	"slices"
	"strings"

	"sandboxd"
	"sandboxd/internal/catalogue"
)

// Here is what a briefing says beside the entry.
type Here struct {
	WorkDir string // empty: sandboxd.WorkDir
	// Missing are the tools and packages of the entry that this host does not have, as
	// one that uses the machine's own; nil on one that built the entry's image.
	Missing []string
	// Network is what the sandbox has; empty: what the entry asks for, on a host that has
	// a bridge.
	Network sandboxd.NetworkMode
	// Fixed says that nothing can be installed, although the entry is writable.
	Fixed bool
}

// For is the briefing of an alias, or "" for one that these entries do not have: about
// what one does not know one says nothing.
func For(entries []catalogue.Entry, alias string, here Here) string {
	e, ok := catalogue.Find(entries, alias)
	if !ok {
		return ""
	}
	if here.WorkDir == "" {
		here.WorkDir = sandboxd.WorkDir
	}
	b := &brief{entry: e, here: here}
	b.what()
	b.reach()
	b.rules()
	if b.has("lit") || b.has("pdftotext") {
		b.documents()
	}
	return strings.Join(b.paragraphs, "\n\n") + "\n"
}

// brief is one that is being written.
type brief struct {
	entry      catalogue.Entry
	here       Here
	paragraphs []string
}

func (b *brief) paragraph(sentences ...string) {
	b.paragraphs = append(b.paragraphs, strings.Join(slices.DeleteFunc(sentences, func(s string) bool { return s == "" }), " "))
}

func (b *brief) points(head string, points ...string) {
	b.paragraphs = append(b.paragraphs, head+"\n- "+strings.Join(points, "\n- "))
}

// has says whether the entry has a tool here.
func (b *brief) has(tool string) bool { return slices.Contains(b.entry.Tools, tool) && !b.lacks(tool) }

func (b *brief) lacks(name string) bool { return slices.Contains(b.here.Missing, name) }

// there are those of a list that are here, by their bare names, sorted.
func (b *brief) there(list []string) []string {
	var names []string
	for _, item := range list {
		if name := bare(item); !b.lacks(name) && !b.lacks(item) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var version = regexp.MustCompile(`^(@?[^@=<>~!\[]+)`)

// bare is a package without its version and extras.
func bare(item string) string { return version.FindString(item) }

func (b *brief) what() {
	lines := []string{"Commands run in a sandbox of the runtime " + b.entry.Alias + "."}
	for _, list := range []struct {
		head  string
		names []string
	}{
		{"Tools on PATH: ", b.there(b.entry.Tools)}, {"Python packages: ", b.there(b.entry.Packages)}, {"Node packages: ", b.there(b.entry.NPMPackages)},
	} {
		if len(list.names) > 0 {
			lines = append(lines, list.head+strings.Join(list.names, ", ")+".")
		}
	}
	if len(b.here.Missing) > 0 {
		missing := slices.Sorted(slices.Values(b.here.Missing))
		lines = append(lines, "Not on this host, although the runtime has them elsewhere: "+strings.Join(missing, ", ")+".")
	}
	b.paragraph(lines...)
	var own []string
	for _, s := range b.entry.Briefing {
		if !b.about(s) {
			own = append(own, s)
		}
	}
	if len(own) > 0 {
		b.paragraph(own...)
	}
}

var quoted = regexp.MustCompile("`([^` ]+)[^`]*`")

// about says whether a sentence begins with a tool that is missing here: then it
// would be advice to use what is not there.
func (b *brief) about(sentence string) bool {
	first := quoted.FindStringSubmatchIndex(sentence)
	return first != nil && first[0] == 0 && b.lacks(sentence[first[2]:first[3]])
}

func (b *brief) reach() {
	mode := b.here.Network
	if mode == "" {
		mode = sandboxd.NetworkNone
		if b.entry.NeedsNetwork {
			mode = sandboxd.NetworkBridge
		}
	}
	network := "There is no network, not even names are resolved: work with the files that are here."
	switch mode {
	case sandboxd.NetworkNone:
	case sandboxd.NetworkProxy:
		network = "The network is reached through the HTTP proxy that the environment names; it may refuse an address and then says why."
	default:
		network = "There is a network."
	}
	install := "Nothing can be installed outside the work directory and HOME."
	switch {
	case b.here.Fixed || mode == sandboxd.NetworkNone:
	case b.entry.Root == catalogue.RootWritable:
		install = "More can be installed with pip, uv pip or npm -g as you are, without sudo; it stays until the sandbox is taken down, so write down what a project needs."
	case b.entry.Builds():
		install += " `pip install` and `npm i -g` install into HOME as you are, without sudo; `uv pip install` does so into an environment that `uv venv` makes in the directory of a project."
	}
	b.paragraph(network, install)
}

func (b *brief) rules() {
	dir := b.here.WorkDir
	home := "`~` is outside of it: nobody sees what lies there, and it goes with the sandbox."
	if strings.HasPrefix(dir, sandboxd.HomeDir+"/") {
		home = "What lies elsewhere in `~` nobody sees, and it goes with the sandbox."
	}
	b.points("How commands work here:",
		"They are run by the POSIX shell /bin/sh, which is not Bash. It does not expand braces: `mkdir -p {sources,inbox,notes}` makes one directory with that odd name; write `mkdir -p sources inbox notes`.",
		"Each command is a process of its own. A `cd`, a variable or an activated environment does not outlast it: put what belongs together into one command.",
		"Everything that is to be kept or seen by others belongs below "+dir+". "+home,
		"Look at the exit status and the error text, and at the file itself, before you say that something worked.")
}

func (b *brief) documents() {
	extract := "pdftotext -layout report.pdf report.txt"
	if b.has("lit") {
		extract = "lit parse -q -o report.txt report.pdf"
	}
	search := "grep -n"
	if b.has("rg") {
		search = "rg -n"
	}
	points := []string{
		"Extract a large document once into a file (`" + extract + "`), and work on that file.",
		"Find the place with `" + search + " 'words' report.txt`, then read a window of lines: `sed -n '400,460p' report.txt`. Never print all of a large file: it fills the conversation and the middle is cut out.",
	}
	if b.has("lit") {
		points = append(points,
			"Recognising text in scanned pages takes seconds a page, and a command has a time limit: a scan of hundreds of pages does not end within it. Do it in parts, as `lit parse -q --target-pages 1-20 scan.pdf`, and keep each part.",
			"`--no-ocr` is quick and succeeds on a scan too, with nothing in its output but page marks. Nearly empty text means pages that are pictures, and not an empty document.")
	} else {
		points = append(points, "Nearly empty text from pdftotext means pages that are pictures, and not an empty document; nothing here recognises text in pictures.")
	}
	b.points("How to read large files and documents:", points...)
}
