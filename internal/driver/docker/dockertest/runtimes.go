package dockertest

import (
	"context"
	"slices"
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
			names := slices.DeleteFunc(i.RepoTags, func(tag string) bool { return tag == "<none>:<none>" })
			if len(names) == 0 {
				names = []string{i.ID}
			}
			for _, name := range names {
				all[name] = i.ID
			}
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
