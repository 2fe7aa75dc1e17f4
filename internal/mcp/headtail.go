package mcp

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// headTail keeps the beginning and the end of a text of any length, maxChars
// characters together at most, and counts what lies between. Memory is bounded
// by what it keeps. The zero value is ready.
type headTail struct {
	head  []byte
	tail  []byte // the newest bytes, at least what is shown of them
	total int64
}

// A character has up to four bytes; halves are kept by bytes and cut to
// characters when shown.
const (
	halfChars = maxChars / 2
	halfBytes = halfChars * utf8.UTFMax
)

// Write never fails.
func (h *headTail) Write(p []byte) (int, error) {
	n := len(p)
	h.total += int64(n)
	if room := halfBytes - len(h.head); room > 0 {
		take := min(room, len(p))
		h.head = append(h.head, p[:take]...)
		p = p[take:]
	}
	h.tail = append(h.tail, p...)
	if len(h.tail) > 2*halfBytes {
		h.tail = append(h.tail[:0], h.tail[len(h.tail)-halfBytes:]...)
	}
	return n, nil
}

// String is the text, or its two ends with the count of what is left out. Bytes
// that are no UTF-8 are replaced.
func (h *headTail) String() string {
	seam := h.total == int64(len(h.head)+len(h.tail))
	if seam {
		whole := []rune(strings.ToValidUTF8(string(h.head)+string(h.tail), "\uFFFD"))
		if len(whole) <= maxChars {
			return string(whole)
		}
		return cut(whole[:halfChars], whole[len(whole)-halfChars:], fmt.Sprintf("%d of %d characters", len(whole)-maxChars, len(whole)))
	}
	head := []rune(strings.ToValidUTF8(string(h.head), "\uFFFD"))
	tail := []rune(strings.ToValidUTF8(string(h.tail), "\uFFFD"))
	head, tail = head[:min(halfChars, len(head))], tail[max(0, len(tail)-halfChars):]
	left := h.total - int64(len(string(head))) - int64(len(string(tail)))
	return cut(head, tail, fmt.Sprintf("%d of %d bytes", left, h.total))
}

func cut(head, tail []rune, what string) string {
	return string(head) + "\n[... " + what + " left out ...]\n" + string(tail)
}
