package docker

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"sandboxd"
	roots "sandboxd/internal/image"
)

// The engine keeps the images. What a sandbox's operator imports is told from all else
// by a label; what was pulled, by whomever, is anybody's.

// untagged is what the engine calls an image that nothing names.
const untagged = "<none>:<none>"

// ImportImage is sandboxd.Images'. The archive is handed on as it comes; how much is in
// it the engine does not bound.
func (d *Driver) ImportImage(ctx context.Context, req sandboxd.ImageImport, archive io.Reader) (sandboxd.Image, error) {
	var none sandboxd.Image
	ref, named, err := fullRef(req.Name)
	if err != nil || !named || !sandboxd.ValidImageName(req.Name) {
		return none, sandboxd.Invalid("name", "the container engine takes no such name for an image").WithHint("as tools or tools:1")
	}
	switch _, err := d.engine.image(ctx, ref); {
	case err == nil:
		return none, sandboxd.Errorf(sandboxd.ClassConflict, "there is an image %s already", shortRef(ref)).
			WithHint("choose another name or tag, or remove it first: sandboxd image remove --driver docker %s", shortRef(ref))
	case !isClass(err, sandboxd.ClassNotFound):
		return none, err
	}
	walked := roots.Walk(archive, req.Limits)
	defer walked.Close()
	if err := d.engine.importImage(ctx, ref, walked); err != nil {
		return none, err
	}
	return d.describe(ctx, ref)
}

// importImage takes as long as ctx allows.
func (e *engine) importImage(ctx context.Context, ref string, archive io.Reader) error {
	watched := &remembering{r: archive}
	said, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: watched, SourceName: "-"}, ref,
		client.ImageImportOptions{Changes: []string{"LABEL " + labelImage + "=" + shortRef(ref)}, Message: "imported by sandboxd"})
	if err == nil {
		_, err = io.Copy(io.Discard, said)
		said.Close()
	}
	if failed := watched.failed.Load(); failed != nil {
		return *failed // why the engine got half an archive
	}
	if err == nil {
		return nil
	}
	explained := e.explain(err)
	if isClass(explained, sandboxd.ClassUnavailable) && strings.Contains(err.Error(), "tar") {
		return &sandboxd.Error{Class: sandboxd.ClassInvalid, Field: "archive", Err: err, Message: "the container engine cannot unpack it: " + told(err)}
	}
	return explained
}

// remembering tells a failure of the archive from one of the engine that reads it.
type remembering struct {
	r      io.Reader
	failed atomic.Pointer[error] // the transport may read on after an early answer
}

func (r *remembering) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

// describe looks an image up by its full reference.
func (d *Driver) describe(ctx context.Context, ref string) (sandboxd.Image, error) {
	found, err := d.engine.image(ctx, ref)
	if err != nil {
		return sandboxd.Image{}, err
	}
	img := sandboxd.Image{Driver: d.Name(), Name: shortRef(ref), ID: found.ID, Bytes: found.Size}
	img.CreatedAt, _ = time.Parse(time.RFC3339Nano, found.Created)
	if found.Config != nil {
		img.Imported = found.Config.Labels[labelImage] != ""
	}
	return img, nil
}

// shortRef is a reference as people write it.
func shortRef(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return strings.TrimSuffix(reference.FamiliarString(named), ":latest")
}

