package client

import (
	"context"
	"encoding/json"
	"net/http"

	"sandboxd"
)

var _ sandboxd.Lifetimes = (*Client)(nil)

// Attach implements sandboxd.Lifetimes.
func (c *Client) Attach(ctx context.Context, key string) (sandboxd.Sandbox, error) {
	if !sandboxd.ValidKey(key) { // an empty one would be made up
		return sandboxd.Sandbox{}, sandboxd.Errorf(sandboxd.ClassNotFound, "no sandbox has this key")
	}
	no := false
	sb, _, err := c.Open(ctx, sandboxd.OpenRequest{Key: key, Start: &no, Attach: true})
	return sb, err
}

// CloseSandbox implements sandboxd.Lifetimes.
func (c *Client) CloseSandbox(ctx context.Context, id string) (sb sandboxd.Sandbox, err error) {
	_, err = c.ask(ctx, &sb, call{method: http.MethodPost, path: []string{"sandboxes", id, "close"}})
	return sb, err
}

// Awake implements sandboxd.Lifetimes.
func (c *Client) Awake(ctx context.Context, id string) (a sandboxd.Awake, err error) {
	return a, c.get(ctx, &a, nil, "sandboxes", id, "awake")
}

// Renew implements sandboxd.Lifetimes.
func (c *Client) Renew(ctx context.Context, id string) error {
	_, err := c.ask(ctx, nil, call{method: http.MethodPost, path: []string{"sandboxes", id, "renew"}})
	return err
}

// Hold implements sandboxd.Lifetimes.
func (c *Client) Hold(ctx context.Context, id string, hold sandboxd.Hold) (held sandboxd.Hold, err error) {
	_, err = c.ask(ctx, &held, call{method: http.MethodPost, path: []string{"sandboxes", id, "holds"}, json: struct {
		ID     string           `json:"id,omitempty"`
		Reason string           `json:"reason,omitempty"`
		ForS   sandboxd.Seconds `json:"for_s"`
	}{hold.ID, hold.Reason, hold.ForS}})
	return held, err
}

// Holds implements sandboxd.Lifetimes.
func (c *Client) Holds(ctx context.Context, id string) ([]sandboxd.Hold, error) {
	var out struct {
		Holds []sandboxd.Hold `json:"holds"`
	}
	return out.Holds, c.get(ctx, &out, nil, "sandboxes", id, "holds")
}

// Release implements sandboxd.Lifetimes.
func (c *Client) Release(ctx context.Context, id, hold string) error {
	_, err := c.ask(ctx, nil, call{method: http.MethodDelete, path: []string{"sandboxes", id, "holds", hold}})
	return err
}

// Usage implements sandboxd.Lifetimes.
func (c *Client) Usage(ctx context.Context, id string) (use sandboxd.SandboxUsage, err error) {
	return use, c.get(ctx, &use, nil, "sandboxes", id, "resources")
}

// Policy implements sandboxd.Lifetimes.
func (c *Client) Policy(ctx context.Context) (p sandboxd.Policy, err error) {
	return p, c.get(ctx, &p, nil, "policy")
}

// ChangePolicy implements sandboxd.Lifetimes. What change leaves as it was is not
// sent: another's change of it stands.
func (c *Client) ChangePolicy(ctx context.Context, change func(*sandboxd.Policy) error) (sandboxd.Policy, error) {
	was, err := c.Policy(ctx)
	if err != nil {
		return was, err
	}
	is := was
	if err := is.Merge([]byte("{}")); err != nil { // shares nothing with was
		return was, err
	}
	if err := change(&is); err != nil {
		return was, err
	}
	var now sandboxd.Policy
	_, err = c.ask(ctx, &now, call{method: http.MethodPut, path: []string{"policy"}, json: json.RawMessage(sandboxd.PolicyChange(was, is))})
	if err != nil {
		return was, err
	}
	return now, nil
}
