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
		"none": {[]string{"SANDBOXD_MAX_SESSIONS=", "SANDBOXD_CONTAINER_TTL= ", "SANDBOXD_SANDBOX_UID=", "SANDBOXD_CPUS="},
			[]string{"SANDBOXD_MAX_SANDBOXES=none", "SANDBOXD_ENVIRONMENT_TTL=none", "SANDBOXD_CPUS="}, ""},
		"spelled as there": {[]string{"SANDBOXD_PREWARM=Off", "SANDBOXD_CPUS= 2.0 ", "SANDBOXD_PIDS_LIMIT= 512 ", "SANDBOXD_TOKEN= t ", "SANDBOXD_SANDBOX_UID= 10001", "SANDBOXD_PORT= 81 "},
			[]string{"SANDBOXD_PREWARM=false", "SANDBOXD_CPUS=2.0", "SANDBOXD_PIDS_LIMIT=512", "SANDBOXD_TOKEN= t ", "SANDBOXD_HOST_LISTEN=127.0.0.1:81"}, ""},
		"a switch":          {[]string{"SANDBOXD_PREWARM=ON"}, []string{"SANDBOXD_PREWARM=true"}, ""},
		"another user":      {[]string{"SANDBOXD_SANDBOX_UID=1000"}, nil, "SANDBOXD_SANDBOX_UID can only be 10001"},
		"a bridge":          {[]string{"SANDBOXD_NETWORK_MODE="}, nil, "SANDBOXD_NETWORK_MODE can only be none"},
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
