package crash

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/failpoint"
	"sandboxd/test/server"
)

// TestEveryPointOfContainers is TestEveryPoint for the points of the docker driver:
// those by which a container of the pool becomes a sandbox's. No container is left.
func TestEveryPointOfContainers(t *testing.T) {
	e := dockertest.Find(t, "runc")
	options := child
	options.Driver = "docker"
	options.Args = append(slices.Clone(child.Args), "--default-image", e.Image)
	options.Env = append(slices.Clone(child.Env), "DOCKER_HOST="+e.Host)
	containers := func() []string {
		t.Helper()
		found, err := e.API.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", "sandboxd")})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range found.Items {
			names = append(names, strings.Join(c.Names, " "))
		}
		slices.Sort(names)
		return names
	}
	e.Pool(t)
	before := containers()
	for _, point := range failpoint.All() {
		if !strings.HasPrefix(point, "docker.") {
			continue
		}
		t.Run(point, func(t *testing.T) {
			s := server.New(t, options)
			start(s, "")
			l := newLedger()
			l.work(t.Context(), s.Client(), "before", 1)
			s.Kill()
			start(s, point)
			l.reach(t, s, point, 20)
			left := containers()
			start(s, "")
			l.check(t, s)
			s.DeleteAll()
			s.Until("what the dead server had is gone", 20*time.Second, func() bool {
				now := containers()
				return !slices.ContainsFunc(left, func(name string) bool { return !slices.Contains(before, name) && slices.Contains(now, name) })
			})
			s.End() // and what it kept ready with it
			if after := containers(); !slices.Equal(before, after) {
				t.Errorf("before: %v, after: %v", before, after)
			}
		})
	}
}
