package network

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/test/server"
)

// TestToolsInContainers is TestTools for pip and npm in containers, of an image that
// has them: the proxy is the host's, and no driver knows of it.
func TestToolsInContainers(t *testing.T) {
	long(t)
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			e := dockertest.Find(t, runtime)
			image := e.Tools(t)
			for _, name := range []string{"pip", "npm"} {
				t.Run(name, func(t *testing.T) {
					open := func(c *client.Client, allow ...string) *box {
						return openRequest(t, c, sandboxd.OpenRequest{Image: image, OCIRuntime: runtime,
							Network: sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: allow}})
					}
					names := hosts(t, words(t, tools[name].asks))
					if len(names) == 0 { // the machine has no such tool: the image's says where it would go
						names = hosts(t, open(serveContainers(t, e, nil)).ok(tools[name].asks))
					}
					c := serveContainers(t, e, append(operator(addresses(t, names...)), trustOfTheMachine()...))
					tools[name].try(open(c, names...), open(c), names)
				})
			}
		})
	}
}

// serveContainers runs a server on an engine and ends it, and its sandboxes, with t.
func serveContainers(t *testing.T, e dockertest.Engine, args []string) *client.Client {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	p, err := server.Start(server.Spec{Data: data, Env: server.Environ("DOCKER_HOST=" + e.Host), Args: append(args, "--driver", "docker")})
	if err != nil {
		t.Fatal(err)
	}
	key, err := datadir.ReadSecret(filepath.Join(data, datadir.TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(p.URL, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		list, err := c.List(context.Background(), "")
		if err != nil {
			t.Error(err)
		}
		for _, sb := range list {
			if err := c.Delete(context.Background(), sb.ID); err != nil {
				t.Error(err)
			}
		}
		server.Until(t, "all is deleted", 30*time.Second, func() bool {
			left, err := filepath.Glob(filepath.Join(data, "workspaces", "*"))
			return err == nil && len(left) == 0
		})
		if err := p.End(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		c.Close()
	})
	return c
}
