package sandboxd

import (
	"bytes"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Entry is a FileInfo as JSON carries it. A name that is not UTF-8 is shown with
// replacement characters and given exactly beside it, in base64.
type Entry struct {
	Path      string    `json:"path"`
	PathB64   []byte    `json:"path_b64,omitempty" doc:"The exact path, when it is not UTF-8"`
	Type      FileType  `json:"type" enum:"file,dir,link,other"`
	Size      int64     `json:"size"`
	Mode      string    `json:"mode" doc:"Permission bits, octal"`
	ModTime   time.Time `json:"mod_time"`
	ETag      string    `json:"etag"`
	Target    string    `json:"target,omitempty" doc:"Of a link, as stored"`
	TargetB64 []byte    `json:"target_b64,omitempty"`
}

// EntryOf is info as JSON carries it.
func EntryOf(info FileInfo) Entry {
	e := Entry{Type: info.Type, Size: info.Size, Mode: FormatMode(info.Mode), ModTime: info.ModTime.UTC(), ETag: info.ETag}
	e.Path, e.PathB64 = shownName(info.Path)
	e.Target, e.TargetB64 = shownName(info.Target)
	return e
}

// Info is the inverse of EntryOf.
func (e Entry) Info() FileInfo {
	info := FileInfo{Path: e.Path, Type: e.Type, Size: e.Size, Mode: ParseMode(e.Mode), ModTime: e.ModTime, ETag: e.ETag, Target: e.Target}
	if e.PathB64 != nil {
		info.Path = string(e.PathB64)
	}
	if e.TargetB64 != nil {
		info.Target = string(e.TargetB64)
	}
	return info
}

// Name is a path as JSON carries it, as in Entry.
type Name struct {
	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty" doc:"Instead of path, or exactly, when it is not UTF-8"`
}

// NameOf is path as JSON carries it.
func NameOf(path string) Name {
	var n Name
	n.Path, n.PathB64 = shownName(path)
	return n
}

// Exact is the inverse of NameOf.
func (n Name) Exact() string {
	if n.PathB64 != nil {
		return string(n.PathB64)
	}
	return n.Path
}

// Content is bytes as JSON carries them: as text, or in base64 when they are not
// UTF-8 or have a NUL.
type Content struct {
	Text string `json:"text,omitempty"`
	B64  []byte `json:"b64,omitempty" doc:"Instead of text, when it is not UTF-8 or has a NUL"`
}

// ContentOf is data as JSON carries it.
func ContentOf(data []byte) Content {
	if utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 {
		return Content{Text: string(data)}
	}
	return Content{B64: data}
}

// Bytes is the inverse of ContentOf.
func (c Content) Bytes() []byte {
	if c.B64 != nil {
		return c.B64
	}
	return []byte(c.Text)
}

func shownName(name string) (string, []byte) {
	if utf8.ValidString(name) {
		return name, nil
	}
	return strings.ToValidUTF8(name, "\uFFFD"), []byte(name)
}

// FormatMode writes permission bits as four octal digits.
func FormatMode(m fs.FileMode) string { return fmt.Sprintf("%04o", m.Perm()) }

// ParseMode is the inverse of FormatMode; what is no octal number is 0.
func ParseMode(octal string) fs.FileMode {
	m, err := strconv.ParseUint(octal, 8, 32)
	if err != nil {
		return 0
	}
	return fs.FileMode(m).Perm()
}

// MatchEntry is a Match as JSON carries it.
type MatchEntry struct {
	Name
	Line   int64    `json:"line" doc:"From 1"`
	Column int      `json:"column" doc:"Of the first match in the line, in bytes from 1"`
	Text   string   `json:"text"`
	Cut    bool     `json:"cut,omitempty" doc:"The text is a part of the line, around the match"`
	Before []string `json:"before,omitempty"`
	After  []string `json:"after,omitempty"`
}

// MatchOf is m as JSON carries it.
func MatchOf(m Match) MatchEntry {
	return MatchEntry{Name: NameOf(m.Path), Line: m.Line, Column: m.Column, Text: m.Text, Cut: m.Cut, Before: m.Before, After: m.After}
}

// Match is the inverse of MatchOf.
func (e MatchEntry) Match() Match {
	return Match{Path: e.Exact(), Line: e.Line, Column: e.Column, Text: e.Text, Cut: e.Cut, Before: e.Before, After: e.After}
}

// ChangeEntry is a WatchEvent as JSON carries it.
type ChangeEntry struct {
	Kind ChangeKind `json:"kind"`
	Name
	Entry *Entry `json:"entry,omitempty"`
}

// ChangeOf is e as JSON carries it.
func ChangeOf(e WatchEvent) ChangeEntry {
	out := ChangeEntry{Kind: e.Kind}
	switch e.Kind {
	case ChangeChanged:
		entry := EntryOf(e.Info)
		out.Entry = &entry
	case ChangeRemoved:
		out.Name = NameOf(e.Info.Path)
	}
	return out
}

// Event is the inverse of ChangeOf.
func (c ChangeEntry) Event() WatchEvent {
	if c.Entry != nil {
		return WatchEvent{Kind: c.Kind, Info: c.Entry.Info()}
	}
	return WatchEvent{Kind: c.Kind, Info: FileInfo{Path: c.Exact()}}
}
