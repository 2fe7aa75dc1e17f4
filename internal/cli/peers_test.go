package cli

import (
	"slices"
	"strings"
	"testing"
)

func TestSettingsOfPeers(t *testing.T) {
	for name, c := range map[string]struct {
		environ []string
		want    []string // in any order
		err     string
	}{
		"theirs": {[]string{"PATH=/bin", "SANDBOXD_HOST=0.0.0.0", "SANDBOXD_MAX_SESSIONS= 20 ", "SANDBOXD_MAX_OPEN_SESSIONS=", "SANDBOXD_WORK_DIR=/workspace", "SANDBOXD_TOKEN=t"},
			[]string{"PATH=/bin", "SANDBOXD_HOST_LISTEN=0.0.0.0:8080", "SANDBOXD_MAX_SANDBOXES=20", "SANDBOXD_MAX_OPEN=none", "SANDBOXD_TOKEN=t"}, ""},
		"a Service":         {[]string{"SANDBOXD_PORT=tcp://10.0.0.1:80"}, []string{"SANDBOXD_PORT=tcp://10.0.0.1:80"}, ""},
		"a port":            {[]string{"SANDBOXD_PORT=81"}, []string{"SANDBOXD_HOST_LISTEN=127.0.0.1:81"}, ""},
		"the same twice":    {[]string{"SANDBOXD_CONTAINER_TTL=5", "SANDBOXD_ENVIRONMENT_TTL=5"}, []string{"SANDBOXD_ENVIRONMENT_TTL=5", "SANDBOXD_ENVIRONMENT_TTL=5"}, ""},
		"two values":        {[]string{"SANDBOXD_CONTAINER_TTL=5", "SANDBOXD_ENVIRONMENT_TTL=6"}, nil, "two values"},
		"two addresses":     {[]string{"SANDBOXD_PORT=5", "SANDBOXD_HOST_LISTEN=127.0.0.1:6"}, nil, "two values"},
		"another directory": {[]string{"SANDBOXD_WORK_DIR=/srv"}, nil, "SANDBOXD_WORK_DIR can only be /workspace"},
	} {
		p, err := adoptPeers(Process{Args: []string{"host"}, Environ: c.environ})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		slices.Sort(p.Environ)
		slices.Sort(c.want)
		if err != nil || !slices.Equal(p.Environ, c.want) {
			t.Errorf("%s: %q %v", name, p.Environ, err)
		}
	}
	if p, err := adoptPeers(Process{Args: []string{"ps"}, Environ: []string{"SANDBOXD_MAX_SESSIONS=1"}}); err != nil || p.Environ[0] != "SANDBOXD_MAX_SESSIONS=1" {
		t.Errorf("a client: %q %v", p.Environ, err)
	}
}
