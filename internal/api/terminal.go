package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"

	"sandboxd"
)

const terminalDoc = `binary frames are the terminal's bytes both ways; the client's text frame {"resize":{"cols","rows"}} sets the size; the server's first text frame is {"command_id"}, its last {"ending"}. A closed socket leaves the command running for ten minutes, to be attached to again`

const (
	terminalOrphan = 10 * time.Minute // a shell that nobody watches
	terminalReplay = 256 << 10        // most output that an attach repeats
	terminalFrame  = 1 << 20          // most bytes of one frame from the client
)

// loginShell is the best shell that the sandbox has, as a login shell.
const loginShell = `[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l`

// terminalText is a text frame, either way.
type terminalText struct {
	CommandID string           `json:"command_id,omitempty"`
	Resize    *sandboxd.TTY    `json:"resize,omitempty"`
	Ending    *sandboxd.Ending `json:"ending,omitempty"`
	Error     *EnvelopeError   `json:"error,omitempty"`
}

func (f *face) terminal(w http.ResponseWriter, r *http.Request, query url.Values) error {
	id := r.PathValue("id")
	h, err := f.at(r.Context(), id)
	if err != nil {
		return err
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return sandboxd.Invalid("Upgrade", "this route speaks WebSocket")
	}
	cmd, size, err := f.terminalCommand(r.Context(), h, id, query)
	if err != nil {
		return err
	}
	stream, err := h.FollowCommand(r.Context(), id, cmd.ID, sandboxd.FollowOptions{
		Offset: max(0, cmd.Offset-terminalReplay), Follow: true})
	if err != nil {
		return err
	}
	defer stream.Close()
	if size != nil && query.Get("command_id") != "" {
		if err := h.ResizeCommand(r.Context(), id, cmd.ID, *size); err != nil && sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			return err
		}
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		note(r.Context(), err)
		return nil // Accept has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(terminalFrame)
	// The request's context ends with the hijack; the connection has its own life.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	t := terminalSession{face: f, host: h, sandbox: id, command: cmd.ID, conn: conn}
	go func() {
		defer cancel()
		t.fromClient(ctx)
	}()
	t.toClient(ctx, stream)
	return nil
}

// terminalCommand answers the command to attach to, a new shell when the query
// names none, and the size that the query asks for.
func (f *face) terminalCommand(ctx context.Context, h sandboxd.Host, id string, query url.Values) (sandboxd.Command, *sandboxd.TTY, error) {
	var none sandboxd.Command
	cols, err := integer(query, "cols")
	if err != nil || cols > 10000 {
		return none, nil, sandboxd.Invalid("cols", "1 to 10000 are allowed")
	}
	rows, err := integer(query, "rows")
	if err != nil || rows > 10000 {
		return none, nil, sandboxd.Invalid("rows", "1 to 10000 are allowed")
	}
	var size *sandboxd.TTY
	if cols > 0 && rows > 0 {
		size = &sandboxd.TTY{Cols: uint16(cols), Rows: uint16(rows)}
	}
	if cid := query.Get("command_id"); cid != "" {
		cmd, err := h.GetCommand(ctx, id, cid)
		if err == nil && !cmd.TTY {
			err = sandboxd.Invalid("command_id", "the command has no terminal")
		}
		return cmd, size, err
	}
	if size == nil {
		size = &sandboxd.TTY{Cols: 80, Rows: 24}
	}
	var forever sandboxd.Seconds
	cmd, _, err := h.StartCommand(ctx, id, sandboxd.CommandSpec{Shell: loginShell, TTY: size, StdinOpen: true,
		Env: map[string]string{"TERM": "xterm-256color"}, TimeoutS: &forever, OrphanAfterS: sandboxd.InSeconds(terminalOrphan)})
	return cmd, size, err
}

// terminalSession is one socket attached to one command.
type terminalSession struct {
	face             *face
	host             sandboxd.Host
	sandbox, command string
	conn             *websocket.Conn
}

// toClient carries output until the command ends, the stream breaks or ctx ends
// because the client went away; only the first two are told.
func (t *terminalSession) toClient(ctx context.Context, stream sandboxd.CommandStream) {
	if t.text(ctx, terminalText{CommandID: t.command}) != nil {
		return
	}
	pumpCtx, cancel := context.WithCancel(ctx)
	frames := pump(pumpCtx, stream)
	defer func() {
		cancel()
		for range frames {
		}
	}()
	ping := time.NewTicker(t.face.pace.ping)
	defer ping.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ping.C:
			pingCtx, done := context.WithTimeout(ctx, t.face.pace.ping)
			err := t.conn.Ping(pingCtx)
			done()
			if err != nil {
				return
			}
		case p, open := <-frames:
			if !open {
				return
			}
			if len(p.frame.Data) > 0 && t.write(ctx, websocket.MessageBinary, p.frame.Data) != nil {
				return
			}
			if p.frame.Ending != nil {
				_ = t.text(ctx, terminalText{Ending: p.frame.Ending})
				_ = t.conn.Close(websocket.StatusNormalClosure, "")
				return
			}
			if p.err != nil && ctx.Err() == nil {
				if errors.Is(p.err, io.EOF) {
					p.err = brokenStream(p.err)
				}
				_ = t.text(ctx, terminalText{Error: &envelope(p.err).Err})
				_ = t.conn.Close(websocket.StatusInternalError, "the output broke off")
				return
			}
		}
	}
}

// fromClient carries input and sizes until the socket is closed.
func (t *terminalSession) fromClient(ctx context.Context) {
	for {
		kind, data, err := t.conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			err = t.host.WriteStdin(ctx, t.sandbox, t.command, data, false)
		} else {
			var msg terminalText
			if json.Unmarshal(data, &msg) != nil || msg.Resize == nil || msg.Resize.Cols == 0 || msg.Resize.Rows == 0 {
				continue
			}
			err = t.host.ResizeCommand(ctx, t.sandbox, t.command, *msg.Resize)
		}
		// An ended command takes nothing more; its ending is on the way.
		if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassConflict && ctx.Err() == nil {
			_ = t.text(ctx, terminalText{Error: &envelope(err).Err})
		}
	}
}

func (t *terminalSession) text(ctx context.Context, msg terminalText) error {
	data, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	return t.write(ctx, websocket.MessageText, data)
}

func (t *terminalSession) write(ctx context.Context, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, t.face.pace.writeStall)
	defer cancel()
	return t.conn.Write(ctx, kind, data)
}
