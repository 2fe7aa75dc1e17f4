// Package pattern matches paths with shell patterns: *, ?, [a-z], {a,b} and **.
//
// It looks at strings only and at no file. A pattern becomes an RE2 expression, so
// that no pattern takes more than linear time.
package pattern

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"sandboxd"
)

// maxBytes is the longest pattern.
const maxBytes = 1000

// Pattern is a compiled pattern. It is safe for concurrent use.
type Pattern struct {
	re     *regexp.Regexp
	prefix []string // leading names without anything special
	slash  bool
}

// Compile parses a pattern. Every refusal is ClassInvalid and names the field.
func Compile(field, text string) (*Pattern, error) {
	switch {
	case text == "":
		return nil, sandboxd.Invalid(field, "it is needed")
	case len(text) > maxBytes:
		return nil, sandboxd.Invalid(field, "it is longer than %d bytes", maxBytes)
	case !utf8.ValidString(text):
		return nil, sandboxd.Invalid(field, "it is not UTF-8; ? stands for any byte of a name that is not")
	case strings.HasPrefix(text, "/"):
		return nil, sandboxd.Invalid(field, "it is relative to the directory that is searched")
	}
	text = strings.TrimPrefix(text, "./")
	p := &Pattern{slash: strings.Contains(text, "/")}
	c := compiler{field: field, rest: text}
	if err := c.all(); err != nil {
		return nil, err
	}
	re, err := regexp.Compile(`(?s)\A` + c.out.String() + `\z`)
	if err != nil {
		return nil, sandboxd.Invalid(field, "it is not a pattern: a class in it is wrong")
	}
	p.re = re
	names := strings.Split(text, "/")
	for _, name := range names[:len(names)-1] {
		if strings.ContainsAny(name, `*?[]{}\,`) {
			break
		}
		p.prefix = append(p.prefix, name)
	}
	return p, nil
}

// Match says whether a whole path matches.
func (p *Pattern) Match(path string) bool { return p.re.MatchString(path) }

// MatchFile matches the path, or only the name of the file when the pattern is
// one for names.
func (p *Pattern) MatchFile(path string) bool {
	if !p.slash {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	return p.re.MatchString(path)
}

// Below says whether something below the directory may match.
func (p *Pattern) Below(dir string) bool {
	i := 0
	for name := range strings.SplitSeq(dir, "/") {
		if i == len(p.prefix) {
			return true
		}
		if name != p.prefix[i] {
			return false
		}
		i++
	}
	return true
}

type compiler struct {
	field string
	rest  string
	out   strings.Builder
	open  []bool // for each open brace, whether a name begins there
}

func (c *compiler) all() error {
	begin := true // of a name
	for c.rest != "" {
		ch, size := utf8.DecodeRuneInString(c.rest)
		switch {
		case begin && strings.HasPrefix(c.rest, "**/"):
			c.out.WriteString(`(?:[^/]+/)*`)
			c.rest = strings.TrimLeft(c.rest[2:], "/")
			continue
		case begin && (c.rest == "**" || len(c.open) > 0 && (strings.HasPrefix(c.rest, "**,") || strings.HasPrefix(c.rest, "**}"))):
			c.out.WriteString(`.+`)
			c.rest = c.rest[2:]
			begin = false
			continue
		case ch == '*':
			c.out.WriteString(`[^/]*`)
			c.rest = strings.TrimLeft(c.rest, "*")
			begin = false
			continue
		case ch == '?':
			c.out.WriteString(`[^/]`)
		case ch == '[':
			if err := c.class(); err != nil {
				return err
			}
			begin = false
			continue
		case ch == '{':
			c.open = append(c.open, begin)
			c.out.WriteString(`(?:`)
			c.rest = c.rest[size:]
			continue
		case ch == '}' && len(c.open) > 0:
			c.open = c.open[:len(c.open)-1]
			c.out.WriteString(`)`)
		case ch == ',' && len(c.open) > 0:
			c.out.WriteString(`|`)
			begin = c.open[len(c.open)-1]
			c.rest = c.rest[size:]
			continue
		case ch == '\\':
			if c.rest = c.rest[1:]; c.rest == "" {
				return sandboxd.Invalid(c.field, "nothing follows the backslash at its end")
			}
			ch, size = utf8.DecodeRuneInString(c.rest)
			fallthrough
		default:
			c.out.WriteString(regexp.QuoteMeta(string(ch)))
		}
		begin = ch == '/'
		c.rest = c.rest[size:]
	}
	return c.closed()
}

func (c *compiler) closed() error {
	if len(c.open) > 0 {
		return sandboxd.Invalid(c.field, "a { in it is not closed")
	}
	return nil
}

// class writes [a-z] or [!a-z]; neither stands for a slash.
func (c *compiler) class() error {
	body := c.rest[1:]
	not := strings.HasPrefix(body, "!") || strings.HasPrefix(body, "^")
	if not {
		body = body[1:]
	}
	end := strings.IndexByte(body, ']')
	if end == 0 { // []a] is a class of ] and a
		if more := strings.IndexByte(body[1:], ']'); more >= 0 {
			end = more + 1
		}
	}
	if end <= 0 {
		return sandboxd.Invalid(c.field, "a [ in it is not closed")
	}
	c.rest = body[end+1:]
	set := strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `&`, `\&`, `~`, `\~`).Replace(body[:end])
	if rest, ok := strings.CutPrefix(set, "-"); ok {
		set = `\-` + rest // no range from what is before it
	}
	one, err := regexp.Compile(`[` + set + `]`)
	if err != nil {
		return sandboxd.Invalid(c.field, "it is not a pattern: a class in it is wrong")
	}
	if one.MatchString("/") && (!not || strings.ContainsRune(set, '/')) {
		return sandboxd.Invalid(c.field, "a class in it has a slash")
	}
	if not {
		c.out.WriteString(`[^/` + set + `]`)
	} else {
		c.out.WriteString(`[` + set + `]`)
	}
	return nil
}
