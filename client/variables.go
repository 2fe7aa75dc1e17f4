package client

import (
	"context"
	"net/http"

	"sandboxd"
)

var _ sandboxd.Variables = (*Client)(nil)

// SetVariables implements sandboxd.Variables.
func (c *Client) SetVariables(ctx context.Context, id string, env map[string]string) error {
	if env == nil {
		env = map[string]string{}
	}
	_, err := c.ask(ctx, nil, call{method: http.MethodPut, path: []string{"sandboxes", id, "variables"}, json: struct {
		Env map[string]string `json:"env"`
	}{env}})
	return err
}

// VariableNames implements sandboxd.Variables.
func (c *Client) VariableNames(ctx context.Context, id string) ([]string, error) {
	var out struct {
		Names []string `json:"names"`
	}
	return out.Names, c.get(ctx, &out, nil, "sandboxes", id, "variables")
}
