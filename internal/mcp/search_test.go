package mcp

import (
	"fmt"
	"strings"
	"testing"
)

func TestSearchAndEdit(t *testing.T) {
	c, end := connect(t, newHost(t), Options{})
	defer end()
	for path, content := range map[string]string{"src/main.go": "package main\n\nfunc main() {\n\tprintln(1)\n\tprintln(1)\n}\n", "src/.env": "SECRET=1\n", "notes.txt": "one\ntwo\n"} {
		call(t, c, "write", args{"path": path, "content": content})
	}
	call(t, c, "write", args{"path": "blob", "content": "AG1haW4=", "base64": true})
	var long strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&long, "a long line number %d\n", i)
	}
	call(t, c, "write", args{"path": "long.log", "content": long.String()})
	for _, step := range []struct {
		tool   string
		args   args
		want   string
		failed bool
	}{
		{"glob", args{"pattern": "**/*.{go,txt}"}, "notes.txt (8 bytes)\nsrc/main.go (54 bytes)\n", false},
		{"glob", args{"pattern": "src/*", "skip_hidden": true}, "src/main.go (54 bytes)\n", false},
		{"glob", args{"pattern": "*.rs"}, "(nothing matches)\n", false},
		{"glob", args{"pattern": "["}, "invalid_request: pattern: ", true},
		{"grep", args{"pattern": `func \w+\(`}, "src/main.go:3:func main() {\n", false},
		{"grep", args{"pattern": "MAIN()", "literal": true, "ignore_case": true, "context": 1, "path": "src"}, "src/main.go-2-\nsrc/main.go:3:func main() {\nsrc/main.go-4-\tprintln(1)\n", false},
		{"grep", args{"pattern": "nowhere"}, "(no match in 4 files; 1 binary files were left out)\n", false},
		{"grep", args{"pattern": "one|two", "glob": "*.txt", "limit": 1}, "notes.txt:1:one\n[more is not shown", false},
		{"grep", args{"pattern": "("}, "invalid_request: pattern: it is not an RE2 expression", true},
		{"grep", args{"pattern": "x", "context": -1}, "invalid_request: context: it is 0 to 20 lines", true},
		{"grep", args{"pattern": "x", "path": "../.."}, "invalid_request: path: ", true},
		{"edit", args{"path": "src/main.go", "old": "println(1)", "new": "x"}, "conflict: the old text is in the file 2 times and not 1\nhint: ", true},
		{"edit", args{"path": "src/main.go", "old": "gone", "new": "x"}, "conflict: the old text is not in the file\nhint: ", true},
		{"edit", args{"path": "src/main.go", "old": "println(1)", "new": "println(2)", "count": 2}, "replaced 2; src/main.go has 54 bytes", false},
		{"edit", args{"path": "src/main.go", "old": "println(2)", "new": "", "all": true}, "replaced 2; src/main.go has 34 bytes", false},
		{"edit", args{"path": "notes.txt", "old": "two\n", "new": "three\n"}, "replaced 1; notes.txt has 10 bytes", false},
		{"edit", args{"path": "none", "old": "a", "new": "b"}, "not_found: ", true},
		{"read", args{"path": "notes.txt"}, "one\nthree\n", false},
	} {
		result, text := call(t, c, step.tool, step.args)
		if !strings.HasPrefix(text, step.want) || result.IsError != step.failed {
			t.Errorf("%s %v: %q, failed %t; want %q", step.tool, step.args, text, result.IsError, step.want)
		}
	}
	if _, text := call(t, c, "grep", args{"pattern": "long", "limit": 5000}); len(text) > maxChars+200 || !strings.Contains(text, "left out ...]") {
		t.Errorf("a long answer has %d bytes", len(text))
	}
}