// ListImages is sandboxd.Images': every name of every image of the engine.
func (d *Driver) ListImages(ctx context.Context) ([]sandboxd.Image, error) {
	list := []sandboxd.Image{}
	var found client.ImageListResult
	err := d.engine.call(ctx, func(ctx context.Context) (err error) {
		found, err = d.engine.api.ImageList(ctx, client.ImageListOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, one := range found.Items {
		for _, tag := range one.RepoTags {
			if tag == untagged {
				continue
			}
			list = append(list, sandboxd.Image{Driver: d.Name(), Name: shortRef(tag), ID: one.ID, Bytes: one.Size,
				CreatedAt: time.Unix(one.Created, 0).UTC(), Imported: one.Labels[labelImage] != ""})
		}
	}
	slices.SortFunc(list, func(a, b sandboxd.Image) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// RemoveImage is sandboxd.Images'. The engine refuses while a container has the image.
func (d *Driver) RemoveImage(ctx context.Context, name string) error {
	ref, _, err := fullRef(name)
	if err != nil {
		return err
	}
	// Nobody's containers do not hold it.
	if found, err := d.engine.image(ctx, ref); err == nil {
		d.ready.Forget(func(k kind) bool { return k.image == found.ID })
	}
	err = d.engine.call(ctx, func(ctx context.Context) error {
		_, err := d.engine.api.ImageRemove(ctx, ref, client.ImageRemoveOptions{PruneChildren: true})
		return err
	})
	if isClass(err, sandboxd.ClassNotFound) {
		return &sandboxd.Error{Class: sandboxd.ClassNotFound, Field: "image", Err: err, Message: "the container engine has no such image",
			Hint: "sandboxd image list says which there are"}
	}
	return err
}

// PullImage is sandboxd.ImagePuller's.
func (d *Driver) PullImage(ctx context.Context, req sandboxd.ImagePull, tell func(sandboxd.PullProgress)) (sandboxd.Image, error) {
	ref, pullable, err := fullRef(req.Image)
	if err != nil {
		return sandboxd.Image{}, err
	}
	if req.Missing {
		found, err := d.describe(ctx, ref)
		if !isClass(err, sandboxd.ClassNotFound) {
			return found, err
		}
	}
	if !pullable {
		return sandboxd.Image{}, sandboxd.Invalid("image", "an id cannot be pulled").WithHint("name it as python:3.12-slim")
	}
	if err := d.engine.pull(ctx, ref, tell); err != nil {
		return sandboxd.Image{}, err
	}
	return d.describe(ctx, ref)
}

// followPull reads what the engine says of a pull until its end.
func followPull(ctx context.Context, said client.ImagePullResponse, tell func(sandboxd.PullProgress)) error {
	if tell == nil {
		defer said.Close()
		return said.Wait(ctx)
	}
	layers := layers{}
	for message, err := range said.JSONMessages(ctx) {
		if err != nil {
			return err
		}
		if message.Error != nil {
			return message.Error
		}
		if layers.hear(message) {
			tell(layers.progress())
		}
	}
	return ctx.Err()
}

// layers are what a pull is made of, by their short digests.
type layers map[string]*layer

type layer struct {
	done, total int64
	whole       bool
}

// maxLayers bounds what a pull may make us remember.
const maxLayers = 1000

// hear takes one message of the engine and says whether anything is new.
func (l layers) hear(m jsonstream.Message) bool {
	one := l[m.ID]
	switch m.Status {
	case "Pulling fs layer", "Waiting", "Already exists", "Downloading", "Verifying Checksum", "Download complete", "Extracting", "Pull complete":
	default:
		return false // of the whole image, or of a kind that is no layer's
	}
	if one == nil {
		if m.ID == "" || len(l) >= maxLayers {
			return false
		}
		one = &layer{}
		l[m.ID] = one
	}
	before := *one
	switch m.Status {
	case "Downloading":
		if m.Progress != nil {
			one.done, one.total = max(m.Progress.Current, 0), max(m.Progress.Total, m.Progress.Current, 0)
		}
	case "Verifying Checksum", "Download complete", "Extracting":
		one.done = one.total
	case "Already exists", "Pull complete":
		one.done, one.whole = one.total, true
	}
	return *one != before || before == layer{}
}

func (l layers) progress() sandboxd.PullProgress {
	p := sandboxd.PullProgress{Layers: len(l)}
	for _, one := range l {
		p.Done, p.Total = p.Done+one.done, p.Total+one.total
		if one.whole {
			p.LayersDone++
		}
	}
	return p
}
