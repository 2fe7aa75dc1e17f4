package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandboxd"
)

// imageDouble is a Host with images of which a test scripts a pull and an import.
type imageDouble struct {
	*double
	pull func(ctx context.Context, tell func(sandboxd.PullProgress)) (sandboxd.Image, error)
	take func(io.Reader) error
}

func (d *imageDouble) ImportImage(_ context.Context, req sandboxd.ImageImport, archive io.Reader) (sandboxd.Image, error) {
	return sandboxd.Image{Name: req.Name, Driver: req.Driver}, d.take(archive)
}

func (d *imageDouble) ListImages(context.Context) ([]sandboxd.Image, error) { return nil, nil }

func (d *imageDouble) RemoveImage(context.Context, string, string) error { return nil }

func (d *imageDouble) PullImage(ctx context.Context, _ sandboxd.ImagePull, tell func(sandboxd.PullProgress)) (sandboxd.Image, error) {
	return d.pull(ctx, tell)
}

func newImageRig(t *testing.T, d *imageDouble) *rig {
	t.Helper()
	r := newRig(t, controlListener, func(cfg *Config, p *pace) {
		cfg.HostFor = func(*http.Request) (sandboxd.Host, error) { return d, nil }
		p.heartbeat = 20 * time.Millisecond
	})
	d.double = r.double
	return r
}

// A pull is lines of progress and last the image, or an error; one that fails at once
// is answered as any other.
func TestPull(t *testing.T) {
	refused := sandboxd.Invalid("image", "its registry does not give it")
	for _, test := range []struct {
		name   string
		pull   func(ctx context.Context, tell func(sandboxd.PullProgress)) (sandboxd.Image, error)
		status int
		says   []string
	}{
		{"it is there", func(context.Context, func(sandboxd.PullProgress)) (sandboxd.Image, error) {
			return sandboxd.Image{Name: "tools"}, nil
		}, 200, []string{`{"image":{"driver":"","name":"tools"`}},
		{"it fails at once", func(context.Context, func(sandboxd.PullProgress)) (sandboxd.Image, error) {
			return sandboxd.Image{}, refused
		}, 400, []string{`"code":"invalid_request"`, "its registry does not give it"}},
		{"it arrives", func(_ context.Context, tell func(sandboxd.PullProgress)) (sandboxd.Image, error) {
			for i := range int64(1000) {
				tell(sandboxd.PullProgress{Done: i, Total: 1000, Layers: 1})
			}
			return sandboxd.Image{Name: "tools"}, nil
		}, 200, []string{`{"image":{`}},
		{"it fails on the way, after a while", func(_ context.Context, tell func(sandboxd.PullProgress)) (sandboxd.Image, error) {
			tell(sandboxd.PullProgress{Done: 1, Total: 2, Layers: 1})
			<-time.After(200 * time.Millisecond)
			return sandboxd.Image{}, refused
		}, 200, []string{`{"progress":{"done":1,"total":2,"layers":1,"layers_done":0}}` + "\n\n", `{"error":{"code":"invalid_request"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newImageRig(t, &imageDouble{pull: test.pull})
			got := r.do("POST", "/v1/images/pull", `{"image":"tools"}`)
			if got.status != test.status {
				t.Errorf("status %d: %s", got.status, got.body)
			}
			for _, text := range test.says {
				if !strings.Contains(got.body, text) {
					t.Errorf("%q has no %q", got.body, text)
				}
			}
			if kind := got.header.Get("Content-Type"); test.status == 200 && kind != ndjson {
				t.Errorf("content type %q", kind)
			}
		})
	}
}

// The pull of a caller that leaves is given up.
func TestAnAbandonedPullIsGivenUp(t *testing.T) {
	over := make(chan struct{})
	r := newImageRig(t, &imageDouble{pull: func(ctx context.Context, tell func(sandboxd.PullProgress)) (sandboxd.Image, error) {
		defer close(over)
		tell(sandboxd.PullProgress{Layers: 1})
		<-ctx.Done()
		return sandboxd.Image{}, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+r.addr+"/v1/images/pull", strings.NewReader(`{"image":"tools"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testToken)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	cancel()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Error("the pull goes on")
	}
}

// An import that is refused in the middle of a long upload is answered, and the caller
// gets the answer and not a broken connection.
func TestARefusedImportIsAnswered(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 8<<20)
	for name, take := range map[string]func(io.Reader) error{
		"at once": func(io.Reader) error { return sandboxd.Errorf(sandboxd.ClassConflict, "taken") },
		"after its begin": func(r io.Reader) error {
			if _, err := io.CopyN(io.Discard, r, 1000); err != nil {
				return err
			}
			return sandboxd.Errorf(sandboxd.ClassConflict, "taken")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newImageRig(t, &imageDouble{take: take})
			for range 20 {
				req, err := http.NewRequest("PUT", "http://"+r.addr+"/v1/images?name=tools", io.NopCloser(bytes.NewReader(body)))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+testToken)
				req.Header.Set("Expect", "100-continue")
				res, err := (&http.Transport{ExpectContinueTimeout: 10 * time.Second, DisableKeepAlives: true}).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != 409 || err != nil || !strings.Contains(string(text), "taken") {
					t.Fatalf("status %d, %v: %s", res.StatusCode, err, text)
				}
			}
		})
	}
}

// A Host without power over images answers so on every route.
func TestImagesNeedPower(t *testing.T) {
	r := newRig(t, controlListener, nil)
	for _, route := range [][3]string{{"GET", "/v1/images", ""}, {"PUT", "/v1/images?name=x", "x"}, {"DELETE", "/v1/images?name=x", ""},
		{"POST", "/v1/images/pull", `{"image":"x"}`}} {
		if got := r.do(route[0], route[1], route[2]); got.status != 403 || got.envelope(t).Code != "forbidden" {
			t.Errorf("%s %s: %d %s", route[0], route[1], got.status, got.body)
		}
	}
}
