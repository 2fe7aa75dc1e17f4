package cli

import (
	"context"
	"strconv"
	"strings"

	"sandboxd"
)

// CheckRuntimesOptions are the flags of `sandboxd runtimes check`.
type CheckRuntimesOptions struct {
	File string `arg:"" help:"File with a catalogue, or - for standard input."`
	JSON bool   `name:"json" help:"Answer as JSON."`
}

// PrintRuntimesOptions are the flags of `sandboxd runtimes print`. At most one of the
// forms is set. Without a catalogue it is the one that the program brings along.
type PrintRuntimesOptions struct {
	CatalogueOptions
	Apps       bool   `help:"With the runtimes that are for apps only."`
	Object     bool   `xor:"form" help:"As one line, the value of SANDBOXD_RUNTIMES."`
	Compose    bool   `xor:"form" help:"As the value has to be in a compose file: quoted, with $ doubled."`
	Into       string `xor:"form" type:"path" placeholder:"FILE" help:"Into the lines of a compose file that set SANDBOXD_RUNTIMES."`
	Dockerfile string `xor:"form" placeholder:"ALIAS" help:"What is built for a runtime."`
	Briefing   string `xor:"form" placeholder:"ALIAS" help:"What a model is told about a runtime."`
}

type runtimesCmd struct {
	List  listRuntimesCmd  `cmd:"" default:"withargs" help:"List what the server offers."`
	Check checkRuntimesCmd `cmd:"" help:"Say whether a catalogue is right; every mistake names runtime and field."`
	Print printRuntimesCmd `cmd:"" help:"Print a catalogue as the server reads it, in one of its forms."`
}

type listRuntimesCmd struct {
	Server server `embed:""`
	JSON   bool   `name:"json" help:"Answer as JSON."`
}

func (c *listRuntimesCmd) Run(ctx context.Context, p Process) error {
	host, err := c.Server.dial(p)
	if err != nil {
		return err
	}
	list, err := host.Runtimes(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, append([]sandboxd.Runtime{}, list...))
	}
	rows := [][]string{{"RUNTIME", "DRIVERS", "NETWORK", "MEMORY", "CPUS", "PIDS"}}
	for _, r := range list {
		rows = append(rows, []string{shown(r.Name), strings.Join(r.Drivers, ","), shown(r.Network), size(r.Limits.MemoryBytes),
			strconv.FormatFloat(r.Limits.CPUs, 'g', -1, 64), strconv.FormatInt(r.Limits.PIDs, 10)})
	}
	return table(p.Stdout, rows)
}

type checkRuntimesCmd struct{ CheckRuntimesOptions }

func (c *checkRuntimesCmd) Run(ctx context.Context, p Process, r Roles) error {
	right, err := r.CheckRuntimes(ctx, p, c.CheckRuntimesOptions)
	if err == nil && !right {
		return exitStatus(1) // what is wrong has been said
	}
	return err
}

type printRuntimesCmd struct{ PrintRuntimesOptions }

func (c *printRuntimesCmd) Run(ctx context.Context, p Process, r Roles) error {
	return r.PrintRuntimes(ctx, p, c.PrintRuntimesOptions)
}
