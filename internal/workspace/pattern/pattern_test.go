package pattern

import (
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"time"

	"sandboxd"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no string // paths, separated by spaces
	}{
		{"*", "a a.go .hidden", "a/b"},
		{"*.go", "a.go .go", "a.gox a/b.go"},
		{"**/*.go", "a.go a/b.go a/b/c.go", "a.goo"},
		{"**/*", "a a/b a/b/c", ""},
		{"**", "a a/b", ""},
		{"a/**", "a/b a/b/c", "a b/a"},
		{"a/**/z", "a/z a/b/z a/b/c/z", "az a/bz"},
		{"a**z", "az abz", "a/z"},
		{"?.txt", "a.txt é.txt", ".txt ab.txt"},
		{"[a-c]x", "ax cx", "dx /x"},
		{"[!a-c]x", "dx", "ax /x"},
		{"[]x]", "] x", "y"},
		{"[a\\]", "a \\", "b"},
		{"{a,b/c}.{md,txt}", "a.md b/c.txt", "b.md a.c"},
		{"{**/x,y}", "x a/x y", "a/y"},
		{"{y,**/x}", "x a/x y", "a/y"},
		{"{a,b/**}", "a b/c b/c/d", "b c/d"},
		{"{**,x}/z", "a/z a/b/z x/z", "z"},
		{"{a,{b,**/c}}", "a b c x/c", "x/b"},
		{"[!-a]x", "0x Ax", "-x ax /x"},
		{"[!+-9]x", "ax", "0x /x"},
		{`\*\{`, "*{", "a{"},
		{"./src/*", "src/a", "a"},
		{"a,b", "a,b", "a b"},
		{"a.b+(c)|$^", "a.b+(c)|$^", "axb"},
		{"ünï*", "ünïcode", "uni"},
	} {
		p, err := Compile("pattern", c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		for _, path := range strings.Fields(c.yes) {
			if !p.Match(path) {
				t.Errorf("%s does not match %s", c.pattern, path)
			}
		}
		for _, path := range strings.Fields(c.no) {
			if p.Match(path) {
				t.Errorf("%s matches %s", c.pattern, path)
			}
		}
	}
	any, err := Compile("pattern", "a?c")
	if err != nil || !any.Match("a\xffc") || !any.Match("a\nc") {
		t.Errorf("? does not stand for every byte: %v", err)
	}
	name, err := Compile("glob", "*.go")
	if err != nil || !name.MatchFile("a/b.go") || name.MatchFile("a.go/b") {
		t.Errorf("a pattern of names: %v", err)
	}
}

func TestBelow(t *testing.T) {
	p, err := Compile("pattern", "a/b/*/c")
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{"a": true, "a/b": true, "a/b/x": true, "a/b/x/y": true, "b": false, "a/c": false, "ab": false} {
		if p.Below(dir) != want {
			t.Errorf("below %s: %t", dir, !want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, text := range []string{"", "/a", "[a", "[]", "{a", "a\\", "[z-a]", "[a/b]", "[+-9]", "\xff", strings.Repeat("a", 1001)} {
		if _, err := Compile("pattern", text); sandboxd.ClassOf(err) != sandboxd.ClassInvalid || err == nil {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

func TestNoPatternTakesLong(t *testing.T) {
	began := time.Now()
	for _, text := range []string{strings.Repeat("*a", 500), strings.Repeat("{*,", 200) + strings.Repeat("}", 200), strings.Repeat("**/", 300) + "x"} {
		p, err := Compile("pattern", text)
		if err != nil {
			t.Fatal(err)
		}
		p.Match(strings.Repeat("a/", 2000) + strings.Repeat("a", 200) + "b")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// Where the standard library has the same rules, the answers are the same.
func TestLikeTheStandardLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(alphabet string, most int) string {
		var b strings.Builder
		for range r.IntN(most) {
			b.WriteByte(alphabet[r.IntN(len(alphabet))])
		}
		return b.String()
	}
	compared, matched := 0, 0
	for range 50_000 {
		text, name := word(`ab/*?[]^-\`, 8), word("ab/-]", 6)
		want, err := path.Match(text, name)
		if err != nil || strings.Contains(text, "**") || strings.HasPrefix(text, "/") || strings.Contains(text, "//") {
			continue
		}
		p, err := Compile("pattern", text)
		if err != nil {
			continue // a class with a slash, or what only the library takes
		}
		compared++
		if want {
			matched++
		}
		if got := p.Match(name); got != want && !strings.Contains(text, "[") {
			t.Fatalf("%q matches %q: %t, of the library %t", text, name, got, want)
		}
	}
	if compared < 1000 || matched < 100 {
		t.Errorf("%d compared, %d matched", compared, matched)
	}
}
