package host

import (
	"cmp"
	"context"
	"io"
	"slices"
	"time"

	"sandboxd"
	"sandboxd/internal/image"
)

// mayBring says whether images may be brought here, which is whether they may be named.
func (h *Host) mayBring() error {
	if h.cfg.Images {
		return nil
	}
	return sandboxd.Errorf(sandboxd.ClassForbidden, "this host lets nobody bring images").
		WithHint("start the server with --images any")
}

// imagesOf answers a driver by name, which must have images; without a name the first
// that has.
func (h *Host) imagesOf(driver string) (sandboxd.Images, error) {
	for _, d := range h.cfg.Drivers {
		if driver != "" && d.Name() != driver {
			continue
		}
		images, ok := d.(sandboxd.Images)
		if ok {
			return images, nil
		}
		if driver != "" {
			return nil, noImages(driver)
		}
	}
	if driver != "" {
		return nil, noDriver()
	}
	return nil, noImages(h.cfg.Drivers[0].Name())
}

// ImportImage implements sandboxd.ImageHost. What the archive is, every driver finds
// out the same way.
func (h *Host) ImportImage(ctx context.Context, req sandboxd.ImageImport, archive io.Reader) (sandboxd.Image, error) {
	var none sandboxd.Image
	if err := h.mayBring(); err != nil {
		return none, err
	}
	if !sandboxd.ValidImageName(req.Name) {
		return none, sandboxd.Invalid("name", "must be up to 64 of a-z 0-9 . _ - and begin with a letter or digit, perhaps with a tag as in tools:1")
	}
	images, err := h.imagesOf(req.Driver)
	if err != nil {
		return none, err
	}
	plain, err := image.Plain(archive, cmp.Or(max(req.Limits.MaxBytes, 0), image.MaxBytes))
	if err != nil {
		return none, err
	}
	made, err := images.ImportImage(ctx, req, plain)
	if err == nil {
		h.log.Info("an image was imported", "driver", made.Driver, "image", made.Name, "bytes", made.Bytes)
	}
	return made, err
}

// ListImages implements sandboxd.ImageHost.
func (h *Host) ListImages(ctx context.Context) ([]sandboxd.Image, error) {
	all := []sandboxd.Image{}
	for _, d := range h.cfg.Drivers {
		images, ok := d.(sandboxd.Images)
		if !ok {
			continue
		}
		list, err := images.ListImages(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// RemoveImage implements sandboxd.ImageHost. A sandbox that is kept would else never
// start again; one that is just being opened finds the image gone.
func (h *Host) RemoveImage(ctx context.Context, driver, name string) error {
	if name == "" {
		return sandboxd.Invalid("name", "it is needed")
	}
	if driver == "" {
		driver = h.driverFor(name, "")
	}
	images, err := h.imagesOf(driver)
	if err != nil {
		return err
	}
	// A delete that was accepted goes on clearing away for a moment, which whoever asked
	// for it does not see.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(deleteTime)
	for {
		users, leaving, err := h.usersOf(ctx, driver, name)
		switch {
		case err != nil:
			return err
		case len(users) > 0:
			return sandboxd.Errorf(sandboxd.ClassConflict, "the image is in use by: %s", joinSome(users, 20)).
				WithHint("delete these sandboxes first")
		case !leaving:
			return images.RemoveImage(ctx, name)
		}
		select {
		case <-tick.C:
		case <-late:
			return images.RemoveImage(ctx, name) // which says what is in its way
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// deleteTime bounds the wait for deletes under way.
const deleteTime = 10 * time.Second

// usersOf answers the keys of the sandboxes that have an image, and whether some of
// them are just being deleted.
func (h *Host) usersOf(ctx context.Context, driver, name string) (users []string, leaving bool, err error) {
	recs, err := h.store.List(ctx)
	for _, rec := range recs {
		switch {
		case rec.Driver != driver || image.Canonical(rec.Image) != image.Canonical(name):
		case rec.State == sandboxd.StateDeleting:
			leaving = true
		default:
			users = append(users, rec.Key)
		}
	}
	return users, leaving, err
}

// PullImage implements sandboxd.ImageHost.
func (h *Host) PullImage(ctx context.Context, req sandboxd.ImagePull, tell func(sandboxd.PullProgress)) (sandboxd.Image, error) {
	var none sandboxd.Image
	if err := h.mayBring(); err != nil {
		return none, err
	}
	if err := checkName("image", req.Image); err != nil {
		return none, err
	}
	if req.Image == "" {
		return none, sandboxd.Invalid("image", "it is needed")
	}
	if req.Driver == "" {
		req.Driver = h.driverFor(req.Image, "")
	}
	images, err := h.imagesOf(req.Driver)
	if err != nil {
		return none, err
	}
	if puller, ok := images.(sandboxd.ImagePuller); ok {
		return puller.PullImage(ctx, req, tell)
	}
	here, err := images.ListImages(ctx)
	if err != nil {
		return none, err
	}
	name := image.Canonical(req.Image)
	at := slices.IndexFunc(here, func(i sandboxd.Image) bool { return i.Name == name })
	switch {
	case at < 0:
		_, err = images.ChooseImage(req.Image, "")
		return none, err
	case !req.Missing:
		return none, sandboxd.Errorf(sandboxd.ClassUnsupported, "the %s driver reaches no registry", req.Driver).
			WithHint("import a root file system: sandboxd image import NAME FILE")
	}
	return here[at], nil
}
