package cli

import (
	"context"
	"slices"
	"strings"
	"testing"

	"sandboxd"
)

func TestHoist(t *testing.T) {
	for in, want := range map[string]string{
		"ps":                                 "ps",
		"--url u ps":                         "ps --url u",
		"--url=u --token t exec s -- a":      "exec --url=u --token t s -- a",
		"--url u":                            "--url u",
		"--url":                              "--url",
		"exec s -- --url u":                  "exec s -- --url u",
		"--help":                             "--help",
		"--url u runtimes":                   "runtimes --url u",
		"--url u runtimes --json":            "runtimes --url u --json",
		"--url u runtimes list --json":       "runtimes list --url u --json",
		"--data d run --copy c -- x --url y": "run --data d --copy c -- x --url y",
	} {
		if got := hoist(strings.Fields(in)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("hoist(%s) = %q", in, got)
		}
	}
}

// TestErrorsHaveAHint holds every wrong command line to two lines and exit code 2.
func TestErrorsHaveAHint(t *testing.T) {
	for line, want := range map[string]string{
		"nonsense":                       "hint: see sandboxd --help",
		"ps --nonsense":                  "hint: see sandboxd ps --help",
		"exec":                           "hint: see sandboxd exec --help",
		"exec demo":                      "hint: as: -- python3",
		"exec demo --shell ls -- ls":     "hint: as: -- python3",
		"run":                            "hint: as: -- python3",
		"run --memory lots -- ls":        "hint: see sandboxd run --help",
		"run --copy /no/such/dir -- ls":  "hint: see sandboxd run --help",
		"cp here there":                  "hint: as: sandboxd cp FILE SANDBOX:PATH",
		"cp a:b c:d":                     "hint: as: sandboxd cp FILE SANDBOX:PATH",
		"stop":                           "hint: sandboxd ps lists them",
		"stop --all demo":                "hint: sandboxd ps lists them",
		"rm":                             "hint: sandboxd ps lists them",
		"stop --command c":               "hint: as: sandboxd stop SANDBOX --command ID",
		"port":                           "hint: see sandboxd port --help",
		"port demo http":                 "hint: as: sandboxd port SANDBOX",
		"port demo 0":                    "hint: as: sandboxd port SANDBOX",
		"port demo 80 65536":             "hint: as: sandboxd port SANDBOX",
		"port demo 80 --json":            "hint: as: sandboxd port SANDBOX",
		"serve --driver magic":           "hint: see sandboxd serve --help",
		"serve --max-sandboxes many":     "hint: see sandboxd serve --help",
		"serve --url http://127.0.0.1:1": "hint: see sandboxd serve --help",
	} {
		var out, errs strings.Builder
		code := Main(context.Background(), Process{Args: strings.Fields(line), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}, Roles{})
		lines := strings.Split(strings.TrimSuffix(errs.String(), "\n"), "\n")
		if code != 2 || out.Len() != 0 || len(lines) != 2 || !strings.HasPrefix(lines[0], "sandboxd: ") || !strings.HasPrefix(lines[1], want) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want 2 and %q", line, code, out.String(), errs.String(), want)
		}
	}
}

// noSandboxes is a host without any.
type noSandboxes struct{ sandboxd.Host }

func (noSandboxes) List(context.Context, string) ([]sandboxd.Sandbox, error) { return nil, nil }

// TestPsIsForSandboxes: who misses a file is not sent to the list of sandboxes.
func TestPsIsForSandboxes(t *testing.T) {
	hint := func(err error) bool {
		var out strings.Builder
		report(&out, explain(err))
		return strings.Contains(out.String(), hintList)
	}
	if hint(sandboxd.Errorf(sandboxd.ClassNotFound, "no such file or directory")) {
		t.Error("a file that is not there is looked for among sandboxes")
	}
	if _, err := resolve(t.Context(), noSandboxes{}, "demo"); !hint(err) {
		t.Errorf("no hint: %v", err)
	}
	if !hint(sandboxd.Errorf(sandboxd.ClassGone, "the sandbox was deleted")) {
		t.Error("no hint for one that was deleted")
	}
}

func TestPlaces(t *testing.T) {
	for in, want := range map[string]place{
		"a.txt": {"", "a.txt"}, "demo:a/b": {"demo", "a/b"}, "demo:": {"demo", ""}, "./a:b": {"", "./a:b"},
		"/tmp/a:b": {"", "/tmp/a:b"}, "-": {"", "-"}, "..:x": {"", "..:x"}, "demo:/workspace/x:y": {"demo", "/workspace/x:y"},
	} {
		if got := placeOf(in); got != want {
			t.Errorf("placeOf(%q) = %+v, want %+v", in, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "512M": 512 << 20, "1g": 1 << 30, "1.5KiB": 1536, "1000": 1000, "2GB": 2 << 30} {
		var b bytesFlag
		if err := b.UnmarshalText([]byte(in)); err != nil || int64(b) != want {
			t.Errorf("%s = %d, %v; want %d", in, b, err, want)
		}
	}
	for _, in := range []string{"", "M", "-1", "x", "1X", "NaN", "inf", "9999999999T"} {
		var b bytesFlag
		if err := b.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q = %d, want an error", in, b)
		}
	}
}

func TestWhatASandboxWroteIsShownSafely(t *testing.T) {
	for in, want := range map[string]string{"grün.txt": "grün.txt", "a\x1b[2Jb": `"a\x1b[2Jb"`, "a\nb": `"a\nb"`, "\xff": `"\xff"`} {
		if got := shown(in); got != want {
			t.Errorf("shown(%q) = %s, want %s", in, got, want)
		}
	}
	if got := oneLine("a\nb\x1b[0m"); got != "a b [0m" {
		t.Errorf("oneLine = %q", got)
	}
}
