package recipe

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sandboxd"
	"sandboxd/internal/catalogue"
)

var update = flag.Bool("update", false, "write the golden files anew")

func small() catalogue.Entry {
	return catalogue.Entry{
		Alias: "small", Description: "d", BaseImage: "debian:12-slim", Root: catalogue.RootWritable,
		APTPackages: []string{"jq", "ripgrep"}, SetupCommands: []string{`echo "it's $HOME" && true \`},
		Packages: []string{"pypdf>=4,<6"}, NPMPackages: []string{"tsx@4.1.0"}, Tools: []string{"jq", "rg"},
		Env: map[string]string{"B": `a "b" $c \d`, "A": "1"},
	}
}

func spec(t *testing.T, e catalogue.Entry, o Options) Spec {
	t.Helper()
	s, err := For(e, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGolden(t *testing.T) {
	bare := catalogue.Entry{Alias: "bare", BaseImage: "node:20-slim"}
	readonly := small()
	readonly.Root = catalogue.RootReadonly
	for name, s := range map[string]Spec{
		"small-readonly": spec(t, readonly, Options{}),
		"small":          spec(t, small(), Options{}), "small-trusting": spec(t, small(), Options{CABundle: []byte("PEM")}),
		"bare": spec(t, bare, Options{UID: 1234, WorkDir: "/srv/files"}),
	} {
		file := filepath.Join("testdata", name+".Dockerfile")
		if *update {
			if err := os.WriteFile(file, s.Dockerfile, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(s.Dockerfile)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestAFinishedImageIsPulled(t *testing.T) {
	s := spec(t, catalogue.Entry{Alias: "a", Image: "node:20-slim"}, Options{BaseImage: "other:1", CABundle: []byte("PEM")})
	if s.Builds() || s.Tag != "node:20-slim" || s.Base != "node:20-slim" || len(s.Files) != 0 || !strings.HasPrefix(s.Digest, "sha256:") {
		t.Errorf("%+v", s)
	}
}

func TestTheBase(t *testing.T) {
	e := small()
	for _, row := range []struct{ entry, host, want string }{
		{"", "", DefaultBase}, {"debian:12-slim", "", "debian:12-slim"}, {"debian:12-slim", "local/base", "local/base"}, {"", "local/base", "local/base"},
	} {
		e.BaseImage = row.entry
		s := spec(t, e, Options{BaseImage: row.host})
		if s.Base != row.want || !strings.Contains(string(s.Dockerfile), "\nFROM "+row.want+"\n") {
			t.Errorf("%+v: %s", row, s.Base)
		}
	}
	for field, o := range map[string]Options{"base_image": {BaseImage: "a\nRUN id"}, "work_dir": {WorkDir: "/a b"}} {
		if _, err := For(e, o); sandboxd.ClassOf(err) != sandboxd.ClassInvalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestDigest: it changes with everything that is built, and with nothing else.
func TestDigest(t *testing.T) {
	first := spec(t, small(), Options{})
	if again := spec(t, small(), Options{}); again.Digest != first.Digest || again.Tag != first.Tag {
		t.Fatal("the same entry has two digests")
	}
	if !strings.HasPrefix(first.Tag, Repository+":small-") || !strings.HasPrefix(first.Digest, "sha256:"+strings.TrimPrefix(first.Tag, Repository+":small-")) {
		t.Errorf("%s, %s", first.Tag, first.Digest)
	}
	if first.Labels[LabelDigest] != first.Digest || first.Labels[LabelRuntime] != "small" {
		t.Errorf("%v", first.Labels)
	}
	seen := map[string]string{first.Digest: "the first"}
	for name, change := range map[string]func(*catalogue.Entry, *Options){
		"alias": func(e *catalogue.Entry, _ *Options) { e.Alias = "other" },
		"base":  func(e *catalogue.Entry, _ *Options) { e.BaseImage = "debian:13-slim" },
		"apt":   func(e *catalogue.Entry, _ *Options) { e.APTPackages = e.APTPackages[:1] },
		"setup": func(e *catalogue.Entry, _ *Options) { e.SetupCommands = []string{"true"} },
		"pip":   func(e *catalogue.Entry, _ *Options) { e.Packages = []string{"pypdf>=4", "<6"} },
		"npm":   func(e *catalogue.Entry, _ *Options) { e.NPMPackages = nil },
		"env":   func(e *catalogue.Entry, _ *Options) { e.Env = map[string]string{"A": "2"} },
		"tools": func(e *catalogue.Entry, _ *Options) { e.Tools = nil },
		"root":  func(e *catalogue.Entry, _ *Options) { e.Root = catalogue.RootReadonly },
		"uid":   func(_ *catalogue.Entry, o *Options) { o.UID = 1000 },
		"work":  func(_ *catalogue.Entry, o *Options) { o.WorkDir = "/srv" },
	} {
		e, o := small(), Options{}
		change(&e, &o)
		s := spec(t, e, o)
		if other, ok := seen[s.Digest]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[s.Digest] = name
	}
	for name, change := range map[string]func(*catalogue.Entry, *Options){
		"briefing":    func(e *catalogue.Entry, _ *Options) { e.Briefing = []string{"x"} },
		"description": func(e *catalogue.Entry, _ *Options) { e.Description = "x" },
		"ceilings":    func(e *catalogue.Entry, _ *Options) { e.Ceilings.PIDs = 9 },
		"network":     func(e *catalogue.Entry, _ *Options) { e.NeedsNetwork = true },
		"bundle":      func(_ *catalogue.Entry, o *Options) { o.CABundle = []byte("PEM") },
		"default uid": func(_ *catalogue.Entry, o *Options) { o.UID = DefaultUID },
	} {
		e, o := small(), Options{}
		change(&e, &o)
		if s := spec(t, e, o); s.Digest != first.Digest || s.Tag != first.Tag {
			t.Errorf("%s changes the digest", name)
		}
	}
}

// TestTheBundleIsForTheBuildOnly: it comes with the context, and neither a variable nor
// the file is in the image.
func TestTheBundleIsForTheBuildOnly(t *testing.T) {
	s := spec(t, small(), Options{CABundle: []byte("PEM")})
	if len(s.Files) != 2 || string(s.Files[0].Content) != "PEM" {
		t.Fatalf("%+v", s.Files)
	}
	text := string(s.Dockerfile)
	if strings.Contains(strings.ReplaceAll(text, "ARG ", ""), "ENV SSL_CERT_FILE") || !strings.Contains(text, `"rm -rf `+trustDir+`"`) {
		t.Error(text)
	}
	if last := text[strings.LastIndex(text, "\nUSER "):]; !strings.HasPrefix(last, "\nUSER 10001:10001\n") {
		t.Errorf("the image's user: %s", last)
	}
	if plain := spec(t, small(), Options{}); strings.Contains(string(plain.Dockerfile), trustDir) || len(plain.Files) != 0 {
		t.Error("a bundle where none was given")
	}
}

var (
	architecture = regexp.MustCompile(`(?i)amd64|arm64|x86|x64|aarch|i386|armv|--platform|TARGETARCH`)
	address      = regexp.MustCompile(`[a-z]+://`)
)

// TestShippedOnEveryArchitecture: For is a function of the entry and the options, and
// neither these nor what it writes have an architecture in them. So what is built on
// one machine has the digest of the other.
func TestShippedOnEveryArchitecture(t *testing.T) {
	for _, e := range catalogue.Shipped() {
		s := spec(t, e, Options{CABundle: []byte("PEM")})
		for _, f := range append(s.Files, File{"Dockerfile", s.Dockerfile}) {
			if found := architecture.FindString(string(f.Content)); found != "" {
				t.Errorf("%s, %s: %q", e.Alias, f.Name, found)
			}
			if found := address.FindString(string(f.Content)); found != "" {
				t.Errorf("%s, %s: an address, %q: everything comes from the package registries", e.Alias, f.Name, found)
			}
		}
	}
	// The text is made by the same code of the same data, which does not ask where it runs.
	for _, dir := range []string{".", ".."} {
		var compiled []*build.Package
		for _, arch := range []string{"amd64", "arm64"} {
			c := build.Default
			c.GOOS, c.GOARCH, c.CgoEnabled = "linux", arch, false
			p, err := c.ImportDir(dir, 0)
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(p.Imports, "runtime") {
				t.Errorf("%s asks what machine this is", p.Name)
			}
			compiled = append(compiled, p)
		}
		if diff := cmp.Diff(compiled[0].GoFiles, compiled[1].GoFiles); diff != "" {
			t.Errorf("%s is another package for arm64: %s", compiled[0].Name, diff)
		}
		if diff := cmp.Diff(compiled[0].EmbedPatterns, compiled[1].EmbedPatterns); diff != "" {
			t.Errorf("%s has other data for arm64: %s", compiled[0].Name, diff)
		}
	}
}

// TestScriptsArriveAsTheyAre: each RUN is a list that decodes to what was written.
func TestScriptsArriveAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		script := rapid.StringMatching(`[ -~]{1,60}`).Draw(t, "script")
		e := catalogue.Entry{Alias: "a", SetupCommands: []string{script}}
		s, err := For(e, Options{})
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, line := range strings.Split(strings.TrimSuffix(string(s.Dockerfile), "\n"), "\n") {
			if strings.HasSuffix(line, `\`) || line == "" {
				t.Fatalf("a line that another continues, or an empty one: %q", line)
			}
			list, ok := strings.CutPrefix(line, "RUN ")
			if !ok {
				continue
			}
			var argv []string
			if err := json.Unmarshal([]byte(list), &argv); err != nil || len(argv) != 3 || argv[0] != "/bin/sh" {
				t.Fatalf("%q: %v", line, err)
			}
			if argv[2] == script && argv[1] == "-c" {
				found++
			}
		}
		if found != 1 {
			t.Fatalf("the command is there %d times", found)
		}
	})
}

// TestWords reads values as the builder does: within double quotes a backslash takes
// the next of \ " $ literally.
func TestWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[\t -~ä]{0,40}`).Draw(t, "value")
		quoted := word(text)
		var got strings.Builder
		inside := quoted[1 : len(quoted)-1]
		for i := 0; i < len(inside); i++ {
			switch c := inside[i]; {
			case c == '"' || c == '$':
				t.Fatalf("%s: %q is not quoted at %d", quoted, c, i)
			case c == '\\' && i+1 < len(inside) && strings.IndexByte(`\"$`, inside[i+1]) >= 0:
				i++
				got.WriteByte(inside[i])
			default:
				got.WriteByte(c)
			}
		}
		if got.String() != text {
			t.Fatalf("%q became %q", text, got.String())
		}
	})
}

// What no builder could read is refused before one is asked.
func TestALineThatNoBuilderReads(t *testing.T) {
	e := small()
	e.Env = map[string]string{}
	for i := range 20 {
		e.Env[fmt.Sprint("V", i)] = strings.Repeat("v", 8000)
	}
	if _, err := For(e, Options{}); sandboxd.ClassOf(err) != sandboxd.ClassInvalid || !strings.Contains(fmt.Sprint(err), `"ENV V0`) {
		t.Errorf("class %s: %v", sandboxd.ClassOf(err), err)
	}
}
