// Package recipe turns an entry of the catalogue into what is built: the text of a
// Dockerfile that the classic builder of Engine API 1.41 understands, the files beside
// it, a digest and a tag. It is one pure function, so whoever builds ahead and whoever
// opens a sandbox mean the same image, on every architecture. It builds nothing.
package recipe

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/distribution/reference"

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
	// Owner is who builds, of hex digits: a name of its own for each server of an engine,
	// so that one takes nothing away that another needs. It is not in the digest.
	Owner string
}

// DefaultBase is built upon where neither the entry nor the host names an image.
const DefaultBase = "python:3.12-slim"

// DefaultUID is the number of the account sandbox in built images, and of its group.
const DefaultUID = 10001

// Where a built image has what its user may change, beside HOME. A read-only root leaves
// HOME for it.
const (
	VirtualEnv = "/opt/venv" // of Python, first on PATH
	NPMPrefix  = "/opt/npm"  // where `npm install -g` installs; its bin is next
)

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

// File is one regular file of a build's context, readable by everybody.
type File struct {
	Name    string // relative, no directories
	Content []byte
}

// Labels of a built image. By LabelDigest images are found, whoever built them; the
// builder gives them to the engine, they are not in the Dockerfile.
const (
	LabelRuntime = "sandboxd.runtime" // the alias
	LabelDigest  = "sandboxd.runtime.digest"
	LabelOwner   = "sandboxd.runtime.owner" // who built it; no label of containers, which inherit it
)

// Repository is the name of all built images; their tags are alias, digest and owner.
const Repository = "sandboxd-runtime"

// Owned says whether a name is one that For gives to the images of an owner.
func Owned(tag, owner string) bool {
	return strings.HasPrefix(tag, Repository+":") && strings.HasSuffix(tag, "-"+owner)
}

// version is part of the digest: it changes when the same text means another image.
const version = "sandboxd runtime 1"

// longestLine is what builders read of a Dockerfile at once, its end included.
const longestLine = 64<<10 - 1

var plainPath = regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+$`)

// For says what is built for an entry. ClassInvalid when the options are wrong.
func For(entry catalogue.Entry, opts Options) (Spec, error) {
	if !entry.Builds() {
		return Spec{Base: entry.Image, Tag: entry.Image, Digest: digest("image", entry.Image)}, nil
	}
	if opts.BaseImage == "" {
		opts.BaseImage = entry.BaseImage
	}
	if opts.BaseImage == "" {
		opts.BaseImage = DefaultBase
	}
	if opts.UID == 0 {
		opts.UID = DefaultUID
	}
	if opts.WorkDir == "" {
		opts.WorkDir = sandboxd.WorkDir
	}
	if _, err := reference.ParseNormalizedNamed(opts.BaseImage); err != nil {
		return Spec{}, sandboxd.Invalid("base_image", "it is no name of an image")
	}
	if !plainPath.MatchString(opts.WorkDir) {
		return Spec{}, sandboxd.Invalid("work_dir", "it must be an absolute path of plain letters")
	}
	trusting := len(opts.CABundle) > 0
	// What the downloads trust changes where they may come from, not what they bring:
	// another bundle is no reason to build everything again.
	d := digest(version, string(dockerfile(entry, opts, false)))
	hexes := d[len("sha256:"):]
	s := Spec{
		Base: opts.BaseImage, Dockerfile: dockerfile(entry, opts, trusting), Digest: d,
		Tag:    fmt.Sprintf("%s:%s-%s", Repository, entry.Alias, hexes[:12]),
		Labels: map[string]string{LabelRuntime: entry.Alias, LabelDigest: d},
	}
	if opts.Owner != "" {
		s.Tag += "-" + opts.Owner
		s.Labels[LabelOwner] = opts.Owner
	}
	for line := range bytes.Lines(s.Dockerfile) {
		if len(line) > longestLine {
			return Spec{}, sandboxd.Errorf(sandboxd.ClassInvalid, "it names too much at once: what begins with %.20q has %d bytes as a line of a Dockerfile, and builders read %d", line, len(line), longestLine)
		}
	}
	if trusting {
		s.Files = []File{{caFile, opts.CABundle}, {aptFile, []byte(aptConfig)}}
	}
	return s, nil
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:", len(p))
		_, _ = io.WriteString(h, p) // a hash takes everything
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// environ are the variables of an image in the order of their names.
func environ(env map[string]string) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		lines = append(lines, name+"="+word(env[name]))
	}
	return lines
}
