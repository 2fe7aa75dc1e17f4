package host

import (
	"net/url"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/egress"
	"sandboxd/internal/store"
)

// bridged is a driver that has bridges, but not under every OCI runtime.
type bridged struct {
	sandboxd.Driver
}

func (b bridged) BridgeWorks(runtime string) error {
	if runtime != "" {
		return sandboxd.Errorf(sandboxd.ClassUnsupported, "not under %s", runtime)
	}
	return nil
}

func (b bridged) DefaultImage() string       { return "image" }
func (b bridged) Environ(id string) []string { return nil }

func TestWhoMayHaveABridge(t *testing.T) {
	upstream := egress.New(egress.Config{Upstream: &url.URL{Scheme: "http", Host: "192.0.2.1:3128"}})
	defer upstream.Close()
	for _, test := range []struct {
		name    string
		allowed bool
		has     bool
		req     sandboxd.OpenRequest
		class   sandboxd.Class
	}{
		{"not allowed", false, true, sandboxd.OpenRequest{}, sandboxd.ClassForbidden},
		{"a driver without", true, false, sandboxd.OpenRequest{}, sandboxd.ClassUnsupported},
		{"a runtime without", true, true, sandboxd.OpenRequest{OCIRuntime: "runsc"}, sandboxd.ClassUnsupported},
		{"with lists", true, true, sandboxd.OpenRequest{Network: sandboxd.Network{Allow: []string{"example.com"}}}, sandboxd.ClassInvalid},
		{"all is well", true, true, sandboxd.OpenRequest{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var driver sandboxd.Driver = fake.New(fake.NewWorld(fake.Config{}))
			defer driver.Close()
			if test.has {
				driver = bridged{Driver: driver}
			}
			h, err := New(t.Context(), Config{DataDir: t.TempDir(), Store: store.NewMemory(), Drivers: []sandboxd.Driver{driver},
				UIDs: testUIDs(), Images: true, Bridge: test.allowed, Egress: upstream})
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			test.req.Network.Mode = sandboxd.NetworkBridge
			sb, _, err := h.Open(t.Context(), test.req)
			if test.class != "" {
				if sandboxd.ClassOf(err) != test.class {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || sb.Network.Mode != sandboxd.NetworkBridge {
				t.Fatalf("%+v, %v", sb, err)
			}
			defer h.StopAll(t.Context())
			// The operator's upstream proxy is behind the host's, without a list.
			env := strings.Join(h.boxes[sb.ID].environment().environ(sandboxd.CommandSpec{}), " ")
			if !strings.Contains(env, "HTTPS_PROXY=http://"+sandboxd.ProxyAddress) {
				t.Errorf("environment %s", env)
			}
		})
	}
}
