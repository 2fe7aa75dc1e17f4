package sessions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// fault is one finding about a request, in the form that the wire's clients show.
type fault struct {
	Type  string         `json:"type"`
	Loc   []any          `json:"loc"`
	Msg   string         `json:"msg"`
	Input any            `json:"input"`
	Ctx   map[string]any `json:"ctx,omitempty"`
}

// object is a JSON object of a request while it is read. What is wrong with it is
// gathered, all of it, in the order of reading.
type object struct {
	at     []any
	fields map[string]json.RawMessage
	order  []string
	faults *[]fault
}

// parseObject reads a body. Broken JSON is broken; anything else that is no object is a
// fault of the object that is answered, which then has no fields.
func parseObject(data []byte) (obj object, broken *fault) {
	obj = object{at: []any{"body"}, faults: &[]fault{}}
	if len(bytes.TrimSpace(data)) == 0 {
		obj.report("missing", "Field required", nil)
		return obj, nil
	}
	if err := json.Unmarshal(data, &json.RawMessage{}); err != nil {
		at, text := len(data), "Expecting value"
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at, text = max(0, int(syntax.Offset)-1), syntax.Error()
		}
		return obj, &fault{Type: "json_invalid", Loc: []any{"body", at}, Msg: "JSON decode error", Input: map[string]any{}, Ctx: map[string]any{"error": text}}
	}
	obj.take(data)
	return obj, nil
}

// The bounds of what a body makes the host hold and say: a few bytes of it may become a
// finding of hundreds, which repeats what it is about.
const (
	itemsMax  = 10_000 // of a list, and fields of an object
	faultsMax = 100
	inputMax  = 16 << 10 // bytes of a value that a finding repeats
)

// take makes data the object's content.
func (o *object) take(data json.RawMessage) {
	if !isObject(data) {
		o.report("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", data)
		return
	}
	if tooMany(data) {
		o.report("too_long", fmt.Sprintf("Input should have at most %d fields", itemsMax), data)
		return
	}
	// It was parsed before: these cannot fail.
	_ = json.Unmarshal(data, &o.fields)
	o.order = keysOf(data)
}

func isObject(data json.RawMessage) bool {
	return len(bytes.TrimSpace(data)) > 0 && bytes.TrimSpace(data)[0] == '{'
}

// tooMany says whether a list or an object has more than itemsMax items. It looks at no
// more of them.
func tooMany(data json.RawMessage) bool {
	dec := json.NewDecoder(bytes.NewReader(data))
	opened, _ := dec.Token()
	for n := 0; dec.More(); n++ {
		if n == itemsMax {
			return true
		}
		if opened == json.Delim('{') {
			_, _ = dec.Token()
		}
		var skip json.RawMessage
		if dec.Decode(&skip) != nil {
			return false
		}
	}
	return false
}

// keysOf lists the names of an object in the order in which they stand there.
func keysOf(data json.RawMessage) []string {
	dec := json.NewDecoder(bytes.NewReader(data))
	_, _ = dec.Token()
	var keys []string
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return keys
		}
		keys = append(keys, fmt.Sprint(name))
		var skip json.RawMessage
		if dec.Decode(&skip) != nil {
			return keys
		}
	}
	return keys
}

// found notes a finding, of the first that there are.
func (o object) found(f fault) {
	if len(*o.faults) < faultsMax {
		*o.faults = append(*o.faults, f)
	}
}

// report notes what is wrong with the object itself.
func (o object) report(kind, msg string, input json.RawMessage) {
	o.found(fault{Type: kind, Loc: o.at, Msg: msg, Input: shownInput(input)})
}

// shownInput is a value as a finding repeats it: of a large one the beginning, as text.
func shownInput(raw json.RawMessage) any {
	switch {
	case raw == nil:
		return nil
	case len(raw) > inputMax:
		return strings.ToValidUTF8(string(raw[:inputMax]), "") + "..."
	}
	return raw
}

// wrong notes what is wrong with a field; limit is what it is measured by, if anything.
func (o object) wrong(name, kind, msg string, limit map[string]any) {
	o.found(fault{Type: kind, Loc: append(o.at[:len(o.at):len(o.at)], name), Msg: msg, Input: shownInput(o.fields[name]), Ctx: limit})
}

// value answers a field that is there and not null.
func (o object) value(name string) (json.RawMessage, bool) {
	raw, ok := o.fields[name]
	if !ok || string(bytes.TrimSpace(raw)) == "null" {
		return nil, false
	}
	return raw, true
}

