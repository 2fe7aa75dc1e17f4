package docker

import (
	"context"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"

	"sandboxd"
)

// image is what a container needs to know of one.
type image struct {
	id      string
	environ []string
	volumes []string // places that the image declares to be volumes
}

// maxVolumes bounds what an image may declare.
const maxVolumes = 32

// image finds an image by reference or id, and pulls one that is not there.
func (d *Driver) image(ctx context.Context, ref string) (image, error) {
	ref, pullable, err := fullRef(ref)
	if err != nil {
		return image{}, err
	}
	found, err := d.engine.image(ctx, ref)
	if isClass(err, sandboxd.ClassNotFound) && pullable {
		d.cfg.Log.Info("pulling an image", "image", ref)
		if err := d.engine.pull(ctx, ref, nil); err != nil {
			return image{}, err
		}
		found, err = d.engine.image(ctx, ref)
	}
	if isClass(err, sandboxd.ClassNotFound) {
		return image{}, sandboxd.Invalid("image", "there is no such image here, and an id cannot be pulled")
	}
	if err != nil {
		return image{}, err
	}
	if found.Os != "linux" || found.Architecture != "" && found.Architecture != runtime.GOARCH {
		return image{}, sandboxd.Invalid("image", "it is for %.20s/%.20s, this machine is linux/%s", found.Os, found.Architecture, runtime.GOARCH)
	}
	img := image{id: found.ID}
	if found.Config == nil {
		return img, nil
	}
	img.environ = found.Config.Env
	for declared := range found.Config.Volumes {
		// As the engine reads it: "/workspace/." is not to cover the workspace.
		place := path.Clean("/" + declared)
		if !slices.Contains([]string{sandboxd.WorkDir, sandboxd.HomeDir, "/tmp", "/"}, place) && !slices.Contains(img.volumes, place) {
			img.volumes = append(img.volumes, place)
		}
	}
	if len(img.volumes) > maxVolumes {
		return image{}, sandboxd.Invalid("image", "it declares %d volumes, more than %d", len(img.volumes), maxVolumes)
	}
	return img, nil
}

// fullRef is a reference with all that it leaves out. An id cannot be pulled.
func fullRef(ref string) (full string, pullable bool, err error) {
	parsed, err := reference.ParseAnyReference(ref)
	if err != nil {
		return "", false, sandboxd.Invalid("image", "it is no reference of an image").WithHint("as python:3.12-slim or registry.example/team/tools@sha256:...")
	}
	if named, ok := parsed.(reference.Named); ok {
		return reference.TagNameOnly(named).String(), true, nil
	}
	return ref, false, nil
}

// image looks an image up. ClassNotFound if it is not there.
func (e *engine) image(ctx context.Context, ref string) (client.ImageInspectResult, error) {
	var found client.ImageInspectResult
	err := e.call(ctx, func(ctx context.Context) (err error) {
		found, err = e.api.ImageInspect(ctx, ref)
		if err == nil && found.ID == "" {
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "what answers in the container engine's place is none: an image without an id")
		}
		return err
	})
	return found, err
}

// pull brings an image. It takes as long as ctx allows. tell may be nil.
func (e *engine) pull(ctx context.Context, ref string, tell func(sandboxd.PullProgress)) error {
	said, err := e.api.ImagePull(ctx, ref, client.ImagePullOptions{})
	if err == nil {
		err = followPull(ctx, said, tell)
	}
	return e.explainPull(err)
}

// explainPull tells an image that is nowhere from a registry that fails.
func (e *engine) explainPull(err error) error {
	if err == nil {
		return nil
	}
	explained := e.explain(err)
	text := err.Error()
	for _, absent := range []string{"not found", "manifest unknown", "does not exist", "name unknown", "denied"} {
		if strings.Contains(text, absent) && !isPage(text) {
			return &sandboxd.Error{Class: sandboxd.ClassInvalid, Field: "image", Err: err,
				Message: "there is no such image here, and its registry does not give it: " + told(err)}
		}
	}
	if isClass(explained, sandboxd.ClassUnavailable) && !client.IsErrConnectionFailed(err) {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the image is not here and cannot be pulled: %s", told(err)).
			WithHint("pull it by hand where the registry can be reached, or bring it with `docker load`")
	}
	return explained
}

// environOf is a container's environment without what is the init's.
func environOf(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(kv string) bool { return slices.Contains(initEnviron, kv) })
}
