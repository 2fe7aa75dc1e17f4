package docker

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
)

// registry serves one image on loopback, as far as a pull asks for it.
type registry struct {
	*httptest.Server
	blobs    map[string][]byte
	manifest []byte
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func newRegistry(t *testing.T, architecture string) *registry {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	var plain, packed bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := w.WriteHeader(&tar.Header{Name: "prober", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	w.Write(program)
	w.Close()
	z := gzip.NewWriter(&packed)
	z.Write(plain.Bytes())
	z.Close()
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	type object = map[string]any
	config := encode(object{"architecture": architecture, "os": "linux", "config": object{"Env": []string{"PULLED=yes"}},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(plain.Bytes())}}})
	r := &registry{blobs: map[string][]byte{digest(config): config, digest(packed.Bytes()): packed.Bytes()}}
	r.manifest = encode(object{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
		"config": object{"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": digest(config)},
		"layers": []object{{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": packed.Len(), "digest": digest(packed.Bytes())}}})
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (r *registry) serve(w http.ResponseWriter, req *http.Request) {
	body, kind := []byte(nil), "application/octet-stream"
	switch path := req.URL.Path; {
	case path == "/v2/":
		w.WriteHeader(http.StatusOK)
		return
	case strings.HasPrefix(path, "/v2/tools/manifests/"):
		body, kind = r.manifest, "application/vnd.docker.distribution.manifest.v2+json"
	case strings.HasPrefix(path, "/v2/tools/blobs/"):
		body = r.blobs[path[strings.LastIndexByte(path, '/')+1:]]
	}
	if body == nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digest(body))
	w.Write(body)
}

// name is a reference of the registry.
func (r *registry) name(repository string) string {
	return strings.TrimPrefix(r.URL, "http://") + "/" + repository
}

func TestPull(t *testing.T) {
	e := dockertest.Find(t, "runc")
	image := newRegistry(t, runtime.GOARCH).name("tools:1")
	t.Cleanup(func() {
		if _, err := e.API.ImageRemove(context.Background(), image, client.ImageRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	d := openDriver(t, e, dir)
	defer d.Close()
	spec := newSpec(t, dir)
	spec.Image = image
	if _, err := d.Start(t.Context(), spec); err != nil {
		t.Fatalf("start from an image that is pulled: %v", err)
	}
	if got := d.Environ(spec.ID); len(got) == 0 || got[len(got)-1] != "PULLED=yes" {
		t.Errorf("environment %q", got)
	}
	if err := d.Stop(t.Context(), spec.ID); err != nil {
		t.Error(err)
	}
}

// An image that cannot be had is the caller's fault or the registry's, and which.
func TestImagesThatAreNotThere(t *testing.T) {
	e := dockertest.Find(t, "runc")
	r := newRegistry(t, "s390x")
	foreign := r.name("tools:1")
	t.Cleanup(func() { e.API.ImageRemove(context.Background(), foreign, client.ImageRemoveOptions{Force: true}) })
	closed := httptest.NewServer(nil)
	closed.Close()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, "<html><body>Bad gateway</body></html>")
	}))
	defer page.Close()
	for _, test := range []struct {
		name, image string
		class       sandboxd.Class
		says        string
	}{
		{"no such repository", r.name("nothing:1"), sandboxd.ClassInvalid, "its registry does not give it"},
		{"another machine's", foreign, sandboxd.ClassInvalid, "it is for linux/s390x"},
		{"no registry", strings.TrimPrefix(closed.URL, "http://") + "/tools:1", sandboxd.ClassUnavailable, "cannot be pulled"},
		{"a page for a registry", strings.TrimPrefix(page.URL, "http://") + "/tools:1", sandboxd.ClassUnavailable, ""},
		{"no name", "Not//a name", sandboxd.ClassInvalid, "no reference of an image"},
		{"an id", "sha256:" + strings.Repeat("0", 64), sandboxd.ClassInvalid, "cannot be pulled"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			before := leftovers(e, dir)
			d := openDriver(t, e, dir)
			spec := newSpec(t, dir)
			spec.Image = test.image
			_, err := d.Start(t.Context(), spec)
			if sandboxd.ClassOf(err) != test.class || !strings.Contains(fmt.Sprint(err), test.says) {
				t.Errorf("class %s: %v", sandboxd.ClassOf(err), err)
			}
			d.Close()
			if test.image == foreign {
				return // the image is there now
			}
			if after := leftovers(e, dir); after != before {
				t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}
