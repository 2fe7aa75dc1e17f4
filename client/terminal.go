package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"sandboxd"
)

// TerminalOptions say what to attach to.
type TerminalOptions struct {
	Command string       // an existing command with a terminal; "" starts a login shell
	Size    sandboxd.TTY // of the terminal; zero means 80x24 or, for an existing one, as it is
}

// Terminal is an attached terminal. Read and Write may be used by one goroutine
// each. Closing it detaches: the command goes on for a while and can be attached
// to again.
type Terminal struct {
	conn    *websocket.Conn
	ctx     context.Context
	cancel  context.CancelFunc
	command string
	rest    []byte
	ending  *sandboxd.Ending
}

// terminalText is a text frame, either way.
type terminalText struct {
	CommandID string           `json:"command_id,omitempty"`
	Resize    *sandboxd.TTY    `json:"resize,omitempty"`
	Ending    *sandboxd.Ending `json:"ending,omitempty"`
	Error     *wireError       `json:"error,omitempty"`
}

// Terminal attaches to a terminal of a sandbox. Cancelling ctx detaches.
func (c *Client) Terminal(ctx context.Context, id string, opts TerminalOptions) (*Terminal, error) {
	if !sandboxd.ValidID(id) {
		return nil, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no such sandbox")
	}
	u := c.base.JoinPath("v1", "sandboxes", id, "terminal")
	query := url.Values{}
	if opts.Command != "" {
		query.Set("command_id", opts.Command)
	}
	if opts.Size.Cols > 0 && opts.Size.Rows > 0 {
		query.Set("cols", strconv.Itoa(int(opts.Size.Cols)))
		query.Set("rows", strconv.Itoa(int(opts.Size.Rows)))
	}
	u.RawQuery = query.Encode()
	conn, res, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{HTTPClient: c.http,
		HTTPHeader: http.Header{"Authorization": {"Bearer " + c.token}}})
	if err != nil {
		if res != nil && res.StatusCode != http.StatusSwitchingProtocols && res.Body != nil {
			return nil, decodeError(res)
		}
		return nil, c.unreachable(ctx, err)
	}
	conn.SetReadLimit(1 << 20)
	t := &Terminal{conn: conn}
	t.ctx, t.cancel = context.WithCancel(ctx)
	if err := t.begin(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// begin reads the frame that names the command.
func (t *Terminal) begin() error {
	kind, data, err := t.conn.Read(t.ctx)
	var msg terminalText
	if err == nil && (kind != websocket.MessageText || json.Unmarshal(data, &msg) != nil || msg.CommandID == "") {
		err = errors.New("the first frame does not name a command")
	}
	if err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the terminal did not open")
	}
	t.command = msg.CommandID
	return nil
}

// CommandID names the command, to attach to it again.
func (t *Terminal) CommandID() string { return t.command }

// Ending is how the command ended; nil while it may still run. It is valid after
// Read returned io.EOF.
func (t *Terminal) Ending() *sandboxd.Ending { return t.ending }

// Read reads what the terminal shows. io.EOF means that the command has ended.
func (t *Terminal) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		if t.ending != nil {
			return 0, io.EOF
		}
		kind, data, err := t.conn.Read(t.ctx)
		if err != nil {
			return 0, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the terminal was cut off; the command may still run").
				WithHint("attach again with the command's id")
		}
		if kind == websocket.MessageBinary {
			t.rest = data
			continue
		}
		var msg terminalText
		if json.Unmarshal(data, &msg) != nil {
			continue
		}
		if msg.Error != nil {
			return 0, msg.Error.error(0)
		}
		t.ending = msg.Ending
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// Write types p.
func (t *Terminal) Write(p []byte) (int, error) {
	const most = 512 << 10 // below what the server takes in one frame
	for done := 0; done < len(p); {
		n := min(most, len(p)-done)
		if err := t.conn.Write(t.ctx, websocket.MessageBinary, p[done:done+n]); err != nil {
			return done, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the terminal was cut off")
		}
		done += n
	}
	return len(p), nil
}

// Resize sets the terminal's size.
func (t *Terminal) Resize(size sandboxd.TTY) error {
	data, err := json.Marshal(terminalText{Resize: &size})
	if err != nil {
		return err
	}
	if err := t.conn.Write(t.ctx, websocket.MessageText, data); err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the terminal was cut off")
	}
	return nil
}

// Close detaches.
func (t *Terminal) Close() error {
	defer t.cancel()
	return t.conn.CloseNow()
}
