package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"sandboxd"
)

// StartCommand implements sandboxd.Host.
func (c *Client) StartCommand(ctx context.Context, id string, spec sandboxd.CommandSpec) (cmd sandboxd.Command, started bool, err error) {
	status, err := c.ask(ctx, &cmd, call{method: http.MethodPost, path: []string{"sandboxes", id, "commands"}, json: spec})
	return cmd, status == http.StatusCreated, err
}

// GetCommand implements sandboxd.Host.
func (c *Client) GetCommand(ctx context.Context, id, command string) (cmd sandboxd.Command, err error) {
	return cmd, c.get(ctx, &cmd, nil, "sandboxes", id, "commands", command)
}

// ListCommands implements sandboxd.Host.
func (c *Client) ListCommands(ctx context.Context, id string) ([]sandboxd.Command, error) {
	var out struct {
		Commands []sandboxd.Command `json:"commands"`
	}
	return out.Commands, c.get(ctx, &out, nil, "sandboxes", id, "commands")
}

// WriteStdin implements sandboxd.Host.
func (c *Client) WriteStdin(ctx context.Context, id, command string, data []byte, eof bool) error {
	query := url.Values{}
	if eof {
		query.Set("eof", "true")
	}
	_, err := c.ask(ctx, nil, call{method: http.MethodPost, path: []string{"sandboxes", id, "commands", command, "stdin"},
		query: query, body: bytes.NewReader(data), size: int64(len(data))})
	return err
}

// SignalCommand implements sandboxd.Host.
func (c *Client) SignalCommand(ctx context.Context, id, command, signal string) error {
	_, err := c.ask(ctx, nil, call{method: http.MethodPost, path: []string{"sandboxes", id, "commands", command, "signal"},
		json: map[string]string{"signal": signal}})
	return err
}

// StopCommand implements sandboxd.Host.
func (c *Client) StopCommand(ctx context.Context, id, command string, grace sandboxd.Seconds) (cmd sandboxd.Command, err error) {
	_, err = c.ask(ctx, &cmd, call{method: http.MethodPost, path: []string{"sandboxes", id, "commands", command, "stop"},
		json: map[string]sandboxd.Seconds{"grace_s": grace}})
	return cmd, err
}

// ResizeCommand implements sandboxd.Host.
func (c *Client) ResizeCommand(ctx context.Context, id, command string, size sandboxd.TTY) error {
	_, err := c.ask(ctx, nil, call{method: http.MethodPost, path: []string{"sandboxes", id, "commands", command, "resize"}, json: size})
	return err
}

// FollowCommand implements sandboxd.Host. Cancelling ctx ends the stream, so it
// must live as long as the stream is read.
func (c *Client) FollowCommand(ctx context.Context, id, command string, opts sandboxd.FollowOptions) (sandboxd.CommandStream, error) {
	if opts.Offset < 0 {
		return nil, sandboxd.Invalid("offset", "a whole number, 0 or more, is needed")
	}
	query := url.Values{"offset": {strconv.FormatInt(opts.Offset, 10)}}
	if opts.Follow {
		query.Set("follow", "true")
	}
	ctx, cancel := context.WithCancel(ctx)
	res, err := c.do(ctx, call{method: http.MethodGet, path: []string{"sandboxes", id, "commands", command, "output"},
		query: query, header: http.Header{"Accept": {"application/x-ndjson"}}})
	if err != nil {
		cancel()
		return nil, err
	}
	return &stream{ctx: ctx, cancel: cancel, body: res.Body, lines: lines{r: bufio.NewReaderSize(res.Body, 64<<10)}, follow: opts.Follow}, nil
}

// stream is a command's output as it arrives.
type stream struct {
	ctx    context.Context
	cancel context.CancelFunc
	body   io.ReadCloser
	lines  lines
	follow bool
	over   error // what every later Next answers
}

// wireFrame is one line of output.
type wireFrame struct {
	Stream sandboxd.Stream  `json:"stream"`
	Offset int64            `json:"offset"`
	Data   string           `json:"data"`
	B64    []byte           `json:"b64"`
	Gap    *sandboxd.Gap    `json:"gap"`
	Ending *sandboxd.Ending `json:"ending"`
	Error  *wireError       `json:"error"`
}

// Next implements sandboxd.CommandStream. A call that ctx ended leaves the stream
// unusable, because a line may have been read in half.
func (s *stream) Next(ctx context.Context) (sandboxd.Frame, error) {
	if s.over != nil {
		return sandboxd.Frame{}, s.over
	}
	release := context.AfterFunc(ctx, s.cancel)
	defer release()
	for {
		var f wireFrame
		err := s.lines.next(&f)
		switch {
		case err == io.EOF && !s.follow:
			s.over = io.EOF
		case err != nil && ctx.Err() != nil:
			s.over = sandboxd.Wrap(sandboxd.ClassUnavailable, ctx.Err(), "the wait for output was given up")
		case err != nil && s.ctx.Err() != nil:
			s.over = sandboxd.Wrap(sandboxd.ClassUnavailable, s.ctx.Err(), "the stream was closed")
		case err != nil:
			s.over = sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the output broke off; the command may still run")
		case f.Error != nil:
			s.over = f.Error.error(0)
		case f.Ending != nil:
			s.over = io.EOF
			return sandboxd.Frame{Ending: f.Ending}, nil
		case f.Gap != nil:
			return sandboxd.Frame{Offset: f.Gap.From, Gap: f.Gap}, nil
		case f.B64 != nil:
			return sandboxd.Frame{Stream: f.Stream, Offset: f.Offset, Data: f.B64}, nil
		case f.Data != "":
			return sandboxd.Frame{Stream: f.Stream, Offset: f.Offset, Data: []byte(f.Data)}, nil
		}
		if s.over != nil {
			return sandboxd.Frame{}, s.over
		}
	}
}

// Close implements sandboxd.CommandStream.
func (s *stream) Close() error {
	s.cancel()
	return s.body.Close()
}

// lines reads JSON values, one a line.
type lines struct {
	r   *bufio.Reader
	buf []byte
}

// largestLine is far above what a server sends, a frame being 64 KiB of data.
const largestLine = 8 << 20

// next decodes the next line that is not blank, which is a heartbeat.
func (l *lines) next(out any) error {
	for {
		line, err := l.line()
		if err != nil {
			return err
		}
		if len(line) > 0 {
			return json.Unmarshal(line, out)
		}
	}
}

// line answers the next line without the spaces around it, valid until the next
// call. A line without its end is io.ErrUnexpectedEOF.
func (l *lines) line() ([]byte, error) {
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.buf = append(l.buf, part...)
		if err == nil {
			return bytes.TrimSpace(l.buf), nil
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			if len(l.buf) > largestLine {
				return nil, errors.New("a line is too long")
			}
			continue
		}
		if err == io.EOF && len(l.buf) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
}
