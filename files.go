package sandboxd

import (
	"context"
	"io"
	"io/fs"
	"time"
)

// FileType is what a directory entry is. Links are listed, never followed out.
type FileType string

const (
	TypeFile  FileType = "file"
	TypeDir   FileType = "dir"
	TypeLink  FileType = "link"
	TypeOther FileType = "other"
)

// FileInfo describes one entry. Path is relative to the workspace, with '/'
// between names; names are bytes, so Path need not be UTF-8.
type FileInfo struct {
	Path    string
	Type    FileType
	Size    int64
	Mode    fs.FileMode // permission bits only
	ModTime time.Time
	ETag    string // changes with content or metadata; opaque, quoted as in HTTP
	Target  string // of a link, as stored
}

// Listing is a bounded answer. Truncated says that a bound was met, Incomplete
// that something inside could not be read; neither is an error.
type Listing struct {
	Entries    []FileInfo
	Truncated  bool
	Incomplete bool
}

// ListOptions bound a listing. Depth 1 lists the directory's own entries; deeper
// listings are breadth first. Zero values mean 1 level and 100,000 entries. Paths and
// targets of links have 16 MiB together at most.
type ListOptions struct {
	Depth      int
	MaxEntries int
}

// The bounds of a tree (D2).
const (
	TreeDepth   = 6
	TreeEntries = 2000
)

// WriteOptions say under which conditions a file is written.
type WriteOptions struct {
	IfMatch     string // only if the present ETag is this
	IfNoneMatch bool   // only if nothing is there
	Synced      bool   // answer after the bytes survive a power cut
	Append      bool   // add to the end instead of replacing; not atomic against other appenders in the sandbox
	Executable  bool   // give a new file its execute bits
	Size        int64  // expected size, -1 if unknown; a body of another size is ClassInvalid and nothing changes
}

// TarLimits bound what an archive may bring. Zero means the default of each.
type TarLimits struct {
	MaxEntries int64 // default 1,000,000
	MaxBytes   int64 // default 16 GiB
}

// TarResult counts what was unpacked.
type TarResult struct {
	Files int64 `json:"files"`
	Dirs  int64 `json:"dirs"`
	Links int64 `json:"links"`
	Bytes int64 `json:"bytes"`
}

// Usage is what a workspace holds: blocks on disk by entry, hard links once.
type Usage struct {
	Bytes      int64 `json:"bytes"`
	Entries    int64 `json:"entries"`
	Incomplete bool  `json:"incomplete,omitempty"`
}

// FileReader is an open regular file.
type FileReader interface {
	io.ReadSeekCloser
	Info() FileInfo
}

// Watcher tells what changes in a directory and below. It is for one reader;
// Close may be called at any time.
type Watcher interface {
	// Next waits for events, at most so many as are collected in a moment. Changes
	// are told in the order in which they were first seen. ClassGone when the
	// directory or the workspace is removed; ClassTooLarge when the tree has grown
	// beyond WatchDirs.
	Next(ctx context.Context) ([]WatchEvent, error)
	// Close lets go of everything; a waiting Next ends with ClassGone.
	Close() error
}

// Files is the workspace of one sandbox. No method starts an environment, and no
// path, whatever a caller or the sandbox made of it, reaches outside.
//
// Paths: relative, '/' separated, "" or "." is the workspace itself; an absolute
// path is accepted only under WorkDir. A path with NUL, with a name of more than
// 255 bytes or that leaves by ".." is ClassInvalid; one that leaves by a link is
// ClassForbidden. A link whose target is absolute and under WorkDir counts as
// relative. Only regular files and directories open; anything else is
// ClassInvalid and never blocks. A full disk is ClassNoSpace with nothing
// half-written. Methods are safe for concurrent use.
type Files interface {
	// Open opens a regular file for reading. ClassNotFound; ClassInvalid for a directory.
	Open(ctx context.Context, path string) (FileReader, error)
	// Write replaces or creates a file atomically: a reader sees the old bytes or
	// the new ones. Missing parents are made. ClassPrecondition, ClassNoSpace,
	// ClassConflict when a directory is there.
	Write(ctx context.Context, path string, body io.Reader, opts WriteOptions) (FileInfo, error)
	// Stat does not follow a link at the end of path.
	Stat(ctx context.Context, path string) (FileInfo, error)
	// List lists a directory. Entries is never nil.
	List(ctx context.Context, path string, opts ListOptions) (Listing, error)
	// Walk calls fn for everything under path, parents first, in name order.
	Walk(ctx context.Context, path string, fn func(FileInfo) error) (incomplete bool, err error)
	// Mkdir makes a directory and its parents; an existing one is no error.
	Mkdir(ctx context.Context, path string) error
	// Remove removes a file, a link or a whole tree. ClassNotFound if nothing is there.
	Remove(ctx context.Context, path string) error
	// Rename moves an entry; a file may replace a file. ClassConflict otherwise.
	Rename(ctx context.Context, from, to string) error
	// TarOut streams path as a tar whose names are relative to it. Links are
	// stored as links.
	TarOut(ctx context.Context, path string, w io.Writer) error
	// TarIn unpacks into directory path, each file atomically. Entries that leave
	// it, devices and FIFOs are ClassInvalid; what came before stays.
	TarIn(ctx context.Context, path string, r io.Reader, limits TarLimits) (TarResult, error)
	// ZipOut is TarOut as a zip.
	ZipOut(ctx context.Context, path string, w io.Writer) error
	// Glob answers the entries below directory path whose names match, parents
	// first, in name order.
	Glob(ctx context.Context, path string, opts GlobOptions) (Listing, error)
	// Grep searches the content of a file, or of the regular files below a
	// directory. Links are not followed and files with a NUL byte are left out.
	Grep(ctx context.Context, path string, opts GrepOptions) (GrepResult, error)
	// Edit replaces text atomically and answers how often. When the text is there
	// any other number of times than expected, it is ClassConflict, says the
	// number, and changes nothing. ClassPrecondition; ClassTooLarge.
	Edit(ctx context.Context, path string, edit Edit) (FileInfo, int, error)
	// ReadMany and WriteMany do many files in one call, one after the other. The
	// answers are in the order of the items, each with its own error; the call
	// fails only when the batch is beyond its bounds. An item whose content would
	// exceed BatchBytes is ClassTooLarge.
	ReadMany(ctx context.Context, items []ReadItem) ([]ReadResult, error)
	WriteMany(ctx context.Context, items []WriteItem) ([]WriteResult, error)
	// Upload adds a piece to an upload and, when it is the last one, puts the file
	// in place as Write does. What arrived of a piece is kept even when its body
	// breaks off. With a nil body it only says how far the upload is; an unknown
	// one has received 0. ClassRange when the piece does not begin there;
	// ClassBusy while another piece arrives; ClassCapacity when too many uploads
	// are unfinished. One that gets nothing for an hour is dropped.
	Upload(ctx context.Context, path string, part UploadPart, body io.Reader, opts WriteOptions) (UploadState, error)
	// Watch begins to tell what changes in directory path and everything below;
	// links are not followed. It covers what happens after it has returned.
	// ClassTooLarge for more than WatchDirs directories; ClassCapacity when the
	// machine or the host has no watches left.
	Watch(ctx context.Context, path string) (Watcher, error)
	// Usage measures the workspace.
	Usage(ctx context.Context) (Usage, error)
}
