package crash

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/failpoint"
	"sandboxd/test/server"

	moby "github.com/moby/moby/client"
)

// preparePoints begin the names of the points of a preparation.
const preparePoints = "prepare."

// TestEveryPointOfAPreparation ends the server while it has an image made, and wants the
// next one to start the sandbox.
func TestEveryPointOfAPreparation(t *testing.T) {
	e := dockertest.Find(t, "runc")
	for _, point := range failpoint.All() {
		if !strings.HasPrefix(point, preparePoints) {
			continue
		}
		t.Run(point, func(t *testing.T) {
			dir := t.TempDir()
			data, alias := filepath.Join(dir, "data"), "crash-"+sandboxd.NewID()[:8]
			catalogue := filepath.Join(dir, "catalogue.json")
			text := fmt.Sprintf(`[{"alias": %q, "description": "Dies", "base_image": %q, "setup_commands": ["echo %s"], "needs_network": false}]`, alias, e.Image, alias)
			if err := os.WriteFile(catalogue, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			run := func(point string) (*server.Process, *client.Client) {
				t.Helper()
				p, err := server.Start(server.Spec{Program: "/proc/self/exe", Data: data, Env: server.Environ("DOCKER_HOST="+e.Host, childEnv+"=1", pointEnv+"="+point),
					Args: []string{"--driver", "docker", "--catalogue", catalogue, "--no-prewarm"}})
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
				t.Cleanup(c.Close)
				return p, c
			}
			p, c := run(point)
			_, _, _ = c.Open(t.Context(), sandboxd.OpenRequest{Key: "k"}) // the answer is lost with the server
			select {
			case <-p.Done():
			case <-time.After(60 * time.Second):
				t.Fatalf("the open never reached %s", point)
			}
			p, c = run("")
			list, err := c.List(t.Context(), "k")
			if err != nil || len(list) != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			sb := list[0]
			if sb.State != sandboxd.StateCold || sb.Generation != 0 || sb.LastEnding == nil || sb.LastEnding.Cause != sandboxd.CauseStartFailed {
				t.Errorf("%+v, %+v", sb, sb.LastEnding)
			}
			if sb, err = c.Start(t.Context(), sb.ID); err != nil || sb.State != sandboxd.StateRunning {
				t.Errorf("%+v, %v", sb, err)
			}
			if err := c.Delete(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
			server.Until(t, "what was deleted is gone", 20*time.Second, func() bool {
				// It is named by its sandbox or, from the pool, by a link.
				named, err := e.API.ContainerList(t.Context(), moby.ContainerListOptions{All: true, Filters: make(moby.Filters).Add("label", "sandboxd="+sb.ID)})
				if err != nil {
					t.Fatal(err)
				}
				_, err = os.Lstat(filepath.Join(data, "run", sb.ID+".link"))
				return len(named.Items) == 0 && errors.Is(err, fs.ErrNotExist)
			})
			if err := p.End(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			if _, err := e.API.ImageRemove(t.Context(), sb.Image, moby.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
				t.Error(err)
			}
		})
	}
}
