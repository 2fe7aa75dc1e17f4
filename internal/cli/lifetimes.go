package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sandboxd"
	"sandboxd/client"
)

type getCmd struct {
	Server  server `embed:""`
	JSON    bool   `name:"json" help:"Answer as JSON."`
	Sandbox string `arg:"" help:"Id or key."`
}

// details is what get says of a sandbox.
type details struct {
	Sandbox sandboxd.Sandbox      `json:"sandbox"`
	Awake   sandboxd.Awake        `json:"awake"`
	Holds   []sandboxd.Hold       `json:"holds"`
	Usage   sandboxd.SandboxUsage `json:"usage"`
}

func (c *getCmd) Run(ctx context.Context, p Process) error {
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	d := details{Sandbox: sb}
	if d.Awake, err = host.Awake(ctx, sb.ID); err != nil {
		return err
	}
	if d.Holds, err = host.Holds(ctx, sb.ID); err != nil {
		return err
	}
	if d.Usage, err = host.Usage(ctx, sb.ID); err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, d)
	}
	return table(p.Stdout, d.rows())
}

func (d details) rows() [][]string {
	sb, a := d.Sandbox, d.Awake
	rows := [][]string{{"id", sb.ID}, {"key", sb.Key}, {"state", stateText(sb)}, {"driver", sb.Driver}, {"runtime", sb.Runtime},
		{"tenant", sb.Tenant}, {"opened by", sb.Face}, {"age", age(sb.CreatedAt)},
		{"clock", ruleText(sb.Clock)}, {"awake for", strings.TrimSpace(a.Reason + " " + parenthesized(a.Detail))}, {"worked", age(a.Since) + " ago"}}
	if a.Lapses != nil {
		ends := "closes in"
		if !sb.Open {
			ends = "deleted in"
		}
		rows = append(rows, []string{ends, fmt.Sprint(max(0, time.Until(*a.Lapses)).Round(time.Second))})
	}
	for _, h := range d.Holds {
		rows = append(rows, []string{"hold", fmt.Sprintf("%s for %v %s", h.ID, h.ForS.Duration().Round(time.Second), parenthesized(h.Reason))})
	}
	if u := d.Usage; u.MemoryBytes != nil && u.MemoryLimitBytes != nil {
		rows = append(rows, []string{"memory", size(*u.MemoryBytes) + " of " + size(*u.MemoryLimitBytes)})
	}
	if u := d.Usage; u.CPUSeconds != nil {
		rows = append(rows, []string{"cpu", fmt.Sprintf("%.1f s", *u.CPUSeconds)})
	}
	if sb.LastEnding != nil {
		rows = append(rows, []string{"last ending", endingText(sb.LastEnding) + " " + parenthesized(sb.LastEnding.Message)})
	}
	rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
	for _, row := range rows {
		row[1] = shown(row[1])
	}
	return rows
}

