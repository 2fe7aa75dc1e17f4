// Package client is the Go client of sandboxd's native API. A Client is a
// sandboxd.Host, on either listener, and a sandboxd.ImageHost on the control one: what
// the API cannot do, it cannot do.
//
// It is not a mirror of the wire: callers see the contract's types and errors
// only. It keeps a pool of connections, never buffers a stream as a whole and
// never retries by itself; a command may be started again with its id, which
// attaches.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandboxd"
)

// Client is a remote host. It is safe for concurrent use.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
}

var _ sandboxd.Host = (*Client)(nil)

// New makes a client of the server at address, as http://127.0.0.1:9090. It does
// not connect. token is the secret of that listener.
func New(address, token string) (*Client, error) {
	base, err := url.Parse(strings.TrimRight(address, "/"))
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" || base.RawQuery != "" || base.User != nil {
		return nil, sandboxd.Invalid("url", "an address as http://127.0.0.1:9090 is needed")
	}
	if strings.ContainsAny(token, "\r\n\x00") {
		return nil, sandboxd.Invalid("token", "it has characters that no header can carry")
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 64,
		// Shorter than the server keeps its side, so that it is not the server who
		// closes a connection under a request.
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
		// Long enough for a server that checks a condition before it reads a body.
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true, // a range of a compressed file is not a range of the file
		ReadBufferSize:        64 << 10,
		WriteBufferSize:       64 << 10,
	}
	return &Client{base: base, token: token, http: &http.Client{Transport: transport,
		// A redirect would carry the secret elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

// Close lets go of idle connections. Calls in flight go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request.
type call struct {
	method string
	path   []string // elements under /v1, escaped here
	query  url.Values
	header http.Header
	json   any       // a JSON body
	body   io.Reader // or a raw one
	size   int64     // of body; -1 when unknown
}

// askFirst is the size from which a body is announced before it is sent.
const askFirst = 256 << 10

// do sends a request and answers its response when the server accepted it; any
// other answer is an error of its class. The caller closes the body.
func (c *Client) do(ctx context.Context, in call) (*http.Response, error) {
	res, err := c.send(ctx, in)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, decodeError(res)
}

// send sends a request and answers whatever the server answered.
func (c *Client) send(ctx context.Context, in call) (*http.Response, error) {
	u := c.base.JoinPath("v1")
	for _, element := range in.path {
		if element == "" || element == "." || element == ".." {
			// Such an element would name another route; no id looks like it.
			return nil, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no such sandbox or command")
		}
		u = u.JoinPath(url.PathEscape(element))
	}
	u.RawQuery = in.query.Encode()
	body := in.body
	if in.json != nil {
		data, err := json.Marshal(in.json)
		if err != nil {
			return nil, sandboxd.Wrap(sandboxd.ClassInvalid, err, "the request cannot be encoded")
		}
		body, in.size = bytes.NewReader(data), int64(len(data))
	}
	req, err := http.NewRequestWithContext(ctx, in.method, u.String(), body)
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInvalid, err, "the request cannot be made")
	}
	if body != nil {
		req.ContentLength = in.size
		if in.size == 0 {
			req.Body = http.NoBody
		}
	}
	for name, values := range in.header {
		req.Header[name] = values
	}
	if in.json != nil {
		req.Header.Set("Content-Type", "application/json")
	} else if body != nil && (in.size < 0 || in.size > askFirst) {
		// A refusal that arrives while a body is being sent may be lost with the
		// connection.
		req.Header.Set("Expect", "100-continue")
	}
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return res, nil
}

// unreachable gives a failed exchange its class. A body that the caller handed in
// and that failed by itself keeps its own error.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, ctxErr, "the wait for the server was given up")
	}
	var own *sandboxd.Error
	if errors.As(err, &own) {
		return own
	}
	return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the server at %s does not answer", c.base.Host).
		WithHint("is sandboxd serve running, and is this its address?")
}

// get, and ask below, decode one JSON answer into out.
func (c *Client) get(ctx context.Context, out any, query url.Values, path ...string) error {
	_, err := c.ask(ctx, out, call{method: http.MethodGet, path: path, query: query})
	return err
}

func (c *Client) ask(ctx context.Context, out any, in call) (status int, err error) {
	res, err := c.do(ctx, in)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if out == nil || res.StatusCode == http.StatusNoContent {
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode, nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		if ctx.Err() != nil {
			return 0, c.unreachable(ctx, err)
		}
		return 0, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the server's answer broke off or is not of this API")
	}
	_, _ = io.Copy(io.Discard, res.Body) // the newline; then the connection is used again
	return res.StatusCode, nil
}

// Open implements sandboxd.Host.
func (c *Client) Open(ctx context.Context, req sandboxd.OpenRequest) (sb sandboxd.Sandbox, created bool, err error) {
	status, err := c.ask(ctx, &sb, call{method: http.MethodPost, path: []string{"sandboxes"}, json: req})
	return sb, status == http.StatusCreated, err
}

// Get implements sandboxd.Host.
func (c *Client) Get(ctx context.Context, id string) (sb sandboxd.Sandbox, err error) {
	return sb, c.get(ctx, &sb, nil, "sandboxes", id)
}

// List implements sandboxd.Host.
func (c *Client) List(ctx context.Context, key string) ([]sandboxd.Sandbox, error) {
	query := url.Values{}
	if key != "" {
		query.Set("key", key)
	}
	var out struct {
		Sandboxes []sandboxd.Sandbox `json:"sandboxes"`
	}
	return out.Sandboxes, c.get(ctx, &out, query, "sandboxes")
}

// Start implements sandboxd.Host.
func (c *Client) Start(ctx context.Context, id string) (sb sandboxd.Sandbox, err error) {
	_, err = c.ask(ctx, &sb, call{method: http.MethodPost, path: []string{"sandboxes", id, "start"}})
	return sb, err
}

// Stop implements sandboxd.Host.
func (c *Client) Stop(ctx context.Context, id string) (sb sandboxd.Sandbox, err error) {
	_, err = c.ask(ctx, &sb, call{method: http.MethodPost, path: []string{"sandboxes", id, "stop"}})
	return sb, err
}

// Delete implements sandboxd.Host.
func (c *Client) Delete(ctx context.Context, id string) error {
	_, err := c.ask(ctx, nil, call{method: http.MethodDelete, path: []string{"sandboxes", id}})
	return err
}

// NetworkActivity implements sandboxd.Host.
func (c *Client) NetworkActivity(ctx context.Context, id string) (a sandboxd.NetworkActivity, err error) {
	return a, c.get(ctx, &a, nil, "sandboxes", id, "network")
}

// Runtimes implements sandboxd.Host.
func (c *Client) Runtimes(ctx context.Context) ([]sandboxd.Runtime, error) {
	var out struct {
		Runtimes []sandboxd.Runtime `json:"runtimes"`
	}
	return out.Runtimes, c.get(ctx, &out, nil, "runtimes")
}
