package cli

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/follow"
	"sandboxd/internal/mcp"
)

// find resolves an id or a key to a sandbox.
func (s server) find(ctx context.Context, p Process, ref string) (*client.Client, sandboxd.Sandbox, error) {
	host, err := s.dial(p)
	if err != nil {
		return nil, sandboxd.Sandbox{}, err
	}
	sb, err := resolve(ctx, host, ref)
	return host, sb, err
}

// resolve looks for an id first: a key may look like one, an id never like
// another's key by accident.
func resolve(ctx context.Context, host sandboxd.Host, ref string) (sandboxd.Sandbox, error) {
	if sandboxd.ValidID(ref) {
		sb, err := host.Get(ctx, ref)
		if sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
			return sb, err
		}
	}
	if sandboxd.ValidKey(ref) {
		found, err := host.List(ctx, ref)
		if err != nil {
			return sandboxd.Sandbox{}, err
		}
		if len(found) > 0 {
			return found[0], nil
		}
	}
	return sandboxd.Sandbox{}, sandboxd.Errorf(sandboxd.ClassNotFound, "no sandbox has the id or key %s", shown(ref)).WithHint(hintList)
}

// openFlags describe a new sandbox; create and run share them.
type openFlags struct {
	Driver  string            `placeholder:"NAME" help:"Driver, the server's first by default."`
	Runtime string            `placeholder:"NAME" help:"Runtime, machine by default."`
	Image   string            `placeholder:"REF" help:"Image to run in: an imported one, or for the docker driver one that can be pulled, as python:3.12-slim."`
	OCI     string            `name:"oci-runtime" placeholder:"NAME" help:"How its container is isolated, as runsc."`
	Memory  bytesFlag         `placeholder:"SIZE" help:"Memory, as 512M; 1G by default."`
	CPUs    float64           `name:"cpus" placeholder:"N" help:"Cores; 2 by default."`
	PIDs    int64             `name:"pids" placeholder:"N" help:"Processes and threads; 512 by default."`
	Tmp     bytesFlag         `placeholder:"SIZE" help:"Size of /tmp; 64M by default."`
	Tenant  string            `placeholder:"NAME" help:"Whose it is; counted against the tenant's ceiling."`
	Labels  map[string]string `name:"label" mapsep:"none" placeholder:"K=V" help:"Attach a label; repeatable."`
	Net     string            `enum:",none,proxy,bridge" default:"" placeholder:"MODE" help:"Network: none, the default; proxy, which reaches what --allow says; or bridge, in containers, which reaches everything public, where the host allows it."`
	Allow   []string          `sep:"none" placeholder:"HOST" help:"What the proxy lets through: host, *.host, * for everything public, an address or a prefix, each with :PORT or without; repeatable, implies --net proxy."`
	Deny    []string          `sep:"none" placeholder:"HOST" help:"What it refuses although --allow lets it through; repeatable."`
}

func (f openFlags) request() sandboxd.OpenRequest {
	network := sandboxd.Network{Mode: sandboxd.NetworkMode(f.Net), Allow: f.Allow, Deny: f.Deny}
	if f.Net == "" && len(f.Allow)+len(f.Deny) > 0 {
		network.Mode = sandboxd.NetworkProxy
	}
	return sandboxd.OpenRequest{Runtime: f.Runtime, Driver: f.Driver, Image: f.Image, OCIRuntime: f.OCI, Tenant: f.Tenant, Labels: f.Labels, Network: network,
		Limits: sandboxd.Limits{MemoryBytes: int64(f.Memory), CPUs: f.CPUs, PIDs: f.PIDs, TmpBytes: int64(f.Tmp)}}
}

type createCmd struct {
	Server  server            `embed:""`
	Key     string            `arg:"" optional:"" help:"Name; made up when absent."`
	Env     map[string]string `short:"e" mapsep:"none" placeholder:"K=V" help:"Variable of every command; repeatable."`
	NoStart bool              `help:"Do not start its environment yet."`
	JSON    bool              `name:"json" help:"Answer as JSON."`
	openFlags
}

