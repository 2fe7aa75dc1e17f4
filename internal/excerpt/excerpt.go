// Package excerpt keeps the beginning and the end of a text of any length.
//
// It counts what lies between and cuts nothing in the middle of a character. How
// the two ends are shown is not its affair.
package excerpt

import "unicode/utf8"

// Excerpt keeps the first and the last so many bytes of what is written to it. Its
// memory is bounded by three times that. It is for one goroutine.
type Excerpt struct {
	each       int
	head, tail []byte
	total      int64
}

// New keeps each bytes of both ends.
func New(each int) *Excerpt { return &Excerpt{each: each} }

// Write never fails.
func (e *Excerpt) Write(p []byte) (int, error) {
	n := len(p)
	e.total += int64(n)
	if room := e.each - len(e.head); room > 0 {
		take := min(room, len(p))
		e.head = append(e.head, p[:take]...)
		p = p[take:]
	}
	e.tail = append(e.tail, p...)
	// Moved only when it doubled, so that every byte is moved once.
	if len(e.tail) > 2*e.each {
		e.tail = append(e.tail[:0], e.tail[len(e.tail)-e.each:]...)
	}
	return n, nil
}

// Total is the number of bytes that were written.
func (e *Excerpt) Total() int64 { return e.total }

// Ends answers the beginning and the end, and how many bytes lie between them;
// without any, the end follows the beginning.
func (e *Excerpt) Ends() (head, tail []byte, left int64) {
	head, tail = e.head, e.tail
	if len(tail) > e.each {
		tail = tail[len(tail)-e.each:]
	}
	if e.total > int64(len(head)+len(tail)) {
		head = head[:len(head)-Unfinished(head)]
		for n := 0; n < utf8.UTFMax-1 && len(tail) > 0 && !utf8.RuneStart(tail[0]); n++ {
			tail = tail[1:]
		}
	}
	return head, tail, e.total - int64(len(head)+len(tail))
}

// Unfinished is the number of bytes at the end of p that begin a character which p
// does not finish, 0 to 3.
func Unfinished(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		tail := p[len(p)-n:]
		if utf8.RuneStart(tail[0]) {
			if tail[0] >= utf8.RuneSelf && !utf8.FullRune(tail) {
				return n
			}
			return 0
		}
	}
	return 0
}
