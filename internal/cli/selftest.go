package cli

import "context"

// SelftestOptions are the flags of `sandboxd selftest`.
type SelftestOptions struct {
	Driver   string `default:"auto" enum:"auto,process,docker" help:"Driver to try: auto (the first that works here), process, or docker."`
	Image    string `placeholder:"REF" help:"Image to try in containers; an empty one is made and removed by default."`
	OCI      string `name:"oci-runtime" placeholder:"NAME" help:"OCI runtime of the containers, as runsc; the engine's default otherwise."`
	JSON     bool   `name:"json" xor:"format" help:"Answer as JSON, with every attempt."`
	Markdown bool   `name:"markdown" xor:"format" help:"Answer as a page of documentation."`
}

type selftestCmd struct{ SelftestOptions }

func (c *selftestCmd) Run(ctx context.Context, p Process, r Roles) error {
	green, err := r.Selftest(ctx, p, c.SelftestOptions)
	if err == nil && !green {
		return exitStatus(1) // the report says why
	}
	return err
}
