package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

type networkCmd struct {
	Server  server `embed:""`
	Sandbox string `arg:"" help:"Id or key."`
	JSON    bool   `name:"json" help:"Answer as JSON."`
}

func (c *networkCmd) Run(ctx context.Context, p Process) error {
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	activity, err := host.NetworkActivity(ctx, sb.ID)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, activity)
	}
	line := "network " + string(sb.Network.Mode)
	if len(sb.Network.Allow) > 0 {
		line += ", allow " + strings.Join(sb.Network.Allow, " ")
	}
	if len(sb.Network.Deny) > 0 {
		line += ", deny " + strings.Join(sb.Network.Deny, " ")
	}
	fmt.Fprintln(p.Stdout, shown(line))
	fmt.Fprintf(p.Stdout, "%d connections, %s sent, %s received, since the server started %s ago\n",
		activity.Connections, size(activity.SentBytes), size(activity.ReceivedBytes), age(activity.Since))
	if len(activity.Denials) == 0 {
		return nil
	}
	rows := [][]string{{"REFUSED", "TIMES", "LAST", "WHY"}}
	for _, d := range activity.Denials {
		rows = append(rows, []string{shown(d.Host), strconv.FormatInt(d.Count, 10), age(d.LastAt), shown(d.Message)})
	}
	if activity.DenialsDropped > 0 {
		rows = append(rows, []string{"earlier", strconv.FormatInt(activity.DenialsDropped, 10), "", "not kept"})
	}
	return table(p.Stdout, rows)
}
