package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"sandboxd"
)

// buildShares is the weight of a build's processes against those of sandboxes, which
// have the kernel's 1024: who works in one does not notice that an image is built.
const buildShares = 128

// builds is sandboxd.ImageBuilds over an engine: its classic builder, which every
// version of the API has.
type builds struct{ engine *engine }

var _ sandboxd.ImageBuilder = (*Driver)(nil)

// ImageBuilds is sandboxd.ImageBuilder's.
func (d *Driver) ImageBuilds() sandboxd.ImageBuilds { return builds{d.engine} }

// NewImageBuilds makes images with an engine without a driver. Its second result lets
// go of the engine.
func NewImageBuilds(cfg Config) (sandboxd.ImageBuilds, func() error, error) {
	e, err := newEngine(cfg.Host, cfg.patience())
	if err != nil {
		return nil, nil, err
	}
	return builds{e}, e.close, nil
}

// FindImage is sandboxd.ImageBuilds'.
func (b builds) FindImage(ctx context.Context, ref string) (sandboxd.HeldImage, error) {
	found, err := b.engine.image(ctx, ref)
	if err != nil {
		return sandboxd.HeldImage{}, err
	}
	held := sandboxd.HeldImage{ID: found.ID, Tags: found.RepoTags}
	if found.Config != nil {
		held.Labels = found.Config.Labels
	}
	return held, nil
}

// PullImage is sandboxd.ImageBuilds'.
func (b builds) PullImage(ctx context.Context, ref string, said func(string)) error {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return sandboxd.Invalid("image", "%.100q is no reference of an image", ref)
	}
	progress, err := b.engine.api.ImagePull(ctx, reference.TagNameOnly(named).String(), client.ImagePullOptions{})
	if err != nil {
		return b.engine.explainPull(err)
	}
	defer progress.Close()
	for m, err := range progress.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = m.Error
		}
		if err != nil {
			return b.engine.explainPull(err)
		}
		if m.Progress == nil && m.Status != "" {
			said(strings.TrimSpace(m.ID + " " + m.Status))
		}
	}
	return ctx.Err()
}

// BuildImage is sandboxd.ImageBuilds'. The engine ends a build whose request is given up.
func (b builds) BuildImage(ctx context.Context, req sandboxd.ImageBuild) error {
	network, err := b.network(ctx)
	if err != nil {
		return err
	}
	opts := client.ImageBuildOptions{Tags: []string{req.Tag}, Labels: req.Labels, Version: build.BuilderV1,
		NetworkMode: network, Remove: true, ForceRemove: true, CPUShares: buildShares}
	done, err := b.engine.api.ImageBuild(ctx, req.Context, opts)
	if err != nil {
		return b.engine.explain(err)
	}
	defer done.Body.Close()
	defer context.AfterFunc(ctx, func() { done.Body.Close() })()
	var line lines
	line.said = req.Said
	decoder := json.NewDecoder(done.Body)
	for {
		var m jsonstream.Message
		err := decoder.Decode(&m)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, io.EOF):
			line.end()
			return nil
		case err != nil:
			return b.engine.explain(err)
		case m.Error != nil:
			line.end()
			return sandboxd.Errorf(sandboxd.ClassUnavailable, "%s", told(m.Error))
		}
		if builders.MatchString(m.Stream) {
			line.end() // what a step printed need not have ended its line
		}
		line.write(m.Stream)
		if m.Status != "" && m.Progress == nil {
			line.end()
			line.write(strings.TrimSpace(m.ID+" "+m.Status) + "\n")
		}
	}
}

// network is what builds get: the engine's own bridge or, of an engine that has none,
// what the machine itself has.
func (b builds) network(ctx context.Context) (string, error) {
	err := b.engine.call(ctx, func(ctx context.Context) error {
		_, err := b.engine.api.NetworkInspect(ctx, "bridge", client.NetworkInspectOptions{})
		return err
	})
	switch {
	case err == nil:
		return "bridge", nil
	case isClass(err, sandboxd.ClassNotFound):
		return "host", nil
	}
	return "", err
}

// TagImage is sandboxd.ImageBuilds'.
func (b builds) TagImage(ctx context.Context, ref, tag string) error {
	return b.engine.call(ctx, func(ctx context.Context) error {
		_, err := b.engine.api.ImageTag(ctx, client.ImageTagOptions{Source: ref, Target: tag})
		return err
	})
}

// ListImages is sandboxd.ImageBuilds'.
func (b builds) ListImages(ctx context.Context, label string) ([]sandboxd.HeldImage, error) {
	var found client.ImageListResult
	err := b.engine.call(ctx, func(ctx context.Context) (err error) {
		found, err = b.engine.api.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", label)})
		return err
	})
	held := make([]sandboxd.HeldImage, 0, len(found.Items))
	for _, i := range found.Items {
		tags := make([]string, 0, len(i.RepoTags))
		for _, tag := range i.RepoTags {
			if tag != "<none>:<none>" {
				tags = append(tags, tag)
			}
		}
		held = append(held, sandboxd.HeldImage{ID: i.ID, Tags: tags, Labels: i.Labels})
	}
	return held, err
}

// RemoveImage is sandboxd.ImageBuilds'.
func (b builds) RemoveImage(ctx context.Context, ref string) error {
	if err := b.engine.removeImage(ctx, ref); !isClass(err, sandboxd.ClassNotFound) {
		return err
	}
	return nil
}

// builders are lines of the builder itself.
var builders = regexp.MustCompile(`^(Step \d+/\d+ : | ---> |Removing intermediate container )`)

// lines cuts what a build prints into lines. A carriage return begins one anew, as on
// a terminal.
type lines struct {
	said func(string)
	open strings.Builder
}

// longestLine is where one that does not end is cut.
const longestLine = 4096

func (l *lines) write(text string) {
	for {
		at := strings.IndexAny(text, "\r\n")
		if at < 0 {
			break
		}
		l.open.WriteString(text[:at])
		l.end()
		text = text[at+1:]
	}
	l.open.WriteString(text)
	if l.open.Len() > longestLine {
		l.end()
	}
}

// colours are what the builder and the programs in it print for a terminal.
var colours = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

// end says the line that is open, if there is anything in it.
func (l *lines) end() {
	if text := strings.TrimRight(colours.ReplaceAllString(l.open.String(), ""), " \t"); text != "" {
		l.said(text[:min(len(text), longestLine)])
	}
	l.open.Reset()
}
