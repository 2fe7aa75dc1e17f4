package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"sandboxd"
	"sandboxd/internal/excerpt"
)

const execDoc = `with Accept application/x-ndjson a stream of output lines, the first {"command_id"}, the last {"ending"}; otherwise one object with the first and the last MiB of each stream. In the background the command is answered at once. A foreground command whose caller goes away is stopped, unless orphan_after_s says how long it may go on alone`

// keepEach is how much of the begin and of the end of each stream one JSON answer
// holds: 4 MiB for both streams, within the 8 MiB that any JSON answer may carry.
// The whole output stays readable at the command's output route.
const keepEach = 1 << 20

// Result is the answer of exec when it is not streamed.
type Result struct {
	CommandID string           `json:"command_id"`
	Stdout    string           `json:"stdout"`
	Stderr    string           `json:"stderr"`
	StdoutB64 string           `json:"stdout_b64,omitempty" doc:"Instead of stdout, when its bytes are not UTF-8"`
	StderrB64 string           `json:"stderr_b64,omitempty" doc:"Instead of stderr, when its bytes are not UTF-8"`
	Truncated int64            `json:"truncated,omitempty" doc:"Bytes left out of the middle of stdout and stderr"`
	ExitCode  *int             `json:"exit_code" doc:"As in ending"`
	Ending    *sandboxd.Ending `json:"ending"`
}

func typeOf(v any) reflect.Type { return reflect.TypeOf(v) }

// exec composes a command's start and its output.
func (f *face) exec(ctx context.Context, in *commandInput) (*huma.StreamResponse, error) {
	h, err := f.at(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	cmd, started, err := h.StartCommand(ctx, in.ID, in.Body)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		if in.Body.Background {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(cmd)
			return
		}
		e := execution{face: f, host: h, sandbox: in.ID, command: cmd.ID}
		ended, err := e.answer(w, r, strings.Contains(in.Accept, ndjson))
		if !ended && r.Context().Err() != nil && started && in.Body.OrphanAfterS == 0 {
			e.stop(r.Context())
		}
		if err != nil {
			writeError(w, r, err)
		}
	}}, nil
}

// execution is one foreground command and its one caller.
type execution struct {
	face             *face
	host             sandboxd.Host
	sandbox, command string
}

func (e execution) answer(w http.ResponseWriter, r *http.Request, lines bool) (ended bool, err error) {
	stream, err := e.host.FollowCommand(r.Context(), e.sandbox, e.command, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		return false, err
	}
	defer stream.Close()
	if lines {
		return e.face.sendFrames(w, r, stream, &line{CommandID: e.command})
	}
	res, err := collect(r.Context(), stream)
	if err != nil {
		return res.Ending != nil, err
	}
	res.CommandID = e.command
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(res)
	return true, nil
}

// stop ends a command whose caller is gone; nobody waits for the outcome but the
// log.
func (e execution) stop(ctx context.Context) {
	grace := e.face.pace.stopGrace
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+30*time.Second)
	defer cancel()
	if _, err := e.host.StopCommand(ctx, e.sandbox, e.command, sandboxd.InSeconds(grace)); err != nil {
		e.face.cfg.Log.Warn("an abandoned command was not stopped", "sandbox", e.sandbox, "command", e.command, "error", err.Error())
	}
}

// collect reads a whole command, keeping the begin and the end of each stream.
func collect(ctx context.Context, stream sandboxd.CommandStream) (Result, error) {
	var res Result
	stdout, stderr := excerpt.New(keepEach), excerpt.New(keepEach)
	for res.Ending == nil {
		frame, err := stream.Next(ctx)
		if err != nil {
			return res, brokenStream(err)
		}
		switch {
		case frame.Ending != nil:
			ending := *frame.Ending
			res.Ending, res.ExitCode = &ending, ending.ExitCode
		case frame.Gap != nil:
			res.Truncated += frame.Gap.To - frame.Gap.From
		}
		if frame.Stream == sandboxd.StreamStderr {
			_, _ = stderr.Write(frame.Data)
		} else {
			_, _ = stdout.Write(frame.Data)
		}
	}
	var left int64
	res.Stdout, res.StdoutB64, left = shown(stdout)
	res.Truncated += left
	res.Stderr, res.StderrB64, left = shown(stderr)
	res.Truncated += left
	return res, nil
}

// brokenStream gives the end of a followed stream that had no ending a class.
func brokenStream(err error) error {
	if sandboxd.ClassOf(err) != sandboxd.ClassInternal {
		return err
	}
	return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the output broke off; the command may still run")
}

// shown is what was kept of a stream, as a string or, when that is not possible,
// as base64.
func shown(e *excerpt.Excerpt) (plain, b64 string, left int64) {
	head, tail, left := e.Ends()
	all := append(head[:len(head):len(head)], tail...)
	if utf8.Valid(all) {
		return string(all), "", left
	}
	return "", base64.StdEncoding.EncodeToString(all), left
}
