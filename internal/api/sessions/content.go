package sessions

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// linesDefault is how many lines a read of text answers unless it is told.
const linesDefault = 2000

var errBinary = errors.New("[Binary File]")

// textOf is the content of a file as text, by what its name says that it is.
func (f *Face) textOf(ctx context.Context, name string, data []byte) (string, error) {
	ext := strings.TrimPrefix(strings.ToLower(path.Ext(name)), ".")
	if ext == "pdf" {
		text, err := f.cfg.PDF(ctx, data)
		if err != nil {
			return "", fmt.Errorf("Failed to parse PDF: %s", publicText(err)) //nolint:staticcheck // the wire's text
		}
		return text, nil
	}
	text, certain := guessed(data)
	if certain || textual[ext] {
		return text, nil
	}
	text = decoded(data)
	if strings.Count(text, "\uFFFD") < max(utf8.RuneCountInString(text)/100, 2) {
		return text, nil
	}
	return "", errBinary
}

// textual are the endings of names of files that are text whatever is in them.
var textual = func() map[string]bool {
	set := map[string]bool{}
	for ext := range strings.FieldsSeq("c cpp cs css go h html java js jsx php py rb rs sh sql ts tsx csv json log md toml txt xml yaml yml htm bat ksh pl tsv rst ini cfg conf svg mjs") {
		set[ext] = true
	}
	return set
}()

// guessed reads text whose encoding nobody has told: UTF-8, UTF-16 with its mark, or,
// without the characters that no text has, Latin 1. Not certain is what is none of these;
// it is then read as Latin 1, in which everything is something.
func guessed(data []byte) (text string, certain bool) {
	switch {
	case bytes.HasPrefix(data, []byte("\xEF\xBB\xBF")) && utf8.Valid(data):
		return string(data[3:]), true
	case len(data)%2 == 0 && (bytes.HasPrefix(data, []byte{0xFF, 0xFE}) || bytes.HasPrefix(data, []byte{0xFE, 0xFF})):
		var order binary.ByteOrder = binary.LittleEndian
		if data[0] == 0xFE {
			order = binary.BigEndian
		}
		units := make([]uint16, 0, len(data)/2)
		for i := 2; i < len(data); i += 2 {
			units = append(units, order.Uint16(data[i:]))
		}
		return string(utf16.Decode(units)), true
	case utf8.Valid(data):
		return string(data), true
	}
	certain = true
	var b strings.Builder
	for _, c := range data {
		if c < 0x20 && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != 0x1B || c >= 0x7F && c < 0xA0 {
			certain = false
		}
		b.WriteRune(rune(c))
	}
	return b.String(), certain
}

// window is a part of a text by lines, and says what is beyond it.
func window(text string, offset, limit int) string {
	lines := splitLines(text)
	if offset >= len(lines) {
		return "[End of file]"
	}
	if limit >= len(lines)-offset {
		return strings.Join(lines[offset:], "\n")
	}
	end := offset + limit
	return fmt.Sprintf("%s\n\n[... %d more lines. Use offset=%d to read more.]", strings.Join(lines[offset:end], "\n"), len(lines)-end, end)
}

// splitLines splits where the wire's other end does, which is at more than line feeds.
func splitLines(text string) []string {
	lines := []string{}
	start := 0
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch r {
		case '\r':
			if strings.HasPrefix(text[i+1:], "\n") {
				n = 2
			}
			fallthrough
		case '\n', '\v', '\f', 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029:
			lines = append(lines, text[start:i])
			start = i + n
		}
		i += n
	}
	if start < len(text) {
		lines = append(lines, text[start:])
	}
	return lines
}
