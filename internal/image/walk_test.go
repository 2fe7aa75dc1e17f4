package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"sandboxd"
)

// Who hands an archive on knows of each entry before whoever unpacks it does.
func TestWalked(t *testing.T) {
	many := []entry{}
	for i := range 50 {
		many = append(many, file(fmt.Sprint("f", i), "", 0o644))
	}
	good := pack(t, dir("d", 0o755), file("d/f", strings.Repeat("x", 100_000), 0o644), link("l", "d"), hard("h", "d/f"), device("null", tar.TypeChar)).Bytes()
	for _, test := range []struct {
		name    string
		archive []byte
		limits  sandboxd.TarLimits
		passed  int
		says    string
	}{
		{"good", good, sandboxd.TarLimits{}, len(good), ""},
		{"good, with more behind it", append(bytes.Clone(good), make([]byte, 100_000)...), sandboxd.TarLimits{}, len(good) + 100_000, ""},
		{"holes", must(io.ReadAll(sparse(t))), sandboxd.TarLimits{}, 0, "has more than 17179869184 bytes"},
		{"too many entries", pack(t, many...).Bytes(), sandboxd.TarLimits{MaxEntries: 20}, 20 * block, "more than 20 entries"},
		{"too many bytes", good, sandboxd.TarLimits{MaxBytes: 99_999}, block, "more than 99999 bytes"},
		{"cut short", good[:5000], sandboxd.TarLimits{}, 5000, "damaged or cut short"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := Walk(iotest.OneByteReader(bytes.NewReader(test.archive)), test.limits)
			defer w.Close()
			got, err := io.ReadAll(w)
			if !bytes.HasPrefix(test.archive, got) {
				t.Error("it is not handed on as it is")
			}
			if test.says == "" && err != nil || test.says != "" && (sandboxd.ClassOf(err) != sandboxd.ClassInvalid || !strings.Contains(fmt.Sprint(err), test.says)) {
				t.Errorf("class %s: %v", sandboxd.ClassOf(err), err)
			}
			// Without the last byte of the header that is refused, nobody can act on it.
			if at := len(got); test.says == "" && at != test.passed || at > test.passed+block-1 {
				t.Errorf("%d bytes were handed on, want %d", at, test.passed)
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
