package process

import (
	"context"
	"io"
	"strings"

	"sandboxd"
	"sandboxd/internal/image"
)

// An environment in an image has the image's root in place of the machine's programs.
// All else is as it is without: what a sandbox has of its own at the top, the covers,
// the read-only mounts. An image is held by what runs in it, and by what is kept ready.

// ChooseImage is sandboxd.Images'.
func (d *Driver) ChooseImage(name, ociRuntime string) (string, error) {
	if ociRuntime != "" {
		return "", sandboxd.Errorf(sandboxd.ClassUnsupported, "the process driver has no OCI runtime").
			WithHint("the docker driver has; sandboxd doctor says whether it works here")
	}
	if name == "" {
		return "", nil
	}
	found, err := d.images.Get(name)
	return found.Name, err
}

// seed has the home of a new sandbox made, with what its image has there.
func (d *Driver) seed(ctx context.Context, spec sandboxd.EnvironmentSpec) error {
	if spec.Seed == nil {
		return nil
	}
	if spec.Image == "" {
		return spec.Seed.SeedHome(ctx, nil)
	}
	_, release, err := d.images.Hold(spec.Image)
	if err != nil {
		return err
	}
	defer release()
	below, err := d.images.Below(ctx, spec.Image, strings.TrimPrefix(sandboxd.HomeDir, "/"))
	if err != nil {
		return err
	}
	if below == nil {
		return spec.Seed.SeedHome(ctx, nil)
	}
	defer below.Close()
	return spec.Seed.SeedHome(ctx, below)
}

// Environ is sandboxd.Images': a root file system sets nothing.
func (d *Driver) Environ(string) []string { return nil }

// ImportImage is sandboxd.Images'.
func (d *Driver) ImportImage(ctx context.Context, req sandboxd.ImageImport, archive io.Reader) (sandboxd.Image, error) {
	return d.images.Import(ctx, req, archive)
}

// ListImages is sandboxd.Images'.
func (d *Driver) ListImages(context.Context) ([]sandboxd.Image, error) { return d.images.List() }

// RemoveImage is sandboxd.Images'. What is kept ready in the image ends before.
func (d *Driver) RemoveImage(_ context.Context, name string) error {
	name = image.Canonical(name)
	if _, err := d.images.Get(name); err != nil {
		return err
	}
	d.ready.Forget(func(k kind) bool { return image.Canonical(k.spec.Image) == name })
	return d.images.Remove(name)
}
