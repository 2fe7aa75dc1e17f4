package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
)

// yard is an engine that builds images of one test.
type yard struct {
	t      *testing.T
	e      dockertest.Engine
	builds sandboxd.ImageBuilds
	label  string
	said   []string
}

func newYard(t *testing.T) *yard {
	t.Helper()
	y := &yard{t: t, e: dockertest.Find(t, "runc"), label: "sandboxd.test." + sandboxd.NewID()}
	builds, letGo, err := NewImageBuilds(Config{Host: y.e.Host})
	if err != nil {
		t.Fatal(err)
	}
	y.builds = builds
	t.Cleanup(func() {
		held, err := builds.ListImages(context.Background(), y.label)
		if err != nil {
			t.Error(err)
		}
		for _, i := range held {
			for _, name := range append(i.Tags, i.ID) {
				if err := builds.RemoveImage(context.Background(), name); err != nil {
					t.Errorf("remove %s: %v", name, err)
				}
			}
		}
		letGo()
	})
	return y
}

// build builds from the base image and steps, each of which is new to the engine.
func (y *yard) build(ctx context.Context, tag string, steps ...string) error {
	y.t.Helper()
	text := fmt.Sprintf("FROM %s\nLABEL %s=yes\nENV NONCE=%s\nCOPY beside /beside\n%s\n", y.e.Image, y.label, sandboxd.NewID(), strings.Join(steps, "\n"))
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, content := range map[string]string{"Dockerfile": text, "beside": "from the context\n"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			y.t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			y.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		y.t.Fatal(err)
	}
	y.said = nil
	return y.builds.BuildImage(ctx, sandboxd.ImageBuild{Context: &archive, Tag: tag, Labels: map[string]string{"extra": "also"},
		Said: func(line string) { y.said = append(y.said, line) }})
}

// containers are those of images that this test made.
func (y *yard) containers() []container.Summary {
	y.t.Helper()
	found, err := y.e.API.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", y.label)})
	if err != nil {
		y.t.Fatal(err)
	}
	return found.Items
}

func TestBuildImage(t *testing.T) {
	y := newYard(t)
	const tag = "sandboxd-test/built:a"
	// More than its loopback, whatever sandboxes get: the engine of the tests gives no
	// container a network by itself.
	err := y.build(t.Context(), tag, `RUN ["/bin/sh", "-c", "cat /beside; printf '\\033[31mred\\033[0m\\rover\\n\\nlast'"]`,
		`RUN ["/bin/sh", "-c", "cat /proc/net/dev; [ $(grep -c : /proc/net/dev) -gt 1 ]"]`)
	if err != nil {
		t.Fatalf("%v: %q", err, y.said)
	}
	for _, line := range []string{"Step 1/7 : FROM " + y.e.Image, "from the context", "red", "over", "last"} {
		if !slices.Contains(y.said, line) {
			t.Errorf("%q was not said: %q", line, y.said)
		}
	}
	held, err := y.builds.FindImage(t.Context(), tag)
	if err != nil || held.Labels["extra"] != "also" || held.Labels[y.label] != "yes" || !slices.Contains(held.Tags, tag) {
		t.Errorf("%+v, %v", held, err)
	}
	if n := len(y.containers()); n != 0 {
		t.Errorf("%d containers are left", n)
	}
	list, err := y.builds.ListImages(t.Context(), y.label)
	if err != nil || len(list) != 1 || list[0].ID != held.ID {
		t.Errorf("%+v, %v", list, err)
	}
	const second = "sandboxd-test/built:second"
	if err := y.builds.TagImage(t.Context(), held.ID, second); err != nil {
		t.Error(err)
	}
	if err := y.builds.RemoveImage(t.Context(), tag); err != nil {
		t.Error(err)
	}
	if named, err := y.builds.FindImage(t.Context(), second); err != nil || named.ID != held.ID {
		t.Errorf("by its second name: %+v, %v", named, err)
	}
	if err := y.builds.TagImage(t.Context(), "sandboxd-test/built:none", second); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Errorf("a name for nothing: %v", err)
	}
	if list, err := y.builds.ListImages(t.Context(), y.label+".other"); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestBuildImageFails(t *testing.T) {
	y := newYard(t)
	for _, test := range []struct {
		step, says string
		class      sandboxd.Class
	}{
		{`RUN echo nearly; exit 3`, "returned a non-zero code: 3", sandboxd.ClassUnavailable},
		{`NONSENSE`, "unknown instruction", sandboxd.ClassInvalid},
	} {
		err := y.build(t.Context(), "sandboxd-test/built:fails", test.step)
		if sandboxd.ClassOf(err) != test.class || !strings.Contains(fmt.Sprint(err), test.says) {
			t.Errorf("%s: class %s: %v", test.step, sandboxd.ClassOf(err), err)
		}
		if test.class == sandboxd.ClassUnavailable && !slices.Contains(y.said, "nearly") {
			t.Errorf("%s: it said %q", test.step, y.said)
		}
	}
	if n := len(y.containers()); n != 0 {
		t.Errorf("%d containers are left", n)
	}
	if _, err := y.builds.FindImage(t.Context(), "sandboxd-test/built:fails"); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Errorf("%v", err)
	}
	// What was built before the failure is known by its label.
	if list, err := y.builds.ListImages(t.Context(), y.label); err != nil || len(list) == 0 || len(list[0].Tags) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// A build that nobody wants any more ends with its processes.
func TestBuildImageIsCancelled(t *testing.T) {
	y := newYard(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- y.build(ctx, "sandboxd-test/built:cancelled", "RUN sleep 300") }()
	await := func(what string, n int) {
		t.Helper()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for late := time.After(20 * time.Second); len(y.containers()) != n; {
			select {
			case <-tick.C:
			case <-late:
				t.Fatalf("%s: %d containers", what, len(y.containers()))
			}
		}
	}
	await("it sleeps", 1)
	cancel()
	if err := <-failed; err == nil {
		t.Error("it was built")
	}
	await("it was given up", 0)
}

func TestRemoveImage(t *testing.T) {
	y := newYard(t)
	const tag = "sandboxd-test/built:removed"
	if err := y.build(t.Context(), tag); err != nil {
		t.Fatal(err)
	}
	made, err := y.e.API.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: tag, Cmd: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := y.builds.RemoveImage(t.Context(), tag); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
		t.Errorf("one that a container uses: %v", err)
	}
	if _, err := y.e.API.ContainerRemove(t.Context(), made.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := y.builds.RemoveImage(t.Context(), tag); err != nil {
			t.Error(err)
		}
	}
	if list, err := y.builds.ListImages(t.Context(), y.label); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
