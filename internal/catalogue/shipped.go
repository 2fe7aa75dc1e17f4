package catalogue

import (
	_ "embed"
	"slices"
)

//go:embed runtimes.json
var shippedText []byte

// Shipped are the entries that the program brings along, those for apps last.
func Shipped() []Entry {
	entries, err := Load(shippedText)
	if err != nil {
		panic("catalogue: the shipped runtimes are wrong: " + err.Error())
	}
	return entries
}

// Offered are the entries that a host offers: without those for apps where it has
// none.
func Offered(entries []Entry, apps bool) []Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Apps && !apps })
}

func builtin(name string) (Entry, bool) { return Find(Shipped(), name) }

func builtinNames() []string {
	var names []string
	for _, e := range Shipped() {
		names = append(names, e.Alias)
	}
	return names
}