// has says whether the field is there, null or not.
func (o object) has(name string) bool {
	_, ok := o.fields[name]
	return ok
}

// optional is a string field that may be absent or null; the zero pattern takes any.
func (o object) optional(name string, pattern *regexp.Regexp) *string {
	raw, ok := o.value(name)
	if !ok {
		return nil
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		o.wrong(name, "string_type", "Input should be a valid string", nil)
		return nil
	}
	if pattern != nil && !pattern.MatchString(s) {
		o.wrong(name, "string_pattern_mismatch", "String should match pattern '"+pattern.String()+"'", map[string]any{"pattern": pattern.String()})
	}
	return &s
}

// required is a string field that must be there.
func (o object) required(name string, pattern *regexp.Regexp) string {
	if o.fields != nil && !o.has(name) {
		o.missing(name)
		return ""
	}
	if _, ok := o.value(name); !ok && o.fields != nil {
		o.wrong(name, "string_type", "Input should be a valid string", nil)
		return ""
	}
	if s := o.optional(name, pattern); s != nil {
		return *s
	}
	return ""
}

func (o object) missing(name string) {
	whole := map[string]any{}
	for k, v := range o.fields {
		whole[k] = shownInput(v)
	}
	o.found(fault{Type: "missing", Loc: append(o.at[:len(o.at):len(o.at)], name), Msg: "Field required", Input: whole})
}

// flag is a boolean field; what is absent is as given. Null is no boolean.
func (o object) flag(name string, absent bool) bool {
	raw, ok := o.fields[name]
	if !ok {
		return absent
	}
	var v any
	_ = json.Unmarshal(raw, &v)
	switch v := v.(type) {
	case bool:
		return v
	case float64:
		if v == 0 || v == 1 {
			return v == 1
		}
	case string:
		if b, ok := boolWord(v); ok {
			return b
		}
	default:
		o.wrong(name, "bool_type", "Input should be a valid boolean", nil)
		return absent
	}
	o.wrong(name, "bool_parsing", "Input should be a valid boolean, unable to interpret input", nil)
	return absent
}

func boolWord(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "1", "true", "t", "yes", "y", "on":
		return true, true
	case "0", "false", "f", "no", "n", "off":
		return false, true
	}
	return false, false
}

// bound is the range of a number.
type bound struct {
	aboveZero   bool
	least, most *float64
}

var aboveZero = bound{aboveZero: true}

func from(n float64) bound          { return bound{least: &n} }
func between(low, hi float64) bound { return bound{least: &low, most: &hi} }

// number is a field that holds a number, whole or not; nil when it is absent or null.
func (o object) number(name string, whole bool, b bound) *float64 {
	raw, ok := o.value(name)
	if !ok {
		return nil
	}
	var v any
	_ = json.Unmarshal(raw, &v)
	var n float64
	switch v := v.(type) {
	case float64:
		n = v
	case bool:
		if v {
			n = 1
		}
	case string:
		var err error
		if n, err = strconv.ParseFloat(strings.TrimSpace(v), 64); err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			if whole {
				o.wrong(name, "int_parsing", "Input should be a valid integer, unable to parse string as an integer", nil)
			} else {
				o.wrong(name, "float_parsing", "Input should be a valid number, unable to parse string as a number", nil)
			}
			return nil
		}
	default:
		if whole {
			o.wrong(name, "int_type", "Input should be a valid integer", nil)
		} else {
			o.wrong(name, "float_type", "Input should be a valid number", nil)
		}
		return nil
	}
	if whole && n != math.Trunc(n) {
		o.wrong(name, "int_from_float", "Input should be a valid integer, got a number with a fractional part", nil)
		return nil
	}
	if whole && math.Abs(n) > 1<<53 {
		o.wrong(name, "int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size", nil)
		return nil
	}
	if kind, msg, limit := b.violated(n); kind != "" {
		o.wrong(name, kind, msg, limit)
		return nil
	}
	return &n
}

func (b bound) violated(n float64) (kind, msg string, limit map[string]any) {
	text := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
	switch {
	case b.aboveZero && n <= 0:
		return "greater_than", "Input should be greater than 0", map[string]any{"gt": 0}
	case b.least != nil && n < *b.least:
		return "greater_than_equal", "Input should be greater than or equal to " + text(*b.least), map[string]any{"ge": *b.least}
	case b.most != nil && n > *b.most:
		return "less_than_equal", "Input should be less than or equal to " + text(*b.most), map[string]any{"le": *b.most}
	}
	return "", "", nil
}

