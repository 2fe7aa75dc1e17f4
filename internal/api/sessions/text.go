package sessions

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// decoded is data as text, with U+FFFD for what is no UTF-8: one for each longest
// beginning of a character, as the wire's other end counts them, not one for each byte.
func decoded(data []byte) string {
	if utf8.Valid(data) {
		return string(data)
	}
	var b strings.Builder
	b.Grow(len(data) + 16)
	for len(data) > 0 {
		if r, n := utf8.DecodeRune(data); r != utf8.RuneError || n > 1 {
			b.Write(data[:n])
			data = data[n:]
			continue
		}
		b.WriteRune(utf8.RuneError)
		data = data[begun(data):]
	}
	return b.String()
}

// begun is how many bytes at the start of data, which is not a whole character, are
// the beginning of one; at least 1.
func begun(data []byte) int {
	first, low, high, need := data[0], byte(0x80), byte(0xBF), 0
	switch {
	case first >= 0xC2 && first <= 0xDF:
		need = 1
	case first >= 0xE0 && first <= 0xEF:
		need = 2
	case first >= 0xF0 && first <= 0xF4:
		need = 3
	}
	switch first {
	case 0xE0:
		low = 0xA0
	case 0xED:
		high = 0x9F
	case 0xF0:
		low = 0x90
	case 0xF4:
		high = 0x8F
	}
	n := 1
	for n <= need && n < len(data) && data[n] >= low && data[n] <= high {
		n, low, high = n+1, 0x80, 0xBF
	}
	return n
}

// quoted is a name as the wire's texts show it: in single quotes, or in double ones
// around a single one.
func quoted(s string) string {
	quote := '\''
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r >= 0x7F && r < 0xA0:
			fmt.Fprintf(&b, `\x%02x`, r)
		case !unicode.IsPrint(r) && r <= 0xFFFF:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteRune(quote)
	return b.String()
}

// shellJoin is argv as one line that a POSIX shell splits into the same words.
func shellJoin(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = shellWord(a)
	}
	return strings.Join(words, " ")
}

func shellWord(s string) string {
	plain := s != ""
	for i := 0; plain && i < len(s); i++ {
		c := s[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_@%+=:,./-", c) >= 0
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'"
}

// cut is at most so many characters of s, and an ellipsis for the rest.
func cut(s string, most int) string {
	n := 0
	for i := range s {
		if n == most {
			return s[:i] + "…"
		}
		n++
	}
	return s
}
