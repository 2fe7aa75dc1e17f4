package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
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
	rows := [][]string{{"RUNTIME", "DRIVERS", "NETWORK", "MEMORY", "CPUS", "ROOT", "IMAGE"}}
	for _, r := range list {
		name, image := shown(r.Name), "-"
		if r.Default {
			name += " (default)"
		}
		if r.Preparation != nil {
			image = string(r.Preparation.State)
		}
		rows = append(rows, []string{name, strings.Join(r.Drivers, ","), shown(r.Network), size(r.Limits.MemoryBytes),
			strconv.FormatFloat(r.Limits.CPUs, 'g', -1, 64), cmp.Or(r.Root, "-"), image})
	}
	if err := table(p.Stdout, rows); err != nil {
		return err
	}
	return c.remarks(p.Stdout, list)
}

// remarks are what does not fit into a table: what went wrong, and what is not there.
func (c *listRuntimesCmd) remarks(w io.Writer, list []sandboxd.Runtime) error {
	for _, r := range list {
		if r.Preparation != nil && r.Preparation.Error != "" {
			if _, err := fmt.Fprintf(w, "%s: the image: %s\n", shown(r.Name), oneLine(r.Preparation.Error)); err != nil {
				return err
			}
		}
		if len(r.Missing) > 0 {
			if _, err := fmt.Fprintf(w, "%s: this machine lacks %s\n", shown(r.Name), shown(strings.Join(r.Missing, ", "))); err != nil {
				return err
			}
		}
	}
	return nil
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
