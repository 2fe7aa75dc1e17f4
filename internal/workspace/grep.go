package workspace

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/pattern"
)

const (
	grepPattern = 1000     // bytes of an expression
	grepProgram = 2000     // instructions of it
	grepLine    = 64 << 10 // of a line that is searched
	grepSniff   = 8 << 10  // of a file, to tell whether it is text
	// grepEffort is how much is done between two looks at the clock. A byte that is
	// read counts as one; one that the expression looks at, as an eighth for each of
	// its instructions.
	grepEffort = 8 << 10
)

// grep is one search for content. It is for one goroutine.
type grep struct {
	*search
	opts   sandboxd.GrepOptions
	glob   *pattern.Pattern
	re     *regexp.Regexp
	must   []byte // every matching line has these bytes
	size   int    // instructions of the expression
	effort int    // since the last look at the clock
	most   int
	left   int64 // bytes that may still be read
	text   int   // bytes of lines that are in the answer
	unread bool  // something could not be read
	out    sandboxd.GrepResult

	before []string // a ring of the last lines
	open   []int    // matches that get more lines after them
}

func (g *grep) compile() error {
	o := g.opts
	switch {
	case o.Pattern == "":
		return sandboxd.Invalid("pattern", "it is needed")
	case len(o.Pattern) > grepPattern:
		return sandboxd.Invalid("pattern", "it is longer than %d bytes", grepPattern)
	case !utf8.ValidString(o.Pattern):
		return sandboxd.Invalid("pattern", "it is not UTF-8")
	case o.Before < 0 || o.After < 0 || o.Before > sandboxd.GrepContext || o.After > sandboxd.GrepContext:
		return sandboxd.Invalid("context", "it is 0 to %d lines", sandboxd.GrepContext)
	}
	text := o.Pattern
	if o.Literal {
		text = regexp.QuoteMeta(text)
	}
	if o.IgnoreCase {
		text = "(?i)" + text
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		var wrong *syntax.Error
		code := "it cannot be read"
		if errors.As(err, &wrong) {
			code = wrong.Code.String()
		}
		return sandboxd.Invalid("pattern", "it is not an RE2 expression: %s", code).
			WithHint("look for plain text with literal")
	}
	parsed = parsed.Simplify()
	program, err := syntax.Compile(parsed)
	if err != nil || len(program.Inst) > grepProgram {
		return sandboxd.Invalid("pattern", "the expression is too large")
	}
	if g.re, err = regexp.Compile(text); err != nil {
		return sandboxd.Invalid("pattern", "it is not an RE2 expression")
	}
	g.must = []byte(required(parsed))
	g.size = len(program.Inst)
	if o.Glob != "" {
		if g.glob, err = pattern.Compile("glob", o.Glob); err != nil {
			return err
		}
	}
	g.most = bounded(o.MaxMatches, grepMatches, sandboxd.GrepMatches)
	g.left = bounded(o.MaxBytes, grepBytes, int64(sandboxd.GrepBytes))
	return nil
}

// required finds the longest text that every match contains, if there is one. To
// look for it is many times faster than to run the expression.
func required(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return string(re.Rune)
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpConcat:
		best := ""
		for _, sub := range re.Sub {
			if text := required(sub); len(text) > len(best) {
				best = text
			}
		}
		return best
	}
	return ""
}

func (g *grep) visit(v *visit, prefix string) error {
	if v.st.Mode&unix.S_IFMT != unix.S_IFREG || g.glob != nil && !g.glob.MatchFile(v.path) {
		if v.st.Mode&unix.S_IFMT == unix.S_IFDIR && g.glob != nil && !g.glob.Below(v.path) {
			return errSkip
		}
		return nil
	}
	fd, st, err := v.dir.OpenStrict(v.name, unix.O_RDONLY)
	if err != nil {
		g.unread = g.unread || !errors.Is(err, unix.ENOENT)
		return nil
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	return g.file(fd, prefix+v.path)
}

var lineReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, bufferSize) }}

// file searches one open file, which it does not close.
func (g *grep) file(fd int, path string) error {
	r := lineReaders.Get().(*bufio.Reader)
	defer func() {
		r.Reset(nil)
		lineReaders.Put(r)
	}()
	r.Reset(descriptor(fd))
	start, err := r.Peek(grepSniff)
	if err != nil && err != io.EOF {
		g.unread = true
		return nil
	}
	if bytes.IndexByte(start, 0) >= 0 {
		g.out.Binary++
		return nil
	}
	g.out.Files++
	g.open, g.before = g.open[:0], g.before[:0]
	had := len(g.out.Matches)
	for number := int64(1); ; number++ {
		line, err := g.next(r)
		switch {
		case err == io.EOF:
			return nil
		case err == errBinary:
			g.out.Matches = g.out.Matches[:had]
			g.out.Files--
			g.out.Binary++
			return nil
		case err != nil:
			return err
		}
		if err := g.line(path, number, line); err != nil {
			return err
		}
	}
}

