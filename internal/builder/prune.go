package builder

import (
	"context"
	"errors"
	"slices"

	"sandboxd"
	"sandboxd/internal/catalogue/recipe"
)

// Prune removes the images that an owner has for one of these runtimes and that are not to
// be kept, with what its failed builds have left, and answers their names. What has no
// label of ours is never touched, nor is another owner's name, what a container uses or
// what is just being built.
func (b *Builder) Prune(ctx context.Context, owner string, runtimes, keep []string) ([]string, error) {
	held, err := b.cfg.Images.ListImages(ctx, recipe.LabelRuntime)
	if err != nil {
		return nil, err
	}
	var gone []string
	var errs []error
	for _, image := range held {
		if !slices.Contains(runtimes, image.Labels[recipe.LabelRuntime]) || b.flying(image.Labels[recipe.LabelRuntime]) ||
			slices.Contains(keep, image.ID) {
			continue
		}
		// By name where it has one: what has another owner's name, too, stays by that.
		names := slices.DeleteFunc(slices.Clone(image.Tags), func(tag string) bool { return slices.Contains(keep, tag) || !recipe.Owned(tag, owner) })
		if len(image.Tags) == 0 && image.Labels[recipe.LabelOwner] == owner {
			names = []string{image.ID}
		}
		for _, name := range names {
			switch err := b.cfg.Images.RemoveImage(ctx, name); {
			case err == nil:
				gone = append(gone, name)
			case sandboxd.ClassOf(err) != sandboxd.ClassConflict:
				errs = append(errs, err)
			}
		}
	}
	if len(gone) > 0 {
		b.cfg.Log.Info("old images of runtimes were removed", "images", gone)
	}
	return gone, errors.Join(errs...)
}

// flying says whether an image of a runtime is just being built.
func (b *Builder) flying(runtime string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.flights {
		if f.spec.Labels[recipe.LabelRuntime] == runtime {
			return true
		}
	}
	return false
}
