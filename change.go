package sandboxd

// EditBytes is the largest file that Files.Edit changes, before and after.
const EditBytes = 32 << 20

// Edit replaces exact text in a file.
type Edit struct {
	Old, New string // bytes; Old is not empty
	Count    int    // how often Old must be there; zero means once
	All      bool   // instead of Count: as often as it is there, at least once
	IfMatch  string // only if the file's ETag is this
	Synced   bool   // as in WriteOptions
}

// The bounds of one batch.
const (
	BatchItems = 1000
	BatchBytes = 8 << 20 // of all contents together
)

// ReadItem names a file, or a part of it, to be read in a batch.
type ReadItem struct {
	Path   string
	Offset int64
	Length int64 // at most so many bytes; zero means to the end
}

// ReadResult is what came of a ReadItem: Err, or the rest.
type ReadResult struct {
	Info FileInfo
	Data []byte
	Err  error
}

// WriteItem is one file of a batch; Options.Size is not looked at.
type WriteItem struct {
	Path    string
	Data    []byte
	Options WriteOptions
}

// WriteResult is what came of a WriteItem: Err, or Info.
type WriteResult struct {
	Info FileInfo
	Err  error
}

// UploadPart is a piece of a file that arrives in several requests. Together with
// the path, ID names the upload; the caller chooses it, as it does the id of a
// command.
type UploadPart struct {
	ID     string
	Offset int64 // of the piece in the file: what has been received, or 0 to begin anew
	Total  int64 // size of the whole file
}

// UploadState says how far an upload is. After the last byte it is Complete and
// Info describes the file.
type UploadState struct {
	Received int64
	Complete bool
	Info     FileInfo
}

// ChangeKind says what a WatchEvent tells.
type ChangeKind string

const (
	// ChangeChanged: something is there that is new or different.
	ChangeChanged ChangeKind = "changed"
	// ChangeRemoved: nothing is there any more.
	ChangeRemoved ChangeKind = "removed"
	// ChangeResync: more happened than was kept; look at everything again.
	ChangeResync ChangeKind = "resync"
)

// WatchEvent is what happened to one entry, however often, since the last one
// about it. Info describes the entry as it is now; of what was removed it has
// the path only, and of ChangeResync nothing.
type WatchEvent struct {
	Kind ChangeKind
	Info FileInfo
}

// WatchDirs is the largest number of directories that one watcher covers.
const WatchDirs = 20_000
