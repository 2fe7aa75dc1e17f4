package mcp

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestHeadTail(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       func(string) error
	}{
		{"empty", "", is("")},
		{"short", "grün\n", is("grün\n")},
		{"exactly the bound", strings.Repeat("ü", maxChars), is(strings.Repeat("ü", maxChars))},
		{"one more", "a" + strings.Repeat("ü", maxChars), has("a", "[... 1 of 30001 characters left out ...]")},
		{"very long", "begin" + strings.Repeat("x", 5<<20) + "end", has("begin", "bytes left out ...]", "xend")},
		{"no UTF-8", "a\xff\xfeb", is("a\uFFFDb")},
	} {
		for _, step := range []int{1 << 20, 4093} {
			h := newHeadTail()
			for rest := c.text; rest != ""; {
				n := min(step, len(rest))
				_, _ = h.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			got := h.String()
			if err := c.want(got); err != nil {
				t.Errorf("%s in steps of %d: %v", c.name, step, err)
			}
			if n := utf8.RuneCountInString(got); n > maxChars+80 || !utf8.ValidString(got) {
				t.Errorf("%s: %d characters, valid %t", c.name, n, utf8.ValidString(got))
			}
		}
	}
}

func TestTheCountIsRight(t *testing.T) {
	h := newHeadTail()
	const total = 1 << 20
	_, _ = h.Write([]byte(strings.Repeat("y", total)))
	got := h.String()
	if want := fmt.Sprintf("[... %d of %d bytes left out ...]", total-maxChars, total); !strings.Contains(got, want) {
		t.Errorf("no %q", want)
	}
}

func is(want string) func(string) error {
	return func(got string) error {
		if got != want {
			return fmt.Errorf("got %.80q, want %.80q", got, want)
		}
		return nil
	}
}

func has(parts ...string) func(string) error {
	return func(got string) error {
		for _, p := range parts {
			if !strings.Contains(got, p) {
				return fmt.Errorf("no %q in %.80q", p, got)
			}
		}
		return nil
	}
}

func TestTextual(t *testing.T) {
	cut := []byte(strings.Repeat("a", sniffBytes-1) + "ü")[:sniffBytes]
	for _, c := range []struct {
		text []byte
		want bool
	}{{nil, true}, {[]byte("grün"), true}, {[]byte("a\x00b"), false}, {[]byte("a\xffb"), false}, {cut, true}, {[]byte("\xc3"), false}} {
		if got := textual(c.text); got != c.want {
			t.Errorf("textual(%.20q, %d bytes) = %t", c.text, len(c.text), got)
		}
	}
}