func (c *createCmd) Run(ctx context.Context, p Process) error {
	host, err := c.Server.dial(p)
	if err != nil {
		return err
	}
	req := c.request()
	req.Key, req.Env = c.Key, c.Env
	start := !c.NoStart
	req.Start = &start
	if start {
		if err := bringImage(ctx, p, host, req); err != nil {
			return err
		}
	}
	sb, created, err := host.Open(ctx, req)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, sb)
	}
	if !created {
		fmt.Fprintf(p.Stderr, "attached to the sandbox that has the key %s\n", sb.Key)
	}
	_, err = fmt.Fprintln(p.Stdout, sb.ID)
	return err
}

type psCmd struct {
	Server  server `embed:""`
	Sandbox string `arg:"" optional:"" help:"Id or key: list its commands."`
	JSON    bool   `name:"json" help:"Answer as JSON."`
}

func (c *psCmd) Run(ctx context.Context, p Process) error {
	if c.Sandbox != "" {
		return c.commands(ctx, p)
	}
	host, err := c.Server.dial(p)
	if err != nil {
		return err
	}
	list, err := host.List(ctx, "")
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, append([]sandboxd.Sandbox{}, list...))
	}
	rows := [][]string{{"ID", "KEY", "STATE", "DRIVER", "MEMORY", "CLOCK", "AGE"}}
	for _, sb := range list {
		rows = append(rows, []string{sb.ID, sb.Key, stateText(sb), sb.Driver, size(sb.Limits.MemoryBytes), clockText(sb.Clock), age(sb.CreatedAt)})
	}
	return table(p.Stdout, rows)
}

func (c *psCmd) commands(ctx context.Context, p Process) error {
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	list, err := host.ListCommands(ctx, sb.ID)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, append([]sandboxd.Command{}, list...))
	}
	rows := [][]string{{"COMMAND", "ENDING", "OUTPUT", "AGE", "LINE"}}
	for _, cmd := range list {
		rows = append(rows, []string{cmd.ID, endingText(cmd.Ending), size(cmd.Offset), age(cmd.StartedAt), commandLine(cmd)})
	}
	return table(p.Stdout, rows)
}

type logsCmd struct {
	Server  server `embed:""`
	Follow  bool   `short:"f" help:"Wait for more until the command ends, and exit with its status."`
	Offset  int64  `placeholder:"N" help:"Begin at this byte of the output."`
	Sandbox string `arg:"" help:"Id or key."`
	Command string `arg:"" help:"Id of the command; sandboxd ps SANDBOX lists them."`
}

func (c *logsCmd) Run(ctx context.Context, p Process) error {
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	from := follow.Command{Sandbox: sb.ID, ID: c.Command, Offset: c.Offset, Partial: !c.Follow}
	ending, err := follow.Output(ctx, host, from, printer{p.Stdout, p.Stderr}.put)
	err = hintCommands(err, c.Sandbox)
	if err != nil || !c.Follow || ending.ExitCode == nil || *ending.ExitCode == 0 {
		return err
	}
	return exitStatus(*ending.ExitCode)
}

// hintCommands is for who names a command that a sandbox does not have.
func hintCommands(err error, sandbox string) error {
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Class != sandboxd.ClassNotFound || e.Hint != "" {
		return err
	}
	hinted := *e
	return hinted.WithHint("list its commands with: sandboxd ps %s", sandbox)
}

type stopCmd struct {
	Server    server   `embed:""`
	All       bool     `help:"Every sandbox of the server."`
	Command   string   `placeholder:"ID" help:"Stop only this command of the sandbox, with all its processes."`
	Grace     float64  `default:"5" placeholder:"SECONDS" help:"With --command: time between SIGTERM and SIGKILL."`
	JSON      bool     `name:"json" help:"Answer as JSON."`
	Sandboxes []string `arg:"" optional:"" name:"sandbox" help:"Ids or keys."`
}

func (c *stopCmd) Run(ctx context.Context, p Process) error {
	if c.Command != "" {
		return c.command(ctx, p)
	}
	host, list, err := chosen(ctx, p, c.Server, c.All, c.Sandboxes)
	if err != nil {
		return err
	}
	return each(ctx, p, list, c.JSON, func(ctx context.Context, sb sandboxd.Sandbox) (sandboxd.Sandbox, error) {
		return host.Stop(ctx, sb.ID)
	})
}

