package fake

import (
	"context"
	"slices"
	"sync"

	"sandboxd"
)

// Imaging is a Driver that has images built, as one of containers has: its sandboxes
// are given images, which change nothing for them.
type Imaging struct {
	*Driver
	Images *Images
}

var (
	_ sandboxd.ImageBuilder = Imaging{}
	_ sandboxd.ImageBuilds  = (*Images)(nil)
)

// ImageBuilds implements sandboxd.ImageBuilder.
func (d Imaging) ImageBuilds() sandboxd.ImageBuilds { return d.Images }

// Images are images without anything in them. The zero value has none.
type Images struct {
	// Build is what making one does, before there is one; nil is nothing.
	Build func(ctx context.Context, said func(line string)) error

	mu   sync.Mutex
	held map[string]sandboxd.HeldImage
}

// FindImage implements sandboxd.ImageBuilds.
func (i *Images) FindImage(_ context.Context, ref string) (sandboxd.HeldImage, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	held, ok := i.held[ref]
	if !ok {
		return held, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no such image")
	}
	return held, nil
}

// PullImage implements sandboxd.ImageBuilds: every registry has everything.
func (i *Images) PullImage(_ context.Context, ref string, _ func(string)) error {
	i.keep(ref, nil)
	return nil
}

// BuildImage implements sandboxd.ImageBuilds.
func (i *Images) BuildImage(ctx context.Context, b sandboxd.ImageBuild) error {
	if i.Build != nil {
		if err := i.Build(ctx, b.Said); err != nil {
			return err
		}
	}
	i.keep(b.Tag, b.Labels)
	return nil
}

func (i *Images) keep(name string, labels map[string]string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.held == nil {
		i.held = map[string]sandboxd.HeldImage{}
	}
	i.held[name] = sandboxd.HeldImage{ID: "sha256:" + sandboxd.NewID(), Tags: []string{name}, Labels: labels}
}

// TagImage implements sandboxd.ImageBuilds.
func (i *Images) TagImage(_ context.Context, ref, tag string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, held := range i.held {
		if held.ID == ref || slices.Contains(held.Tags, ref) {
			held.Tags = []string{tag}
			i.held[tag] = held
			return nil
		}
	}
	return sandboxd.Errorf(sandboxd.ClassNotFound, "there is no such image")
}

// ListImages implements sandboxd.ImageBuilds.
func (i *Images) ListImages(_ context.Context, label string) (all []sandboxd.HeldImage, _ error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, held := range i.held {
		if _, ok := held.Labels[label]; ok {
			all = append(all, held)
		}
	}
	return all, nil
}

// RemoveImage implements sandboxd.ImageBuilds.
func (i *Images) RemoveImage(_ context.Context, ref string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.held, ref)
	return nil
}
