package client

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"

	"sandboxd"
)

var _ sandboxd.ImageHost = (*Client)(nil)

// ImportImage implements sandboxd.ImageHost. The archive is streamed.
func (c *Client) ImportImage(ctx context.Context, req sandboxd.ImageImport, archive io.Reader) (img sandboxd.Image, err error) {
	in := call{method: http.MethodPut, path: []string{"images"}, query: url.Values{"name": {req.Name}},
		header: http.Header{"Content-Type": {"application/x-tar"}}, body: io.NopCloser(archive), size: -1}
	if req.Driver != "" {
		in.query.Set("driver", req.Driver)
	}
	bounds(in.query, map[string]int64{"max_entries": max(req.Limits.MaxEntries, 0), "max_bytes": max(req.Limits.MaxBytes, 0)})
	_, err = c.ask(ctx, &img, in)
	return img, err
}

// ListImages implements sandboxd.ImageHost.
func (c *Client) ListImages(ctx context.Context) ([]sandboxd.Image, error) {
	var out struct {
		Images []sandboxd.Image `json:"images"`
	}
	return out.Images, c.get(ctx, &out, nil, "images")
}

// RemoveImage implements sandboxd.ImageHost.
func (c *Client) RemoveImage(ctx context.Context, driver, name string) error {
	in := call{method: http.MethodDelete, path: []string{"images"}, query: url.Values{"name": {name}}}
	if driver != "" {
		in.query.Set("driver", driver)
	}
	_, err := c.ask(ctx, nil, in)
	return err
}

// PullImage implements sandboxd.ImageHost.
func (c *Client) PullImage(ctx context.Context, req sandboxd.ImagePull, tell func(sandboxd.PullProgress)) (sandboxd.Image, error) {
	res, err := c.do(ctx, call{method: http.MethodPost, path: []string{"images", "pull"}, json: req,
		header: http.Header{"Accept": {"application/x-ndjson"}}})
	if err != nil {
		return sandboxd.Image{}, err
	}
	defer res.Body.Close()
	l := lines{r: bufio.NewReader(res.Body)}
	for {
		var row struct {
			Progress *sandboxd.PullProgress `json:"progress"`
			Image    *sandboxd.Image        `json:"image"`
			Error    *wireError             `json:"error"`
		}
		if err := l.next(&row); err != nil {
			if ctx.Err() != nil {
				return sandboxd.Image{}, c.unreachable(ctx, err)
			}
			return sandboxd.Image{}, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the pull broke off")
		}
		switch {
		case row.Error != nil:
			return sandboxd.Image{}, row.Error.error(0)
		case row.Image != nil:
			return *row.Image, nil
		case row.Progress != nil && tell != nil:
			tell(*row.Progress)
		}
	}
}
