package app

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"sandboxd/internal/cli"
)

func TestCheckEnviron(t *testing.T) {
	for entry, ok := range map[string]bool{
		"SANDBOXD_LISTEN=127.0.0.1:1":             true,
		"SANDBOXD_URL=http://x":                   true,
		"SANDBOXD_TOKEN=plain":                    true,
		"SANDBOXD_TOKEN=sk_x":                     false,
		"SANDBOXD_LISTNE=127.0.0.1:1":             false,
		"SANDBOXD_SERVICE_HOST=10.0.0.1":          true,
		"SANDBOXD_PORT=tcp://10.0.0.1:9090":       true,
		"SANDBOXD_PORT_9090_TCP_ADDR=10.0.0.1":    true,
		"SANDBOXD_CONTROL_SERVICE_PORT_HTTP=9090": true,
		"SANDBOXD_PORTS=1":                        false,
		"SANDBOXD_TEST_EXPECT=root":               true,
		"OTHER_SANDBOXD_X=1":                      true,
	} {
		if err := checkEnviron([]string{"PATH=/bin", entry}); (err == nil) != ok {
			t.Errorf("%s: %v", entry, err)
		}
	}
}

func TestSettingsAreThoseOfTheCommandLine(t *testing.T) {
	want := []string{"SANDBOXD_TOKEN"}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[cli.ServeOptions]()) {
		if name := f.Tag.Get("setting"); name != "" {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	if !slices.Equal(want, serverSettings) {
		t.Errorf("tags %v, table %v", want, serverSettings)
	}
}

func TestCheckAddress(t *testing.T) {
	for _, c := range []struct {
		addr, how string
		want      string
	}{
		{"127.0.0.1:9090", "", ""},
		{"localhost:0", "", ""},
		{"[::1]:9090", "", ""},
		{":9090", "", "reachable"},
		{"0.0.0.0:9090", "", "reachable"},
		{"10.1.2.3:9090", "", "reachable"},
		{"10.1.2.3:9090", "wireguard", ""},
		{"9090", "x", "not an address"},
	} {
		err := checkAddress("--listen", c.addr, c.how)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s protected by %q: %v", c.addr, c.how, err)
		}
	}
}
