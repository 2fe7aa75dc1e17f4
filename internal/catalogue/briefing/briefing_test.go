package briefing

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sandboxd"
	"sandboxd/internal/catalogue"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestGolden(t *testing.T) {
	shipped := catalogue.Shipped()
	small := []catalogue.Entry{{Alias: "small", Image: "debian:12", Root: catalogue.RootReadonly}}
	for name, text := range map[string]string{
		"workbench": For(shipped, "workbench", Here{}),
		"app":       For(shipped, "app", Here{WorkDir: "/home/sandbox/workspace"}),
		"small":     For(small, "small", Here{}),
		// The machine's own tools, behind the proxy.
		"workbench-machine": For(shipped, "workbench", Here{Network: sandboxd.NetworkProxy, Fixed: true,
			Missing: []string{"soffice", "lit", "claude", "codex", "tsx", "duckdb", "liteparse", "@anthropic-ai/claude-code", "@openai/codex"}}),
	} {
		file := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), text); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestAnUnknownAliasHasNone(t *testing.T) {
	for _, alias := range []string{"", "other", "machine", "Workbench"} {
		if text := For(catalogue.Shipped(), alias, Here{}); text != "" {
			t.Errorf("%q: %s", alias, text)
		}
	}
}

// TestWhatIsMissingIsNotPraised: no sentence offers what the host does not have.
func TestWhatIsMissingIsNotPraised(t *testing.T) {
	text := For(catalogue.Shipped(), "workbench", Here{Missing: []string{"soffice", "lit", "rg", "pandas"}})
	said := strings.Replace(text, "Not on this host, although the runtime has them elsewhere: lit, pandas, rg, soffice.", "", 1)
	if said == text {
		t.Fatalf("what is missing is not said: %s", text)
	}
	for _, name := range []string{"soffice", "`lit", "rg -n", "pandas", "--no-ocr"} {
		if strings.Contains(said, name) {
			t.Errorf("%s is offered: %s", name, said)
		}
	}
}

func TestBareNames(t *testing.T) {
	for item, want := range map[string]string{"pandas": "pandas", "a>=1,<2": "a", "x[b]==1": "x", "@a/b@1.2": "@a/b", "tsx@4": "tsx", "y~=1": "y", "z!=2": "z"} {
		if got := bare(item); got != want {
			t.Errorf("%s: %s", item, got)
		}
	}
}
