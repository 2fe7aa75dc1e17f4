package api

import (
	"context"
	"net/http"

	"sandboxd"
)

// variables answers what the request's Host offers beside Host, for a sandbox id.
func (f *face) variables(ctx context.Context, id string) (sandboxd.Variables, error) {
	h, err := f.at(ctx, id)
	if err != nil {
		return nil, err
	}
	v, ok := h.(sandboxd.Variables)
	if !ok {
		return nil, sandboxd.Errorf(sandboxd.ClassUnsupported, "this host keeps no variables")
	}
	return v, nil
}

type variableNamesOutput struct {
	Body struct {
		Names []string `json:"names" nullable:"false" doc:"In order; values are write-only"`
	}
}

func (f *face) variableNames(ctx context.Context, in *SandboxPath) (*variableNamesOutput, error) {
	v, err := f.variables(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	var out variableNamesOutput
	out.Body.Names, err = v.VariableNames(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &out, nil
}

type setVariablesInput struct {
	SandboxPath
	Body struct {
		Env map[string]string `json:"env" doc:"The whole set; what it does not name is gone"`
	}
}

func (f *face) setVariables(ctx context.Context, in *setVariablesInput) (*emptyOutput, error) {
	v, err := f.variables(ctx, in.ID)
	if err == nil {
		err = v.SetVariables(ctx, in.ID, in.Body.Env)
	}
	if err != nil {
		return nil, err
	}
	return &emptyOutput{Status: http.StatusNoContent}, nil
}
