package api

import (
	"context"
	"net/http"

	"sandboxd"
)

// host answers the request's Host.
func (f *face) host(ctx context.Context) (sandboxd.Host, error) {
	return f.cfg.HostFor(callOf(ctx).req)
}

// at answers the request's Host for a sandbox id; a string that cannot be an id
// names nothing.
func (f *face) at(ctx context.Context, id string) (sandboxd.Host, error) {
	if !sandboxd.ValidID(id) {
		return nil, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no such sandbox")
	}
	return f.host(ctx)
}

// SandboxPath is what every route of a sandbox has. It is exported because the
// framework fills in exported embedded structs only.
type SandboxPath struct {
	ID string `path:"id" doc:"Id of the sandbox"`
}

type openInput struct {
	Body *sandboxd.OpenRequest
}

type sandboxOutput struct {
	Status int
	Body   sandboxd.Sandbox
}

func (f *face) open(ctx context.Context, in *openInput) (*sandboxOutput, error) {
	h, err := f.host(ctx)
	if err != nil {
		return nil, err
	}
	var req sandboxd.OpenRequest
	if in.Body != nil {
		req = *in.Body
	}
	sb, created, err := h.Open(ctx, req)
	if err != nil {
		return nil, err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return &sandboxOutput{Status: status, Body: sb}, nil
}

type listInput struct {
	Key string `query:"key" doc:"Only the sandbox of this key"`
}

type listOutput struct {
	Body struct {
		Sandboxes []sandboxd.Sandbox `json:"sandboxes" nullable:"false"`
	}
}

func (f *face) list(ctx context.Context, in *listInput) (*listOutput, error) {
	h, err := f.host(ctx)
	if err != nil {
		return nil, err
	}
	all, err := h.List(ctx, in.Key)
	if err != nil {
		return nil, err
	}
	out := &listOutput{}
	out.Body.Sandboxes = append([]sandboxd.Sandbox{}, all...)
	return out, nil
}

func (f *face) get(ctx context.Context, in *SandboxPath) (*sandboxOutput, error) {
	return f.onSandbox(ctx, in.ID, sandboxd.Host.Get)
}

func (f *face) start(ctx context.Context, in *SandboxPath) (*sandboxOutput, error) {
	return f.onSandbox(ctx, in.ID, sandboxd.Host.Start)
}

func (f *face) stop(ctx context.Context, in *SandboxPath) (*sandboxOutput, error) {
	return f.onSandbox(ctx, in.ID, sandboxd.Host.Stop)
}

func (f *face) onSandbox(ctx context.Context, id string, do func(sandboxd.Host, context.Context, string) (sandboxd.Sandbox, error)) (*sandboxOutput, error) {
	h, err := f.at(ctx, id)
	if err != nil {
		return nil, err
	}
	sb, err := do(h, ctx, id)
	if err != nil {
		return nil, err
	}
	return &sandboxOutput{Status: http.StatusOK, Body: sb}, nil
}

type removeInput struct {
	SandboxPath
	Keep string `query:"keep" enum:"files" doc:"files: close instead, and answer the sandbox"`
}

type removeOutput struct {
	Status int
	Body   *sandboxd.Sandbox
}

func (f *face) remove(ctx context.Context, in *removeInput) (*removeOutput, error) {
	h, err := f.at(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if in.Keep == "files" {
		closed, err := f.closeSandbox(ctx, &in.SandboxPath)
		if err != nil {
			return nil, err
		}
		sb := closed.Body
		return &removeOutput{Status: http.StatusOK, Body: &sb}, nil
	}
	if err := h.Delete(ctx, in.ID); err != nil {
		return nil, err
	}
	return &removeOutput{Status: http.StatusNoContent}, nil
}

type networkOutput struct {
	Body sandboxd.NetworkActivity
}

func (f *face) network(ctx context.Context, in *SandboxPath) (*networkOutput, error) {
	h, err := f.at(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	activity, err := h.NetworkActivity(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &networkOutput{Body: activity}, nil
}

type runtimesOutput struct {
	Body struct {
		Runtimes []sandboxd.Runtime `json:"runtimes" nullable:"false"`
	}
}

func (f *face) runtimes(ctx context.Context, _ *struct{}) (*runtimesOutput, error) {
	h, err := f.host(ctx)
	if err != nil {
		return nil, err
	}
	all, err := h.Runtimes(ctx)
	if err != nil {
		return nil, err
	}
	out := &runtimesOutput{}
	out.Body.Runtimes = append([]sandboxd.Runtime{}, all...)
	return out, nil
}

type usageOutput struct {
	Body sandboxd.Usage
}

func (f *face) usage(ctx context.Context, in *SandboxPath) (*usageOutput, error) {
	h, err := f.at(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	files, err := h.Files(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	usage, err := files.Usage(ctx)
	if err != nil {
		return nil, err
	}
	return &usageOutput{Body: usage}, nil
}
