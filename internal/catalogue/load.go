package catalogue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"sandboxd"
)

// MaxText is how long a catalogue may be, in bytes.
const MaxText = 1 << 20

// Problem is one thing that is wrong with a catalogue.
type Problem struct {
	Entry string // the alias, or "entry N" counted from 1; empty for the whole
	Field string // of the entry; empty for the whole entry
	Text  string
}

func (p Problem) String() string {
	var b strings.Builder
	for _, part := range []string{p.Entry, p.Field} {
		if part != "" {
			b.WriteString(part + ": ")
		}
	}
	return b.String() + p.Text
}

// Load reads a catalogue in any of its three forms: the array of a file, or, as the
// variable SANDBOXD_RUNTIMES has them, an object by alias or `alias=image;...,...`. The
// order is kept. ClassInvalid names every problem of every entry; then there are no
// entries.
func Load(text []byte) ([]Entry, error) {
	entries, problems := Check(text)
	switch len(problems) {
	case 0:
		return entries, nil
	case 1:
		return nil, sandboxd.Errorf(sandboxd.ClassInvalid, "the runtimes have a mistake: %s", problems[0])
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		lines[i] = p.String()
	}
	return nil, sandboxd.Errorf(sandboxd.ClassInvalid, "the runtimes have %d mistakes: %s", len(problems), strings.Join(lines, "; "))
}

// Check is Load for whoever shows the problems one by one.
func Check(text []byte) ([]Entry, []Problem) {
	l := &loading{}
	l.load(text)
	if len(l.problems) > 0 {
		return nil, l.problems
	}
	return l.entries, nil
}

// loading is a catalogue that is being read.
type loading struct {
	entries  []Entry
	problems []Problem
}

func (l *loading) load(text []byte) {
	text = bytes.TrimSpace(text)
	if len(text) > MaxText {
		l.whole("more than %d bytes", MaxText)
		return
	}
	var named []member
	var asArray bool
	var err error
	switch {
	case len(text) == 0:
	case text[0] == '[':
		asArray = true
		named, err = elements(text)
	case text[0] == '{':
		named, err = members(text)
	default:
		named, err = compact(string(text))
	}
	if err != nil {
		l.whole("%v", err)
		return
	}
	if len(named) == 0 {
		l.whole("there is no runtime in it")
		return
	}
	for _, m := range named {
		d := &decoding{loading: l, name: m.name}
		d.entry.Root = RootWritable
		if asArray {
			d.array(m.value)
		} else {
			d.entry.Alias = m.name
			d.object(m.value)
		}
		if !d.unread {
			d.validate()
		}
		l.entries = append(l.entries, d.entry)
	}
	l.together()
}

// together checks what no single entry can have wrong.
func (l *loading) together() {
	seen := map[string]bool{}
	ordinary := false
	for _, e := range l.entries {
		if seen[e.Alias] && e.Alias != "" {
			l.problems = append(l.problems, Problem{Entry: e.Alias, Field: "alias", Text: "it is there twice"})
		}
		seen[e.Alias] = true
		ordinary = ordinary || !e.Apps
	}
	if !ordinary {
		l.whole("every runtime is for apps, and none can be the default")
	}
}

func (l *loading) whole(format string, args ...any) {
	l.problems = append(l.problems, Problem{Text: fmt.Sprintf(format, args...)})
}

// member is a name and its value, in the order of the text.
type member struct {
	name  string
	value json.RawMessage
}

// members reads one JSON object. What the standard decoder would drop silently, a name
// that is there twice, is an error.
func members(raw []byte) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := opens(dec, '{'); err != nil {
		return nil, readable(raw, err)
	}
	var all []member
	seen := map[string]bool{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, readable(raw, err)
		}
		m := member{name: name.(string)} // the decoder takes only strings there
		if err := dec.Decode(&m.value); err != nil {
			return nil, readable(raw, err)
		}
		if seen[m.name] {
			return nil, fmt.Errorf("%q is there twice", m.name)
		}
		seen[m.name] = true
		all = append(all, m)
	}
	return all, readable(raw, closes(dec))
}

// elements reads one JSON array of objects, and names each by its alias or position.
func elements(raw []byte) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if err := opens(dec, '['); err != nil {
		return nil, readable(raw, err)
	}
	var all []member
	for dec.More() {
		m := member{name: fmt.Sprintf("entry %d", len(all)+1)}
		if err := dec.Decode(&m.value); err != nil {
			return nil, readable(raw, err)
		}
		var named struct{ Alias string }
		if json.Unmarshal(m.value, &named) == nil && named.Alias != "" {
			m.name = named.Alias
		}
		all = append(all, m)
	}
	return all, readable(raw, closes(dec))
}

func opens(dec *json.Decoder, with json.Delim) error {
	tok, err := dec.Token()
	if err == nil && tok != with {
		err = fmt.Errorf("it must begin with %s", with)
	}
	return err
}

// closes reads the closing delimiter and that nothing follows it.
func closes(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows its end")
	}
	return nil
}

// readable says in which line a text stops being JSON.
func readable(raw []byte, err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		line := 1 + bytes.Count(raw[:min(int(syntax.Offset), len(raw))], []byte("\n"))
		return fmt.Errorf("line %d is not JSON: %v", line, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it is not JSON: it ends too early")
	}
	return err
}

var plainNumber = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// compact reads `alias=image;field=value,alias=@runtime`. Images with commas or
// semicolons cannot be written so.
func compact(text string) ([]member, error) {
	var all []member
	seen := map[string]bool{}
	for _, one := range strings.Split(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		parts := strings.Split(one, ";")
		alias, image, ok := strings.Cut(parts[0], "=")
		alias, image = strings.TrimSpace(alias), strings.TrimSpace(image)
		if !ok || alias == "" {
			return nil, fmt.Errorf("%q is not alias=image", parts[0])
		}
		if seen[alias] {
			return nil, fmt.Errorf("%q is there twice", alias)
		}
		seen[alias] = true
		what := "image"
		if name, isBuiltin := strings.CutPrefix(image, "@"); isBuiltin {
			what, image = "runtime", name
		}
		object := []string{jsonText(what) + ":" + jsonText(image)}
		for _, part := range parts[1:] {
			field, value, ok := strings.Cut(part, "=")
			field, value = strings.TrimSpace(field), strings.TrimSpace(value)
			if !ok || field == "" {
				return nil, fmt.Errorf("%s: %q is not field=value", alias, part)
			}
			shown := jsonText(value)
			if (field == "cpus" || field == "cpu_shares" || field == "pids_limit") && plainNumber.MatchString(value) {
				shown = value
			}
			object = append(object, jsonText(field)+":"+shown)
		}
		all = append(all, member{name: alias, value: json.RawMessage("{" + strings.Join(object, ",") + "}")})
	}
	return all, nil
}

// jsonText is a string as JSON has it.
func jsonText(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic("catalogue: a string has no JSON form: " + err.Error())
	}
	return strings.TrimSuffix(b.String(), "\n")
}
