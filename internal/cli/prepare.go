package cli

import (
	"context"
	"time"
)

// CatalogueOptions are the settings that say what sandboxes may be opened of, and upon
// which image it is built. At most one of Catalogue and Runtimes is set.
type CatalogueOptions struct {
	Catalogue string `placeholder:"FILE" setting:"SANDBOXD_CATALOGUE" help:"File that lists the runtimes of sandboxes, or 'shipped' for those that the program brings along. Without a list there is one, machine."`
	Runtimes  string `placeholder:"TEXT" setting:"SANDBOXD_RUNTIMES" help:"The list itself, instead of a file: as 'sandboxd runtimes print --object' prints it, or alias=image,alias=image."`
	BaseImage string `placeholder:"REF" setting:"SANDBOXD_BASE_IMAGE" help:"Image upon which runtimes are built, instead of their own."`
}

// RuntimeOptions are the settings of whoever builds what a catalogue has.
type RuntimeOptions struct {
	CatalogueOptions
	BuildLimit time.Duration `name:"build-limit" placeholder:"TIME" default:"30m" setting:"SANDBOXD_BUILD_LIMIT" help:"Longest that one try to build the image of a runtime may take, ${default} by default."`
}

// PrepareOptions are the flags of `sandboxd prepare`.
type PrepareOptions struct {
	Runtime []string `arg:"" optional:"" help:"Runtimes; all of the catalogue when none is named."`
	Data    string   `name:"data" placeholder:"DIR" setting:"SANDBOXD_DATA" help:"Data directory, for the logs of builds. A server may use it meanwhile."`
	RuntimeOptions
	CABundle string `name:"ca-bundle" type:"path" placeholder:"FILE" setting:"SANDBOXD_CA_BUNDLE" help:"Certificates (PEM) that builds trust beside the machine's own."`
}

type prepareCmd struct{ PrepareOptions }

func (c *prepareCmd) Run(ctx context.Context, p Process, r Roles) error {
	return r.Prepare(ctx, p, c.PrepareOptions)
}
