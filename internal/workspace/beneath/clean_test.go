package beneath

import (
	"strings"
	"testing"

	"sandboxd"
)

func TestClean(t *testing.T) {
	long := strings.Repeat("n", 255)
	for _, c := range []struct {
		in, want string
		ok       bool
	}{
		{"", ".", true}, {".", ".", true}, {"./", ".", true}, {"a", "a", true}, {"a/", "a", true},
		{"a//b", "a/b", true}, {"./a/./b", "a/b", true}, {"a/../b", "b", true}, {"a/..", ".", true},
		{"/workspace", ".", true}, {"/workspace/", ".", true}, {"/workspace/a", "a", true}, {"//workspace//a", "a", true},
		{"%2e%2e/x", "%2e%2e/x", true}, {"-rf", "-rf", true}, {"a\nb", "a\nb", true}, {"\xff\xfe", "\xff\xfe", true},
		{"...", "...", true}, {long, long, true}, {"..a", "..a", true},
		{"..", "", false}, {"../a", "", false}, {"a/../..", "", false}, {"/workspace/..", "", false}, {"/workspace/../workspace/a", "", false},
		{"/", "", false}, {"/etc/passwd", "", false}, {"/workspacefoo", "", false}, {"/workspace2/a", "", false},
		{"a\x00b", "", false}, {long + "n", "", false}, {"a/" + long + "n/b", "", false}, {strings.Repeat("a/", 3000), "", false},
	} {
		got, err := Clean(c.in)
		if c.ok != (err == nil) || got != c.want {
			t.Errorf("Clean(%.40q) = %q, %v; want %q, ok %v", c.in, got, err, c.want, c.ok)
		}
		if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
			t.Errorf("Clean(%.40q): class %s", c.in, sandboxd.ClassOf(err))
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "a/b", "../x", "/workspace/a", "a//..//b/.", "\x00", "/workspace/../etc"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		out, err := Clean(in)
		if err != nil {
			return
		}
		if out != "." {
			for part := range strings.SplitSeq(out, "/") {
				if part == "" || part == "." || part == ".." || len(part) > NameMax || strings.Contains(part, "\x00") {
					t.Fatalf("Clean(%q) = %q", in, out)
				}
			}
		}
		if again, err := Clean(out); err != nil || again != out {
			t.Fatalf("Clean is not idempotent: %q, %q, %v", out, again, err)
		}
	})
}
