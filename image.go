package sandboxd

import (
	"context"
	"io"
	"strings"
	"time"
)

// Image is what a sandbox can run in instead of the machine's own programs.
type Image struct {
	Driver    string    `json:"driver"`
	Name      string    `json:"name" doc:"What --image takes"`
	ID        string    `json:"id" doc:"Of its content"`
	Bytes     int64     `json:"bytes"`
	CreatedAt time.Time `json:"created_at"`
	Imported  bool      `json:"imported,omitempty" doc:"It came by an import here, not from a registry"`
	Dropped   int64     `json:"dropped,omitempty" doc:"Devices and pipes that the import left out"`
}

// ImageImport says what becomes of an archive.
type ImageImport struct {
	Name   string // ValidImageName
	Driver string // whose it will be; empty for the host's first that keeps images
	Limits TarLimits
}

// ImagePull says what to pull.
type ImagePull struct {
	Image   string `json:"image" doc:"Reference, as python:3.12-slim" maxLength:"255"`
	Driver  string `json:"driver,omitempty" doc:"Driver, default the one that a sandbox of this image would have"`
	Missing bool   `json:"missing,omitempty" doc:"Pull nothing when the image is there"`
}

// PullProgress is how far a pull is. Total is what is known of so far: it grows while
// layers are looked at.
type PullProgress struct {
	Done       int64 `json:"done" doc:"Bytes that arrived"`
	Total      int64 `json:"total" doc:"Bytes of the layers whose size is known"`
	Layers     int   `json:"layers"`
	LayersDone int   `json:"layers_done" doc:"Layers that are there whole"`
}

// ImageHost is the power over a host's images, which is the administrator's: a Host
// that is handed to anybody else does not have it. It has two implementations under
// one suite, as Host has. Methods are safe for concurrent use.
type ImageHost interface {
	// ImportImage makes an image of a root file system: a tar, plain or gzipped. It is
	// there whole or not at all; cancelling ctx ends it. ClassConflict when the name is
	// taken; ClassInvalid with Field "archive" for what is no such tar, leaves its root
	// or is beyond the limits.
	ImportImage(ctx context.Context, req ImageImport, archive io.Reader) (Image, error)
	// ListImages lists what every driver has, driver after driver, by name.
	ListImages(ctx context.Context) ([]Image, error)
	// RemoveImage removes a name of a driver's, and what nothing else names.
	// ClassConflict while a sandbox has the image, running or not; ClassNotFound.
	RemoveImage(ctx context.Context, driver, name string) error
	// PullImage brings an image from its registry. tell, which may be nil, hears how
	// far it is, never twice at once. Cancelling ctx ends the pull. ClassUnsupported
	// for a driver that reaches no registry.
	PullImage(ctx context.Context, req ImagePull, tell func(PullProgress)) (Image, error)
}

// ValidImageName says whether an import may make an image of this name: up to 64 of
// [a-z0-9._-] that begin with a letter or digit, and perhaps a colon and a tag of up
// to 64 of [A-Za-z0-9._-].
func ValidImageName(s string) bool {
	name, tag, tagged := strings.Cut(s, ":")
	if tagged && (!validName(tag, 64) || tag[0] == '.') {
		return false
	}
	return validName(name, 64) && name == strings.ToLower(name) && name[0] != '.' && name[0] != '_'
}
