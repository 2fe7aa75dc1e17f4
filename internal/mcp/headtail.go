package mcp

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"sandboxd/internal/excerpt"
)

// headTail keeps the beginning and the end of a text of any length and shows
// maxChars characters of them together at most.
type headTail struct{ *excerpt.Excerpt }

// A character has up to four bytes; halves are kept by bytes and cut to
// characters when shown.
const (
	halfChars = maxChars / 2
	halfBytes = halfChars * utf8.UTFMax
)

func newHeadTail() headTail { return headTail{excerpt.New(halfBytes)} }

// String is the text, or its two ends with the count of what is left out. Bytes
// that are no UTF-8 are replaced.
func (h headTail) String() string {
	first, last, left := h.Ends()
	if left == 0 {
		whole := []rune(strings.ToValidUTF8(string(first)+string(last), "\uFFFD"))
		if len(whole) <= maxChars {
			return string(whole)
		}
		return cut(whole[:halfChars], whole[len(whole)-halfChars:], fmt.Sprintf("%d of %d characters", len(whole)-maxChars, len(whole)))
	}
	head := []rune(strings.ToValidUTF8(string(first), "\uFFFD"))
	tail := []rune(strings.ToValidUTF8(string(last), "\uFFFD"))
	head, tail = head[:min(halfChars, len(head))], tail[max(0, len(tail)-halfChars):]
	left = h.Total() - int64(len(string(head))) - int64(len(string(tail)))
	return cut(head, tail, fmt.Sprintf("%d of %d bytes", left, h.Total()))
}

func cut(head, tail []rune, what string) string {
	return string(head) + "\n[... " + what + " left out ...]\n" + string(tail)
}