func parenthesized(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

// clockText is a sandbox's clock for a column.
func clockText(c sandboxd.SandboxClock) string {
	if c.LimitS == nil {
		return string(c.Name)
	}
	return string(c.Name) + " " + span(c.LimitS.Duration())
}

// ruleText is a sandbox's clock as a sentence.
func ruleText(c sandboxd.SandboxClock) string {
	if c.LimitS == nil {
		return string(c.Name)
	}
	what := map[string]string{sandboxd.WaitsForWork: "closed after %s without work", sandboxd.WaitsForRequest: "closed after %s without a request of its owner",
		sandboxd.WaitsForUse: "deleted after %s without use of its files"}[c.WaitsFor]
	return fmt.Sprintf("%s: "+what, c.Name, span(c.LimitS.Duration()))
}

// stateText is a sandbox's state for people.
func stateText(sb sandboxd.Sandbox) string {
	if sb.Asleep {
		return "asleep"
	}
	return string(sb.State)
}

type closeCmd struct {
	Server    server   `embed:""`
	All       bool     `help:"Every sandbox of the server."`
	JSON      bool     `name:"json" help:"Answer as JSON."`
	Sandboxes []string `arg:"" optional:"" name:"sandbox" help:"Ids or keys."`
}

func (c *closeCmd) Run(ctx context.Context, p Process) error {
	host, list, err := chosen(ctx, p, c.Server, c.All, c.Sandboxes)
	if err != nil {
		return err
	}
	return each(ctx, p, list, c.JSON, func(ctx context.Context, sb sandboxd.Sandbox) (sandboxd.Sandbox, error) {
		return host.(*client.Client).CloseSandbox(ctx, sb.ID)
	})
}

type holdCmd struct {
	Server  server        `embed:""`
	For     time.Duration `default:"1h" help:"How long, at most 168h; ${default} by default."`
	Reason  string        `placeholder:"TEXT" help:"Why, for people."`
	ID      string        `name:"id" placeholder:"ID" help:"Name of the hold, made up by default; one that is there is replaced."`
	Release string        `placeholder:"ID" help:"End this hold instead."`
	JSON    bool          `name:"json" help:"Answer as JSON."`
	Sandbox string        `arg:"" help:"Id or key."`
}

func (c *holdCmd) Run(ctx context.Context, p Process) error {
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	if c.Release != "" {
		return host.Release(ctx, sb.ID, c.Release)
	}
	held, err := host.Hold(ctx, sb.ID, sandboxd.Hold{ID: c.ID, Reason: c.Reason, ForS: sandboxd.InSeconds(c.For)})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, held)
	}
	_, err = fmt.Fprintln(p.Stdout, held.ID)
	return err
}

type policyCmd struct {
	Server  server   `embed:""`
	JSON    bool     `name:"json" help:"Answer as JSON."`
	Changes []string `arg:"" optional:"" name:"field=value" help:"As max_running=40, idle_timeout_s=null (no bound), runtimes.machine.pids=256."`
}

func (c *policyCmd) Run(ctx context.Context, p Process) error {
	host, err := c.Server.dial(p)
	if err != nil {
		return err
	}
	change, err := changeOf(c.Changes)
	if err != nil {
		return err
	}
	policy, err := host.Policy(ctx)
	if err == nil && len(c.Changes) > 0 {
		policy, err = host.ChangePolicy(ctx, func(p *sandboxd.Policy) error { return p.Merge(change) })
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, policy)
	}
	text, err := json.Marshal(policy)
	if err != nil {
		return err
	}
	var tree map[string]any
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return err
	}
	var rows [][]string
	flatten("", tree, &rows)
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return table(p.Stdout, rows)
}

// flatten lists the leaves of a document by their path.
func flatten(at string, v any, rows *[][]string) {
	tree, ok := v.(map[string]any)
	if !ok {
		text := "none"
		if v != nil {
			text = fmt.Sprint(v)
		}
		*rows = append(*rows, []string{at, shown(text)})
		return
	}
	for name, below := range tree {
		flatten(strings.TrimPrefix(at+"."+name, "."), below, rows)
	}
}

// changeOf makes one document of paths and values.
func changeOf(changes []string) ([]byte, error) {
	tree := map[string]any{}
	for _, change := range changes {
		path, value, ok := strings.Cut(change, "=")
		if !ok || path == "" {
			return nil, usageError{fmt.Sprintf("%s is no field=value", shown(change)), "as: sandboxd policy max_running=40"}
		}
		var v any = json.RawMessage(value)
		if !json.Valid([]byte(value)) {
			v = value
		}
		if value == "none" {
			v = nil
		}
		at := tree
		names := strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			below, ok := at[name].(map[string]any)
			if !ok {
				below = map[string]any{}
				at[name] = below
			}
			at = below
		}
		at[names[len(names)-1]] = v
	}
	return json.Marshal(tree)
}
