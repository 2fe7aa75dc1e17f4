package excerpt

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBothEndsAreKept(t *testing.T) {
	const each = 1 << 16
	e := New(each)
	var all strings.Builder
	for all.Len() < 10*each {
		piece := strings.Repeat("äöü€", 1000)
		all.WriteString(piece)
		if n, err := e.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	head, tail, left := e.Ends()
	if int64(len(head)+len(tail))+left != int64(all.Len()) || e.Total() != int64(all.Len()) {
		t.Fatalf("%d and %d kept, %d left out of %d", len(head), len(tail), left, all.Len())
	}
	if len(head) > each || len(head) < each-4 || len(tail) > each || len(tail) < each-4 {
		t.Errorf("%d and %d kept of %d each", len(head), len(tail), each)
	}
	if !strings.HasPrefix(all.String(), string(head)) || !strings.HasSuffix(all.String(), string(tail)) || !utf8.Valid(head) || !utf8.Valid(tail) {
		t.Error("what is kept is not both ends, in whole characters")
	}
	if kept := cap(e.head) + cap(e.tail); kept > 5*each {
		t.Errorf("%d bytes of memory for %d each", kept, each)
	}
}

func TestAShortTextIsWhole(t *testing.T) {
	for _, text := range []string{"", "\x80abc\xc3", "0123456789", strings.Repeat("€", 6)} {
		e := New(10)
		for i := range len(text) {
			_, _ = e.Write([]byte{text[i]})
		}
		head, tail, left := e.Ends()
		if string(head)+string(tail) != text || left != 0 {
			t.Errorf("%q is kept as %q and %q, %d left", text, head, tail, left)
		}
	}
}

func TestUnfinished(t *testing.T) {
	for text, want := range map[string]int{"": 0, "a": 0, "ü": 0, "\xc3": 1, "a\xe2\x82": 2, "\xf0\x9f\x98": 3, "\x80": 0, "\xff": 0} {
		if got := Unfinished([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
