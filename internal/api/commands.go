package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"sandboxd"
)

// CommandPath is what every route of a command has.
type CommandPath struct {
	SandboxPath
	CID string `path:"cid" doc:"Id of the command"`
}

// atCommand answers the request's Host for a command of a sandbox; a string that
// cannot be an id names nothing.
func (f *face) atCommand(ctx context.Context, p CommandPath) (sandboxd.Host, error) {
	h, err := f.at(ctx, p.ID)
	if err == nil && !sandboxd.ValidCommandID(p.CID) {
		return nil, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no such command")
	}
	return h, err
}

type commandInput struct {
	SandboxPath
	Accept string `header:"Accept" doc:"application/x-ndjson for a stream of frames"`
	Body   sandboxd.CommandSpec
}

type commandOutput struct {
	Status int
	Body   sandboxd.Command
}

// startCommand answers 201 when it started the command and 200 when the id was
// already used with the same spec.
func (f *face) startCommand(ctx context.Context, in *commandInput) (*commandOutput, error) {
	h, err := f.at(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	cmd, started, err := h.StartCommand(ctx, in.ID, in.Body)
	if err != nil {
		return nil, err
	}
	status := http.StatusOK
	if started {
		status = http.StatusCreated
	}
	return &commandOutput{Status: status, Body: cmd}, nil
}

type commandsOutput struct {
	Body struct {
		Commands []sandboxd.Command `json:"commands" nullable:"false"`
	}
}

func (f *face) listCommands(ctx context.Context, in *SandboxPath) (*commandsOutput, error) {
	h, err := f.at(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	all, err := h.ListCommands(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	out := &commandsOutput{}
	out.Body.Commands = append([]sandboxd.Command{}, all...)
	return out, nil
}

func (f *face) getCommand(ctx context.Context, in *CommandPath) (*commandOutput, error) {
	h, err := f.atCommand(ctx, *in)
	if err != nil {
		return nil, err
	}
	cmd, err := h.GetCommand(ctx, in.ID, in.CID)
	if err != nil {
		return nil, err
	}
	return &commandOutput{Status: http.StatusOK, Body: cmd}, nil
}

type stopInput struct {
	CommandPath
	Body *struct {
		GraceS *sandboxd.Seconds `json:"grace_s,omitempty" minimum:"0" maximum:"60" doc:"Between SIGTERM and SIGKILL, default 2"`
	}
}

// defaultGrace is the time between SIGTERM and SIGKILL when the caller names none.
const defaultGrace sandboxd.Seconds = 2

func (f *face) stopCommand(ctx context.Context, in *stopInput) (*commandOutput, error) {
	h, err := f.atCommand(ctx, in.CommandPath)
	if err != nil {
		return nil, err
	}
	grace := defaultGrace
	if in.Body != nil && in.Body.GraceS != nil {
		grace = *in.Body.GraceS
	}
	cmd, err := h.StopCommand(ctx, in.ID, in.CID, grace)
	if err != nil {
		return nil, err
	}
	return &commandOutput{Status: http.StatusOK, Body: cmd}, nil
}

type signalInput struct {
	CommandPath
	Body struct {
		Signal string `json:"signal" minLength:"1" maxLength:"32" doc:"As INT or SIGINT"`
	}
}

func (f *face) signalCommand(ctx context.Context, in *signalInput) (*struct{}, error) {
	h, err := f.atCommand(ctx, in.CommandPath)
	if err != nil {
		return nil, err
	}
	return nil, h.SignalCommand(ctx, in.ID, in.CID, in.Body.Signal)
}

type resizeInput struct {
	CommandPath
	Body sandboxd.TTY
}

func (f *face) resizeCommand(ctx context.Context, in *resizeInput) (*struct{}, error) {
	h, err := f.atCommand(ctx, in.CommandPath)
	if err != nil {
		return nil, err
	}
	return nil, h.ResizeCommand(ctx, in.ID, in.CID, in.Body)
}

// stdin sends the raw body, at most 8 MiB of it.
func (f *face) stdin(w http.ResponseWriter, r *http.Request, query url.Values) error {
	p := CommandPath{SandboxPath{r.PathValue("id")}, r.PathValue("cid")}
	h, err := f.atCommand(r.Context(), p)
	if err != nil {
		return err
	}
	eof, err := boolean(query, "eof")
	if err != nil {
		return err
	}
	data, err := readBody(r, execBody)
	if err != nil {
		return err
	}
	if err := h.WriteStdin(r.Context(), p.ID, p.CID, data, eof); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// output answers frames from an offset.
func (f *face) output(w http.ResponseWriter, r *http.Request, query url.Values) error {
	p := CommandPath{SandboxPath{r.PathValue("id")}, r.PathValue("cid")}
	h, err := f.atCommand(r.Context(), p)
	if err != nil {
		return err
	}
	offset, err := integer(query, "offset")
	if err != nil {
		return err
	}
	follow, err := boolean(query, "follow")
	if err != nil {
		return err
	}
	stream, err := h.FollowCommand(r.Context(), p.ID, p.CID, sandboxd.FollowOptions{Offset: offset, Follow: follow})
	if err != nil {
		return err
	}
	defer stream.Close()
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", ndjson)
		return nil
	}
	_, err = f.sendFrames(w, r, stream, nil)
	return err
}

func boolean(query url.Values, name string) (bool, error) {
	switch query.Get(name) {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	}
	return false, sandboxd.Invalid(name, "true and false are allowed")
}

// integer is a number of the query; what is absent is 0.
func integer(query url.Values, name string) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, sandboxd.Invalid(name, "a whole number, 0 or more, is needed")
	}
	return n, nil
}