// whole is number for a field with a default, which null does not stand for.
func (o object) whole(name string, absent int, b bound) int {
	if !o.has(name) {
		return absent
	}
	if _, ok := o.value(name); !ok {
		o.wrong(name, "int_type", "Input should be a valid integer", nil)
		return absent
	}
	if n := o.number(name, true, b); n != nil {
		return int(*n)
	}
	return absent
}

// list is a field that holds strings, at least so many.
func (o object) list(name string, least int) []string {
	if o.fields != nil && !o.has(name) {
		o.missing(name)
		return nil
	}
	var raws []json.RawMessage
	if raw, ok := o.value(name); ok && tooMany(raw) {
		o.wrong(name, "too_long", fmt.Sprintf("List should have at most %d items", itemsMax), nil)
		return nil
	} else if !ok || json.Unmarshal(raw, &raws) != nil {
		if o.fields != nil {
			o.wrong(name, "list_type", "Input should be a valid list", nil)
		}
		return nil
	}
	list := make([]string, len(raws))
	for i, raw := range raws {
		if string(raw) == "null" || json.Unmarshal(raw, &list[i]) != nil {
			o.found(fault{Type: "string_type", Loc: append(o.at[:len(o.at):len(o.at)], name, i), Msg: "Input should be a valid string", Input: shownInput(raw)})
		}
	}
	if len(list) < least {
		o.wrong(name, "too_short", fmt.Sprintf("List should have at least %d item after validation, not %d", least, len(list)),
			map[string]any{"field_type": "List", "min_length": least, "actual_length": len(list)})
	}
	return list
}

// words is a field that holds an object of strings; absent is empty.
func (o object) words(name string) map[string]string {
	if !o.has(name) {
		return nil
	}
	raw := o.fields[name]
	if !isObject(raw) {
		o.wrong(name, "dict_type", "Input should be a valid dictionary", nil)
		return nil
	}
	if tooMany(raw) {
		o.wrong(name, "too_long", fmt.Sprintf("Dictionary should have at most %d items", itemsMax), nil)
		return nil
	}
	var values map[string]json.RawMessage
	_ = json.Unmarshal(raw, &values)
	words := make(map[string]string, len(values))
	for _, k := range keysOf(raw) {
		var s string
		if string(values[k]) == "null" || json.Unmarshal(values[k], &s) != nil {
			o.found(fault{Type: "string_type", Loc: append(o.at[:len(o.at):len(o.at)], name, k), Msg: "Input should be a valid string", Input: shownInput(values[k])})
			continue
		}
		words[k] = s
	}
	return words
}

// child is a field that holds an object; ok is false when it is absent or null.
func (o object) child(name string) (child object, ok bool) {
	raw, ok := o.value(name)
	if !ok {
		return child, false
	}
	child = object{at: append(o.at[:len(o.at):len(o.at)], name), faults: o.faults}
	if !isObject(raw) {
		o.wrong(name, "dict_type", "Input should be a valid dictionary", nil)
		return child, false
	}
	child.take(raw)
	return child, true
}

// only notes every field that is none of the named ones.
func (o object) only(names ...string) {
	known := map[string]bool{}
	for _, n := range names {
		known[n] = true
	}
	for _, k := range o.order {
		if !known[k] {
			o.wrong(k, "extra_forbidden", "Extra inputs are not permitted", nil)
		}
	}
}

// queryFlag reads a boolean of the query.
func queryFlag(q url.Values, name string, faults *[]fault) bool {
	if !q.Has(name) {
		return false
	}
	b, ok := boolWord(last(q[name]))
	if !ok {
		*faults = append(*faults, fault{Type: "bool_parsing", Loc: []any{"query", name}, Msg: "Input should be a valid boolean, unable to interpret input", Input: last(q[name])})
	}
	return b
}

// queryCount reads a whole number of the query that is not negative.
func queryCount(q url.Values, name string, faults *[]fault) int64 {
	if !q.Has(name) {
		return 0
	}
	text := last(q[name])
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		*faults = append(*faults, fault{Type: "int_parsing", Loc: []any{"query", name}, Msg: "Input should be a valid integer, unable to parse string as an integer", Input: text})
	} else if n < 0 {
		*faults = append(*faults, fault{Type: "greater_than_equal", Loc: []any{"query", name}, Msg: "Input should be greater than or equal to 0", Input: text, Ctx: map[string]any{"ge": 0}})
	}
	return n
}

func last(list []string) string { return list[len(list)-1] }
