package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"sandboxd"
)

const (
	importDoc = `the body is a tar, plain or gzipped, of as many bytes as it takes. The image is there whole or not at all`
	pullDoc   = `one JSON object a line, {"progress":{...}} as layers arrive and last {"image":{...}}; an {"error":{...}} line ends a pull that failed on the way; blank lines keep an idle one alive`
)

// PullLine is one line of a pull. It is exported because the framework names its schema.
type PullLine struct {
	Progress *sandboxd.PullProgress `json:"progress,omitempty"`
	Image    *sandboxd.Image        `json:"image,omitempty"`
	Error    *EnvelopeError         `json:"error,omitempty"`
}

// imagesOf answers the request's power over images. A Host without it is one that was
// handed to somebody else than the administrator.
func (f *face) imagesOf(r *http.Request) (sandboxd.ImageHost, error) {
	h, err := f.cfg.HostFor(r)
	if err != nil {
		return nil, err
	}
	images, ok := h.(sandboxd.ImageHost)
	if !ok {
		return nil, sandboxd.Errorf(sandboxd.ClassForbidden, "images are the administrator's: this secret has no power over them").
			WithHint("use the API key of the server's own API, not the host's")
	}
	return images, nil
}

type imagesOutput struct {
	Body struct {
		Images []sandboxd.Image `json:"images" nullable:"false"`
	}
}

func (f *face) listImages(ctx context.Context, _ *struct{}) (*imagesOutput, error) {
	images, err := f.imagesOf(callOf(ctx).req)
	if err != nil {
		return nil, err
	}
	all, err := images.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	out := &imagesOutput{}
	out.Body.Images = append([]sandboxd.Image{}, all...)
	return out, nil
}

func (f *face) importImage(w http.ResponseWriter, r *http.Request, query url.Values) error {
	req := sandboxd.ImageImport{Name: query.Get("name"), Driver: query.Get("driver")}
	var err error
	if req.Limits.MaxEntries, err = integer(query, "max_entries"); err != nil {
		return err
	}
	if req.Limits.MaxBytes, err = integer(query, "max_bytes"); err != nil {
		return err
	}
	images, err := f.imagesOf(r)
	if err != nil {
		return err
	}
	made, err := images.ImportImage(r.Context(), req, r.Body)
	if err != nil {
		return err
	}
	answerJSON(w, http.StatusCreated, made)
	return nil
}

func (f *face) removeImage(w http.ResponseWriter, r *http.Request, query url.Values) error {
	images, err := f.imagesOf(r)
	if err != nil {
		return err
	}
	if err := images.RemoveImage(r.Context(), query.Get("driver"), query.Get("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type pullInput struct {
	Body sandboxd.ImagePull
}

// pulled is how a pull ended.
type pulled struct {
	image sandboxd.Image
	err   error
}

func (f *face) pullImage(ctx context.Context, in *pullInput) (*huma.StreamResponse, error) {
	images, err := f.imagesOf(callOf(ctx).req)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		if err := f.sendPull(w, r, images, in.Body); err != nil {
			writeError(w, r, err)
		}
	}}, nil
}

// sendPull answers a pull as lines. One that fails before its first line is answered
// as every other error.
func (f *face) sendPull(w http.ResponseWriter, r *http.Request, images sandboxd.ImageHost, req sandboxd.ImagePull) error {
	ctx, cancel := context.WithCancel(r.Context())
	news := make(chan sandboxd.PullProgress, 1) // the newest: a slow reader misses some
	over := make(chan pulled, 1)
	go func() {
		var p pulled
		p.image, p.err = images.PullImage(ctx, req, func(progress sandboxd.PullProgress) {
			select {
			case <-news:
			default:
			}
			news <- progress
		})
		over <- p
	}()
	ended := false
	defer func() {
		cancel()
		if !ended {
			<-over
		}
	}()
	out, begun := &batch{w: w}, false
	beat := time.NewTimer(f.pace.heartbeat)
	defer beat.Stop()
	for !ended {
		beat.Reset(f.pace.heartbeat)
		select {
		case p := <-over:
			ended = true
			switch {
			case p.err == nil:
				out.line(PullLine{Image: &p.image})
			case !begun:
				return p.err
			default:
				note(r.Context(), p.err)
				out.line(PullLine{Error: &envelope(p.err).Err})
			}
		case progress := <-news:
			out.line(PullLine{Progress: &progress})
		case <-beat.C:
			out.WriteByte('\n')
		}
		if !begun {
			begun = true
			startStream(w, ndjson)
		}
		if err := out.send(); err != nil {
			return err
		}
	}
	return nil
}
