package cli

import (
	"context"
	"fmt"
	"strings"

	"sandboxd"
)

type envCmd struct {
	Server    server   `embed:""`
	Clear     bool     `help:"Take all away."`
	Sandbox   string   `arg:"" help:"Id or key."`
	Variables []string `arg:"" optional:"" placeholder:"NAME[=VALUE]" help:"The whole set. Without a value it is that of this command's own environment, which keeps it from the process list."`
}

func (c *envCmd) Run(ctx context.Context, p Process) error {
	if c.Clear && len(c.Variables) > 0 {
		return usageError{"--clear takes no variables", "leave one of them out"}
	}
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	if len(c.Variables) == 0 && !c.Clear {
		names, err := host.VariableNames(ctx, sb.ID)
		for _, name := range names {
			fmt.Fprintln(p.Stdout, shown(name))
		}
		return err
	}
	env := map[string]string{}
	for _, one := range c.Variables {
		name, value, given := strings.Cut(one, "=")
		if !given {
			value = p.Getenv(name)
		}
		if !given && value == "" {
			return sandboxd.Invalid(name, "it has no value here").WithHint("export it, or name one: %s=VALUE", name)
		}
		env[name] = value
	}
	return host.SetVariables(ctx, sb.ID, env)
}
