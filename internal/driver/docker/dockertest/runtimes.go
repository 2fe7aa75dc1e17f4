package dockertest

import (
	"context"
	"strings"
	"testing"

	moby "github.com/moby/moby/client"
)

// Runtimes are the images, by tag with their ids, that servers of a test built for the
// runtimes whose names end with suffix.
func (e Engine) Runtimes(t testing.TB, suffix string) map[string]string {
	t.Helper()
	found, err := e.API.ImageList(context.Background(), moby.ImageListOptions{Filters: make(moby.Filters).Add("label", "sandboxd.runtime")})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, i := range found.Items {
		if strings.HasSuffix(i.Labels["sandboxd.runtime"], suffix) {
			name := i.ID
			if len(i.RepoTags) > 0 && i.RepoTags[0] != "<none>:<none>" {
				name = i.RepoTags[0]
			}
			all[name] = i.ID
		}
	}
	return all
}

// RemoveRuntimes removes them.
func (e Engine) RemoveRuntimes(t testing.TB, suffix string) {
	t.Helper()
	for name := range e.Runtimes(t, suffix) {
		if _, err := e.API.ImageRemove(context.Background(), name, moby.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
			t.Error(err)
		}
	}
}
