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
)

// Image is the base image of the tests, and tools one with pip and npm in addition;
// scripts/engine.sh makes them.
const (
	Image = "sandboxd-test/base:latest"
	tools = "sandboxd-test/tools:latest"
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

// Tools answers the image with pip and npm, or skips t for want of the capability
// docker-tools.
func (e Engine) Tools(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := e.API.ImageInspect(ctx, tools)
	captest.Need(t, "docker-tools", err == nil, "the engine has no image "+tools)
	return tools
}