// errBinary says that a file is no text after all.
var errBinary = errors.New("it has a NUL byte")

// next answers the next line without its end, of a very long one the beginning.
// io.EOF is also what cannot be read any further.
func (g *grep) next(r *bufio.Reader) (line []byte, err error) {
	for first := true; ; first = false {
		piece, err := r.ReadSlice('\n')
		if err != nil && err != io.EOF && err != bufio.ErrBufferFull {
			g.unread = true
			return nil, io.EOF
		}
		if bytes.IndexByte(piece, 0) >= 0 {
			return nil, errBinary
		}
		size := int64(len(piece))
		g.out.Bytes += size
		if g.left -= size; g.left < 0 {
			return nil, g.full()
		}
		if first {
			line = piece
			if err == bufio.ErrBufferFull {
				line = bytes.Clone(piece[:grepLine]) // what follows moves the buffer
			}
		}
		if err := g.spend(len(piece)); err != nil {
			return nil, err
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err == io.EOF && first && size == 0 {
			return nil, io.EOF
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		return line[:min(len(line), grepLine)], nil
	}
}

// spend counts effort and lets others work when it was enough.
func (g *grep) spend(effort int) error {
	if g.effort += effort; g.effort < grepEffort {
		return nil
	}
	g.effort = 0
	return g.pause()
}

// find answers where the first match in a line begins and ends, or nil.
func (g *grep) find(line []byte) ([]int, error) {
	if effort := len(line) * g.size / 8; effort < grepEffort {
		return g.re.FindIndex(line), g.spend(effort)
	}
	// An expression cannot be interrupted, but what feeds it can.
	r := &slowLine{g: g, line: line}
	at := g.re.FindReaderIndex(r)
	return at, r.err
}

// slowLine is a line that takes an expression long to read.
type slowLine struct {
	g    *grep
	line []byte
	err  error // the search is over
}

// ReadRune implements io.RuneReader.
func (s *slowLine) ReadRune() (rune, int, error) {
	if s.err == nil {
		s.err = s.g.spend(s.g.size/8 + 1)
	}
	if s.err != nil || len(s.line) == 0 {
		return 0, 0, io.EOF
	}
	r, size := utf8.DecodeRune(s.line)
	s.line = s.line[size:]
	return r, size, nil
}

// descriptor reads a file that somebody else closes.
type descriptor int

func (d descriptor) Read(p []byte) (n int, err error) {
	for {
		n, err = unix.Read(int(d), p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// line looks at one line and keeps what the answer needs of it.
func (g *grep) line(path string, number int64, line []byte) error {
	shown, done := "", false
	show := func() string {
		if !done {
			shown, done = strings.ToValidUTF8(string(line[:min(len(line), sandboxd.GrepLineBytes)]), "\uFFFD"), true
		}
		return shown
	}
	for len(g.open) > 0 {
		m := &g.out.Matches[g.open[0]]
		if len(m.After) < g.opts.After {
			break
		}
		g.open = g.open[1:]
	}
	for _, i := range g.open {
		m := &g.out.Matches[i]
		m.After = append(m.After, show())
		g.text += len(show())
	}
	if len(g.must) == 0 || bytes.Contains(line, g.must) {
		at, err := g.find(line)
		if err != nil {
			return err
		}
		if at != nil {
			if len(g.out.Matches) == g.most || g.text > sandboxd.GrepTextBytes {
				return g.full()
			}
			m := sandboxd.Match{Path: path, Line: number, Column: at[0] + 1, Before: append([]string{}, g.before...), After: []string{}}
			m.Text, m.Cut = around(line, at[0])
			for _, text := range m.Before {
				g.text += len(text)
			}
			g.text += len(m.Text) + len(m.Path)
			g.out.Matches = append(g.out.Matches, m)
			if g.opts.After > 0 {
				g.open = append(g.open, len(g.out.Matches)-1)
			}
		}
	}
	if g.opts.Before > 0 {
		if len(g.before) == g.opts.Before {
			g.before = append(g.before[:0], g.before[1:]...)
		}
		g.before = append(g.before, show())
	}
	return nil
}

// around answers what is shown of a line that matches at a byte.
func around(line []byte, at int) (text string, cut bool) {
	from := 0
	if at > sandboxd.GrepLineBytes*3/4 {
		from = at - sandboxd.GrepLineBytes/4
	}
	to := min(len(line), from+sandboxd.GrepLineBytes)
	cut = from > 0 || to < len(line) || len(line) == grepLine
	for from > 0 && from < to && !utf8.RuneStart(line[from]) {
		from++
	}
	for to < len(line) && to > from && !utf8.RuneStart(line[to]) {
		to--
	}
	return strings.ToValidUTF8(string(line[from:to]), "\uFFFD"), cut
}
