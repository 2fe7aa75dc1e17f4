package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
)

// A pull tells how far it is, and brings what a sandbox then runs in. What is there is
// not pulled again unless that is asked for.
func TestPullIsTold(t *testing.T) {
	e := dockertest.Find(t, "runc")
	r := newRegistry(t, runtime.GOARCH)
	name := r.name("tools:told")
	t.Cleanup(func() { e.API.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true}) })
	dir := t.TempDir()
	d := openDriver(t, e, dir)
	defer d.Close()
	var told []sandboxd.PullProgress
	tell := func(p sandboxd.PullProgress) { told = append(told, p) }
	img, err := d.PullImage(t.Context(), sandboxd.ImagePull{Image: name, Missing: true}, tell)
	if err != nil {
		t.Fatal(err)
	}
	if img.Name != name || img.Driver != "docker" || img.Imported || img.Bytes <= 0 || img.ID == "" {
		t.Errorf("image %+v", img)
	}
	if len(told) == 0 {
		t.Fatal("nothing was told")
	}
	if last := told[len(told)-1]; last.Layers != 1 || last.LayersDone != 1 || last.Done != last.Total {
		t.Errorf("last told: %+v of %+v", last, told)
	}
	list, err := d.ListImages(t.Context())
	if err != nil || !strings.Contains(fmt.Sprint(list), name) {
		t.Errorf("list %+v, %v", list, err)
	}
	r.Close()
	if again, err := d.PullImage(t.Context(), sandboxd.ImagePull{Image: name, Missing: true}, tell); err != nil || again.ID != img.ID {
		t.Errorf("what is there: %+v, %v", again, err)
	}
	if _, err := d.PullImage(t.Context(), sandboxd.ImagePull{Image: name}, tell); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Errorf("pulled again without a registry: %v", err)
	}
}

// A pull that fails says whose fault it is; one that is given up ends.
func TestPullsThatFail(t *testing.T) {
	e := dockertest.Find(t, "runc")
	d := openDriver(t, e, t.TempDir())
	defer d.Close()
	r := newRegistry(t, runtime.GOARCH)
	for _, test := range []struct {
		image string
		class sandboxd.Class
	}{
		{r.name("nothing:1"), sandboxd.ClassInvalid}, {"Not//a name", sandboxd.ClassInvalid}, {"sha256:" + strings.Repeat("0", 64), sandboxd.ClassInvalid},
	} {
		if _, err := d.PullImage(t.Context(), sandboxd.ImagePull{Image: test.image}, func(sandboxd.PullProgress) {}); sandboxd.ClassOf(err) != test.class {
			t.Errorf("%s: %v", test.image, err)
		}
	}
	asked, release := make(chan struct{}), make(chan struct{})
	once := sync.Once{}
	held := newRegistry(t, runtime.GOARCH)
	t.Cleanup(func() { close(release) }) // the engine may go on asking
	held.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/v2/" {
			return
		}
		once.Do(func() { close(asked) })
		<-release
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := d.PullImage(ctx, sandboxd.ImagePull{Image: held.name("tools:held")}, func(sandboxd.PullProgress) {}); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Errorf("given up: %v", err)
	}
}

// The engine's messages of a pull, as sums.
func TestProgressOfLayers(t *testing.T) {
	l := layers{}
	say := func(id, status string, done, total int64) sandboxd.PullProgress {
		m := jsonstream.Message{ID: id, Status: status}
		if total != 0 {
			m.Progress = &jsonstream.Progress{Current: done, Total: total}
		}
		l.hear(m)
		return l.progress()
	}
	for _, step := range []struct {
		got, want sandboxd.PullProgress
	}{
		{say("1", "Pulling from library/tools", 0, 0), sandboxd.PullProgress{}},
		{say("a", "Pulling fs layer", 0, 0), sandboxd.PullProgress{Layers: 1}},
		{say("b", "Already exists", 0, 0), sandboxd.PullProgress{Layers: 2, LayersDone: 1}},
		{say("a", "Downloading", 10, 100), sandboxd.PullProgress{Done: 10, Total: 100, Layers: 2, LayersDone: 1}},
		{say("a", "Downloading", 120, 100), sandboxd.PullProgress{Done: 120, Total: 120, Layers: 2, LayersDone: 1}},
		{say("a", "Downloading", -5, -1), sandboxd.PullProgress{Layers: 2, LayersDone: 1}},
		{say("a", "Downloading", 50, 100), sandboxd.PullProgress{Done: 50, Total: 100, Layers: 2, LayersDone: 1}},
		{say("a", "Download complete", 0, 0), sandboxd.PullProgress{Done: 100, Total: 100, Layers: 2, LayersDone: 1}},
		{say("a", "Extracting", 7, 100), sandboxd.PullProgress{Done: 100, Total: 100, Layers: 2, LayersDone: 1}},
		{say("a", "Pull complete", 0, 0), sandboxd.PullProgress{Done: 100, Total: 100, Layers: 2, LayersDone: 2}},
		{say("", "Downloading", 5, 6), sandboxd.PullProgress{Done: 100, Total: 100, Layers: 2, LayersDone: 2}},
	} {
		if step.got != step.want {
			t.Errorf("%+v, want %+v", step.got, step.want)
		}
	}
	for i := range 2 * maxLayers {
		say(fmt.Sprint("many", i), "Waiting", 0, 0)
	}
	if len(l) > maxLayers {
		t.Errorf("%d layers are remembered", len(l))
	}
}

// An imported image has our label, and no other name is touched.
func TestImportIsLabelled(t *testing.T) {
	e := dockertest.Find(t, "runc")
	dir := t.TempDir()
	d := openDriver(t, e, dir)
	defer d.Close()
	program, err := prober()
	if err != nil {
		t.Fatal(err)
	}
	name := "sandboxd-test-" + sandboxd.NewID()[:8]
	made, err := d.ImportImage(t.Context(), sandboxd.ImageImport{Name: name}, rootOf(t, string(program)))
	if err != nil {
		t.Fatal(err)
	}
	seen, err := e.API.ImageInspect(t.Context(), name+":latest")
	if err != nil || seen.Config.Labels[labelImage] != name || !made.Imported || made.Name != name {
		t.Errorf("made %+v, labels %v, %v", made, seen.Config, err)
	}
	spec := newSpec(t, dir)
	spec.Image = name
	if _, err := d.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := d.RemoveImage(t.Context(), name); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Errorf("remove it while a container has it: %v", err)
	}
	if err := d.Stop(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.RemoveImage(t.Context(), name); err != nil {
		t.Error(err)
	}
	if err := d.RemoveImage(t.Context(), name); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Errorf("remove it again: %v", err)
	}
}

// An archive that claims more than an import may hold is refused before the engine
// could begin to unpack it, as what is all holes takes none of it to fill the disk.
func TestImportIsBounded(t *testing.T) {
	d := pretender(t, map[string]http.HandlerFunc{"library/tools": answer(404, "application/json", `{"message":"no such image"}`)})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "big", Mode: 0o644, Size: 1 << 40, Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	_, err := d.ImportImage(t.Context(), sandboxd.ImageImport{Name: "tools"}, &b)
	if sandboxd.ClassOf(err) != sandboxd.ClassInvalid || !strings.Contains(err.Error(), "more than 17179869184 bytes") {
		t.Errorf("class %s: %v", sandboxd.ClassOf(err), err)
	}
}

// rootOf is a root file system of /prober.
func rootOf(t *testing.T, program string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "prober", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, program)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}
