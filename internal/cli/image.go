package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"sandboxd"
	"sandboxd/client"
)

// imageCmd is about what sandboxes run in. Its flags are those of all below it.
type imageCmd struct {
	Server server         `embed:""`
	Driver string         `placeholder:"NAME" help:"Driver whose image it is, by default the first that suits."`
	JSON   bool           `name:"json" help:"Answer as JSON."`
	Import imageImportCmd `cmd:"" help:"Make an image of a root file system."`
	Pull   imagePullCmd   `cmd:"" help:"Bring an image from its registry; for the docker driver."`
	List   imageListCmd   `cmd:"" help:"List the images that are there."`
	Remove imageRemoveCmd `cmd:"" help:"Remove images that no sandbox has."`
}

type imageImportCmd struct {
	Name string `arg:"" help:"Name of the image, as tools or tools:1."`
	Path string `arg:"" help:"A tar, plain or gzipped, a directory, or - for stdin."`
}

func (c *imageImportCmd) Run(ctx context.Context, p Process, all *imageCmd) error {
	host, err := all.Server.dial(p)
	if err != nil {
		return err
	}
	archive, total, err := openArchive(p, c.Path)
	if err != nil {
		return err
	}
	defer archive.Close()
	m := measure(p, "importing "+shown(c.Path), total)
	made, err := host.ImportImage(ctx, sandboxd.ImageImport{Name: c.Name, Driver: all.Driver}, m.reader(archive))
	m.end(err)
	if err != nil {
		return err
	}
	if made.Dropped > 0 {
		complain(p.Stderr, fmt.Sprintf("%d devices and pipes were left out", made.Dropped), "")
	}
	return all.answer(p, made)
}

// answer prints one image.
func (c *imageCmd) answer(p Process, img sandboxd.Image) error {
	if c.JSON {
		return writeJSON(p.Stdout, img)
	}
	_, err := fmt.Fprintf(p.Stdout, "%s %s %s\n", shown(img.Name), img.Driver, size(img.Bytes))
	return err
}

// openArchive answers what is to be imported, and its size where that is known.
func openArchive(p Process, name string) (io.ReadCloser, int64, error) {
	if name == "-" {
		return io.NopCloser(p.Stdin), -1, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, 0, localError(err)
	}
	if !info.IsDir() {
		f, err := os.Open(name)
		if err != nil {
			return nil, 0, localError(err)
		}
		return f, info.Size(), nil
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, 0, localError(err)
	}
	r, w := io.Pipe()
	go func() {
		defer root.Close()
		err := pack(root, w)
		var own *sandboxd.Error
		if err != nil && !errors.As(err, &own) {
			err = localError(err)
		}
		w.CloseWithError(err)
	}()
	return r, -1, nil
}

type imagePullCmd struct {
	Image string `arg:"" name:"ref" help:"Reference, as python:3.12-slim."`
}

func (c *imagePullCmd) Run(ctx context.Context, p Process, all *imageCmd) error {
	host, err := all.Server.dial(p)
	if err != nil {
		return err
	}
	img, err := pull(ctx, p, host, sandboxd.ImagePull{Image: c.Image, Driver: all.Driver})
	if err != nil {
		return err
	}
	return all.answer(p, img)
}

func pull(ctx context.Context, p Process, host *client.Client, req sandboxd.ImagePull) (sandboxd.Image, error) {
	m := measure(p, "pulling "+shown(req.Image), -1)
	img, err := host.PullImage(ctx, req, m.pull)
	m.end(err)
	return img, err
}

// bringImage pulls the image of a sandbox that is about to be opened, where it is not
// there: opening would do the same without saying how far it is. What opening refuses
// in better words is left to it.
func bringImage(ctx context.Context, p Process, host *client.Client, req sandboxd.OpenRequest) error {
	if req.Image == "" {
		return nil
	}
	_, err := pull(ctx, p, host, sandboxd.ImagePull{Image: req.Image, Driver: req.Driver, Missing: true})
	switch sandboxd.ClassOf(err) {
	case sandboxd.ClassForbidden, sandboxd.ClassUnsupported, sandboxd.ClassNotFound:
		return nil
	}
	return err
}

type imageListCmd struct{}

func (c *imageListCmd) Run(ctx context.Context, p Process, all *imageCmd) error {
	host, err := all.Server.dial(p)
	if err != nil {
		return err
	}
	list, err := host.ListImages(ctx)
	if err != nil {
		return err
	}
	chosen := []sandboxd.Image{}
	for _, img := range list {
		if all.Driver == "" || all.Driver == img.Driver {
			chosen = append(chosen, img)
		}
	}
	if all.JSON {
		return writeJSON(p.Stdout, chosen)
	}
	rows := [][]string{{"NAME", "DRIVER", "SIZE", "AGE"}}
	for _, img := range chosen {
		rows = append(rows, []string{shown(img.Name), img.Driver, size(img.Bytes), age(img.CreatedAt)})
	}
	return table(p.Stdout, rows)
}

type imageRemoveCmd struct {
	Names []string `arg:"" name:"name" help:"Names of images."`
}

func (c *imageRemoveCmd) Run(ctx context.Context, p Process, all *imageCmd) error {
	host, err := all.Server.dial(p)
	if err != nil {
		return err
	}
	for _, name := range c.Names {
		if err := host.RemoveImage(ctx, all.Driver, name); err != nil {
			return err
		}
	}
	return nil
}
