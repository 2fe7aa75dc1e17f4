// Package catalogue is the list of runtimes that a host offers: what an entry is, how
// the list is read and checked, which limits an entry has in force, and the entries
// that the program brings along. It is pure: it builds nothing (catalogue/recipe says
// what is to be built), starts nothing and asks nobody.
package catalogue

import (
	"slices"

	"sandboxd"
)

// Entry is one runtime: what is installed, within which limits, with which network.
// Exactly one of Image and BaseImage is set, except that a host may name the base of
// an entry that has neither. An entry that Load answered is valid.
type Entry struct {
	Alias       string // [a-z][a-z0-9-]*, at most 32
	Description string // one line, at most 200 characters

	Image     string // a finished image; nothing is built
	BaseImage string // the image that the rest is built upon

	// What is built, in this order, each a list as it was written.
	APTPackages   []string
	SetupCommands []string // each one line of /bin/sh, run by root
	Packages      []string // of Python, as pip takes them
	NPMPackages   []string // installed globally
	Env           map[string]string

	Tools    []string // commands that are on PATH; a build that lacks one fails
	Briefing []string // sentences about this runtime for whoever works in it

	Ceilings     Ceilings
	NeedsNetwork bool
	Root         Root
	Apps         bool // offered only where apps are, and never the default
}

// Root says what becomes of writes outside the workspace, HOME and /tmp.
type Root string

// The roots. Writable is the default of an entry: what is installed there lasts as
// long as the environment is kept.
const (
	RootWritable Root = "writable"
	RootReadonly Root = "readonly"
)

// Builds says whether the entry is built; otherwise its Image is used as it is.
func (e Entry) Builds() bool { return e.Image == "" }

// Ceilings are limits of a sandbox; a zero field is not stated.
type Ceilings struct {
	MemoryBytes int64
	SwapBytes   int64 // memory and swap together, as container engines count
	CPUs        float64
	CPUShares   int64
	PIDs        int64
	TmpBytes    int64
	OCIRuntime  string
}

// Limits are the ceilings that a sandbox's Limits have; zero fields as there.
func (c Ceilings) Limits() sandboxd.Limits {
	return sandboxd.Limits{MemoryBytes: c.MemoryBytes, SwapBytes: c.SwapBytes, CPUShares: c.CPUShares, CPUs: c.CPUs, PIDs: c.PIDs, TmpBytes: c.TmpBytes}
}

// Default is the entry that is used where none is named: the first that is not for
// apps. Entries that Load answered have one.
func Default(entries []Entry) Entry {
	return entries[max(0, slices.IndexFunc(entries, func(e Entry) bool { return !e.Apps }))]
}

// Find answers the entry of an alias.
func Find(entries []Entry, alias string) (Entry, bool) {
	i := slices.IndexFunc(entries, func(e Entry) bool { return e.Alias == alias })
	if i < 0 {
		return Entry{}, false
	}
	return entries[i], true
}
