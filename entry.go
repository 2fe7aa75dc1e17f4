package sandboxd

import (
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
