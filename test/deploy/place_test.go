package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/test/server"
)

// The files of sandboxes are where the operator wants them, and nothing of one that was
// deleted stays there.
func TestWorkspacesInADirectoryOfTheOperators(t *testing.T) {
	captest.Root(t)
	for _, driver := range []string{"process", "docker"} {
		t.Run(driver, func(t *testing.T) {
			dir := t.TempDir()
			root := filepath.Join(dir, "files", "of sandboxes")
			spec := server.Spec{Data: filepath.Join(dir, "data"), Env: server.Environ("SANDBOXD_WORKSPACE_ROOT=" + root), Log: &server.Record{},
				Args: []string{"--driver", driver, "--stop-on-interrupt"}}
			if driver == "docker" {
				e := dockertest.Find(t, "runc")
				spec.Env = append(spec.Env, "DOCKER_HOST="+e.Host)
				spec.Args = append(spec.Args, "--default-image", e.Image)
			}
			p, err := server.Start(spec)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.End(syscall.SIGINT); err != nil {
					t.Error(err)
				}
			})
			key, err := os.ReadFile(filepath.Join(spec.Data, "token"))
			if err != nil {
				t.Fatal(err)
			}
			c, err := client.New(p.URL, strings.TrimSpace(string(key)))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			sb, _, err := c.Open(t.Context(), sandboxd.OpenRequest{Key: "mine"})
			if err != nil {
				t.Fatalf("%v\n%s", err, p.Log.Tail())
			}
			cmd, _, err := c.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{Shell: "echo made >file"})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(root, "mine", "workspace", "file")
			server.Until(t, "command "+cmd.ID+" wrote "+file, 10*time.Second, func() bool {
				text, err := os.ReadFile(file)
				return err == nil && string(text) == "made\n"
			})
			if found, err := os.Stat(filepath.Join(spec.Data, "workspaces")); err == nil {
				t.Errorf("there is %s, too", found.Name())
			}
			if err := c.Delete(t.Context(), sb.ID); err != nil {
				t.Fatal(err)
			}
			server.Until(t, "nothing is left of it", 10*time.Second, func() bool {
				left, err := filepath.Glob(filepath.Join(root, "*", "*"))
				return err == nil && len(left) == 0
			})
		})
	}
}
