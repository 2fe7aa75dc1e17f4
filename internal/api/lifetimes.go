package api

import (
	"context"
	"net/http"
	"net/url"

	"sandboxd"
)

// lifetimes answers what the request's Host offers beside Host.
func (f *face) lifetimes(ctx context.Context) (sandboxd.Lifetimes, error) {
	h, err := f.host(ctx)
	if err != nil {
		return nil, err
	}
	l, ok := h.(sandboxd.Lifetimes)
	if !ok {
		return nil, sandboxd.Errorf(sandboxd.ClassUnsupported, "this host has no policy and no clocks")
	}
	return l, nil
}

// lifetimesAt is lifetimes for a sandbox id.
func (f *face) lifetimesAt(ctx context.Context, id string) (sandboxd.Lifetimes, error) {
	if _, err := f.at(ctx, id); err != nil {
		return nil, err
	}
	return f.lifetimes(ctx)
}

func (f *face) closeSandbox(ctx context.Context, in *SandboxPath) (*sandboxOutput, error) {
	l, err := f.lifetimesAt(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	sb, err := l.CloseSandbox(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &sandboxOutput{Status: http.StatusOK, Body: sb}, nil
}

type awakeOutput struct {
	Body sandboxd.Awake
}

func (f *face) awake(ctx context.Context, in *SandboxPath) (*awakeOutput, error) {
	l, err := f.lifetimesAt(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	a, err := l.Awake(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &awakeOutput{Body: a}, nil
}

type emptyOutput struct {
	Status int
}

func (f *face) renew(ctx context.Context, in *SandboxPath) (*emptyOutput, error) {
	l, err := f.lifetimesAt(ctx, in.ID)
	if err == nil {
		err = l.Renew(ctx, in.ID)
	}
	if err != nil {
		return nil, err
	}
	return &emptyOutput{Status: http.StatusNoContent}, nil
}

type holdsOutput struct {
	Body struct {
		Holds []sandboxd.Hold `json:"holds" nullable:"false"`
	}
}

func (f *face) holds(ctx context.Context, in *SandboxPath) (*holdsOutput, error) {
	l, err := f.lifetimesAt(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	all, err := l.Holds(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	out := &holdsOutput{}
	out.Body.Holds = append([]sandboxd.Hold{}, all...)
	return out, nil
}

type holdInput struct {
	SandboxPath
	Body HoldRequest
}

// HoldRequest asks for a hold.
type HoldRequest struct {
	ID     string           `json:"id,omitempty" doc:"1-64 of [A-Za-z0-9._-]; made up when empty" maxLength:"64"`
	Reason string           `json:"reason,omitempty" doc:"For people, at most 200 bytes"`
	ForS   sandboxd.Seconds `json:"for_s" doc:"How long, at most seven days"`
}

type holdOutput struct {
	Body sandboxd.Hold
}

func (f *face) hold(ctx context.Context, in *holdInput) (*holdOutput, error) {
	l, err := f.lifetimesAt(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	held, err := l.Hold(ctx, in.ID, sandboxd.Hold{ID: in.Body.ID, Reason: in.Body.Reason, ForS: in.Body.ForS})
	if err != nil {
		return nil, err
	}
	return &holdOutput{Body: held}, nil
}

type releaseInput struct {
	SandboxPath
	Hold string `path:"hold" doc:"Id of the hold"`
}

func (f *face) release(ctx context.Context, in *releaseInput) (*emptyOutput, error) {
	l, err := f.lifetimesAt(ctx, in.ID)
	if err == nil {
		err = l.Release(ctx, in.ID, in.Hold)
	}
	if err != nil {
		return nil, err
	}
	return &emptyOutput{Status: http.StatusNoContent}, nil
}

type resourcesOutput struct {
	Body sandboxd.SandboxUsage
}

func (f *face) resources(ctx context.Context, in *SandboxPath) (*resourcesOutput, error) {
	l, err := f.lifetimesAt(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	use, err := l.Usage(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &resourcesOutput{Body: use}, nil
}

type policyOutput struct {
	Body sandboxd.Policy
}

func (f *face) policy(ctx context.Context, _ *struct{}) (*policyOutput, error) {
	l, err := f.lifetimes(ctx)
	if err != nil {
		return nil, err
	}
	p, err := l.Policy(ctx)
	if err != nil {
		return nil, err
	}
	return &policyOutput{Body: p}, nil
}

// changePolicy is a plain handler, because to be absent and to be null differ.
func (f *face) changePolicy(w http.ResponseWriter, r *http.Request, _ url.Values) error {
	l, err := f.lifetimes(r.Context())
	if err != nil {
		return err
	}
	change, err := readBody(r, jsonBody)
	if err == nil {
		err = checkJSON(change)
	}
	if err != nil {
		return err
	}
	p, err := l.ChangePolicy(r.Context(), func(p *sandboxd.Policy) error { return p.Merge(change) })
	if err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, p)
	return nil
}