func (c *stopCmd) command(ctx context.Context, p Process) error {
	if c.All || len(c.Sandboxes) != 1 {
		return usageError{"--command goes with exactly one sandbox", "as: sandboxd stop SANDBOX --command ID"}
	}
	host, sb, err := c.Server.find(ctx, p, c.Sandboxes[0])
	if err != nil {
		return err
	}
	cmd, err := host.StopCommand(ctx, sb.ID, c.Command, sandboxd.Seconds(c.Grace))
	if err != nil {
		return hintCommands(err, c.Sandboxes[0])
	}
	if c.JSON {
		return writeJSON(p.Stdout, cmd)
	}
	_, err = fmt.Fprintf(p.Stdout, "%s %s\n", cmd.ID, endingText(cmd.Ending))
	return err
}

type rmCmd struct {
	Server    server   `embed:""`
	All       bool     `help:"Every sandbox of the server."`
	JSON      bool     `name:"json" help:"Answer as JSON."`
	Sandboxes []string `arg:"" optional:"" name:"sandbox" help:"Ids or keys."`
}

func (c *rmCmd) Run(ctx context.Context, p Process) error {
	host, list, err := chosen(ctx, p, c.Server, c.All, c.Sandboxes)
	if err != nil {
		return err
	}
	return each(ctx, p, list, c.JSON, func(ctx context.Context, sb sandboxd.Sandbox) (sandboxd.Sandbox, error) {
		sb.State = sandboxd.StateDeleted
		return sb, host.Delete(ctx, sb.ID)
	})
}

// chosen resolves every name before anything happens, so that a typo in the
// third stops nothing of the first two.
func chosen(ctx context.Context, p Process, s server, all bool, refs []string) (sandboxd.Host, []sandboxd.Sandbox, error) {
	if all == (len(refs) > 0) {
		return nil, nil, usageError{"name sandboxes or give --all", "sandboxd ps lists them"}
	}
	host, err := s.dial(p)
	if err != nil {
		return nil, nil, err
	}
	if all {
		list, err := host.List(ctx, "")
		return host, list, err
	}
	var list []sandboxd.Sandbox
	for _, ref := range refs {
		sb, err := resolve(ctx, host, ref)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, sb)
	}
	return host, list, nil
}

// each does one thing to every sandbox, some at a time, and prints the outcome
// in the order of the list. All are tried; the first error is the answer.
func each(ctx context.Context, p Process, list []sandboxd.Sandbox, asJSON bool, do func(context.Context, sandboxd.Sandbox) (sandboxd.Sandbox, error)) error {
	done := make([]sandboxd.Sandbox, len(list))
	failed := make([]error, len(list))
	var group errgroup.Group
	group.SetLimit(8)
	for i, sb := range list {
		group.Go(func() error {
			done[i], failed[i] = do(ctx, sb)
			return failed[i]
		})
	}
	err := group.Wait()
	ok := []sandboxd.Sandbox{}
	for i := range list {
		if failed[i] == nil {
			ok = append(ok, done[i])
		}
	}
	if asJSON {
		if werr := writeJSON(p.Stdout, ok); werr != nil {
			return werr
		}
		return err
	}
	for _, sb := range ok {
		if _, werr := fmt.Fprintf(p.Stdout, "%s %s\n", sb.ID, sb.State); werr != nil {
			return werr
		}
	}
	return err
}

type mcpCmd struct {
	Server server `embed:""`
	Key    string `placeholder:"KEY" help:"Use the sandbox of this key; a fresh one by default."`
	Keep   bool   `help:"Keep the sandbox when the session ends."`
}

func (c *mcpCmd) Run(ctx context.Context, p Process, r Roles) error {
	host, err := c.Server.dial(p)
	if err != nil {
		return err
	}
	return mcp.Serve(ctx, host, mcp.Options{Key: c.Key, Keep: c.Keep, Version: r.Version().Version}, mcp.Stdio(p.Stdin, p.Stdout))
}
