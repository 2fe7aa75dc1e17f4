// Package dockertest finds the container engine that tests use. It starts none:
// scripts/test.sh does, and says where in SANDBOXD_TEST_DOCKER.
package dockertest

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"sandboxd/internal/captest"
	"sandboxd/internal/isolate"
)

// Image is the base image of the tests, tools one with pip and npm in addition, and
// workshop one with apt, too, upon which runtimes are built; scripts/engine.sh makes them.
const (
	Image    = "sandboxd-test/base:latest"
	tools    = "sandboxd-test/tools:latest"
	workshop = "sandboxd-test/workshop:latest"
)

// Engine is what a test needs to know to use the engine.
type Engine struct {
	Host    string
	Image   string
	Runtime string
	API     *client.Client
}

// Find answers the engine with an OCI runtime, or skips t for want of the
// capability docker or runsc.
func Find(t testing.TB, runtime string) Engine {
	t.Helper()
	captest.Root(t)
	host := os.Getenv("SANDBOXD_TEST_DOCKER")
	if host == "" {
		host = os.Getenv("DOCKER_HOST")
	}
	if host == "" {
		host = client.DefaultDockerHost
	}
	api, err := client.New(client.WithHost(host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	capability := "docker"
	if runtime == "runsc" {
		capability = "runsc"
	}
	found, err := api.Info(ctx, client.InfoOptions{})
	if err != nil {
		captest.Need(t, capability, false, "no container engine answers: "+err.Error())
	}
	var names []string
	for name := range found.Info.Runtimes {
		names = append(names, name)
	}
	captest.Need(t, capability, slices.Contains(names, runtime), "the engine has no runtime "+runtime)
	_, err = api.ImageInspect(ctx, Image)
	captest.Need(t, capability, err == nil, "the engine has no image "+Image)
	return Engine{Host: host, Image: Image, Runtime: runtime, API: api}
}

// Pool skips t for want of the capability docker-pool: where containers cannot be given
// files once they run. Inside a chroot the root of a container is not the root of its
// mount namespace, which a probe for user namespaces shows, too.
func (e Engine) Pool(t testing.TB) {
	t.Helper()
	usable, detail, _ := isolate.UserNamespaces()
	captest.Need(t, "docker-pool", usable, "is this a chroot? "+detail)
}

// Tools answers the image with pip and npm, or skips t for want of the capability
// docker-tools.
func (e Engine) Tools(t testing.TB) string { return e.special(t, "docker-tools", tools) }

// Workshop answers the image upon which runtimes are built, or skips t for want of the
// capability docker-workshop.
func (e Engine) Workshop(t testing.TB) string { return e.special(t, "docker-workshop", workshop) }

func (e Engine) special(t testing.TB, capability, image string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := e.API.ImageInspect(ctx, image)
	captest.Need(t, capability, err == nil, "the engine has no image "+image)
	return image
}
