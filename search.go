package sandboxd

import "time"

// The bounds of a search that its caller cannot raise. What lies beyond is left
// out and the answer says Truncated.
const (
	SearchTime    = time.Minute // of one search; the default is a third of it
	GlobEntries   = 100_000     // default 10,000; their paths and targets have 16 MiB at most
	GrepMatches   = 10_000      // default 1,000
	GrepBytes     = 4 << 30     // of content read; default 256 MiB
	GrepContext   = 20          // lines before and after a match
	GrepLineBytes = 1000        // of a line that is shown
	GrepTextBytes = 4 << 20     // of all lines of one answer
)

// GlobOptions say what Files.Glob looks for and how far it goes.
//
// A pattern is matched with the path below the directory that is searched: '*'
// and '?' stand for any characters of one name, [a-z] and [!a-z] for one of a
// class, {a,b} for either, and '**' for any number of whole names, also none. A
// backslash takes the next character as it is. It is UTF-8 and at most 1,000
// bytes.
type GlobOptions struct {
	Pattern    string
	SkipHidden bool          // leave out names that begin with a dot, and what is below
	MaxEntries int           // zero: the default
	MaxTime    time.Duration // zero: the default
}

// GrepOptions say what Files.Grep looks for and how far it goes.
type GrepOptions struct {
	// Pattern is an RE2 expression, or with Literal the text itself, that a part
	// of one line matches. UTF-8, at most 1,000 bytes. Of very long lines only the
	// first 64 KiB are searched.
	Pattern    string
	Literal    bool
	IgnoreCase bool
	// Glob chooses files as GlobOptions.Pattern does; without a '/' it is matched
	// with the file's own name. Empty means all.
	Glob          string
	SkipHidden    bool
	Before, After int           // lines of context
	MaxMatches    int           // zero: the default
	MaxBytes      int64         // zero: the default
	MaxTime       time.Duration // zero: the default
}

// Match is one line that matches. Its texts are for reading: without the line's
// end, bytes that are no UTF-8 replaced, and cut to GrepLineBytes.
type Match struct {
	Path          string // relative to the workspace; bytes
	Line          int64  // from 1
	Column        int    // of the first match in the line, in bytes from 1
	Text          string
	Cut           bool // Text is a part of the line, around the match
	Before, After []string
}

// GrepResult is a bounded answer. Matches is never nil; its order is that of
// Files.Walk. Truncated says that a bound was met, Incomplete that something
// could not be read; neither is an error.
type GrepResult struct {
	Matches    []Match
	Truncated  bool
	Incomplete bool
	Files      int64 // read, whole or in part
	Binary     int64 // files left out because they have a NUL byte
	Bytes      int64 // of content read
}
