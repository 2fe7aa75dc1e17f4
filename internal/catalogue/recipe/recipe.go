// Package recipe turns an entry of the catalogue into what is built: the text of a
// Dockerfile that the classic builder of Engine API 1.41 understands, the files beside
// it, a digest and a tag. It is one pure function, so whoever builds ahead and whoever
// opens a sandbox mean the same image, on every architecture. It builds nothing.
package recipe

import (
	"sandboxd"
	"sandboxd/internal/catalogue"
)

// Options are what a host adds to an entry.
type Options struct {
	BaseImage string // instead of the entry's own; empty: the entry's, else DefaultBase
	UID       uint32 // of the account sandbox; 0: DefaultUID
	WorkDir   string // empty: sandboxd.WorkDir
	// CABundle are certificates (PEM) that the build's downloads trust, complete with
	// those of the base. Empty: those of the base alone. They are not in the image
	// afterwards and not in its digest.
	CABundle []byte
}

// DefaultBase is built upon where neither the entry nor the host names an image.
const DefaultBase = "python:3.12-slim"

// DefaultUID is the number of the account sandbox in built images, and of its group.
const DefaultUID = 10001

// Spec is what is built, or for an entry with a finished image what is pulled.
type Spec struct {
	Base       string // the image that is built upon, or the finished one
	Dockerfile []byte // nil: nothing is built
	Files      []File // of the build's context, beside the Dockerfile
	Digest     string // "sha256:" and hex, of all that decides what is built
	Tag        string // name of the image; of a finished one its own
	Labels     map[string]string
}

// Builds says whether there is something to build.
func (s Spec) Builds() bool { return s.Dockerfile != nil }

// File is one regular file of a build's context.
type File struct {
	Name    string // relative, no directories
	Content []byte
}

// Labels of a built image. By LabelDigest images are found and pruned.
const (
	LabelRuntime = "sandboxd.runtime" // the alias
	LabelDigest  = "sandboxd.runtime.digest"
)

// For says what is built for an entry. ClassInvalid when the options are wrong.
func For(entry catalogue.Entry, opts Options) (Spec, error) {
	return Spec{}, sandboxd.Errorf(sandboxd.ClassUnsupported, "the runtime %s cannot be built", entry.Alias)
}
