package host

import (
	"net/url"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/catalogue"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/egress"
	"sandboxd/internal/runtimes"
	"sandboxd/internal/store"
)

// bridged is a driver that has images, OCI runtimes and, but not under every one of
// these, bridges.
type bridged struct {
	sandboxd.Driver
	sandboxd.Images       // nil: of its methods only those below are called
	sandboxd.ImageBuilder // nil
}

func (b bridged) BridgeWorks(runtime string) error {
	if runtime != "" {
		return sandboxd.Errorf(sandboxd.ClassUnsupported, "not under %s", runtime)
	}
	return nil
}

func (b bridged) ChooseImage(string, string) (string, error) { return "image", nil }
func (b bridged) Environ(string) []string                    { return nil }

func TestWhoMayHaveABridge(t *testing.T) {
	upstream := egress.New(egress.Config{Upstream: &url.URL{Scheme: "http", Host: "192.0.2.1:3128"}})
	defer upstream.Close()
	for _, test := range []struct {
		name    string
		allowed bool
		has     bool
		req     sandboxd.OpenRequest
		class   sandboxd.Class
		says    string
	}{
		{"not allowed", false, true, sandboxd.OpenRequest{}, sandboxd.ClassForbidden, "lets nobody"},
		{"a driver without", true, false, sandboxd.OpenRequest{}, sandboxd.ClassUnsupported, "has no bridge"},
		{"a runtime without", true, true, sandboxd.OpenRequest{OCIRuntime: "runsc"}, sandboxd.ClassUnsupported, "not under runsc"},
		{"with lists", true, true, sandboxd.OpenRequest{Network: sandboxd.Network{Allow: []string{"example.com"}}}, sandboxd.ClassInvalid, "mode proxy only"},
		{"all is well", true, true, sandboxd.OpenRequest{}, "", ""},
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
				if err == nil || sandboxd.ClassOf(err) != test.class || !strings.Contains(err.Error(), test.says) {
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

// An entry that needs a network gets the best one that its sandboxes can have.
func TestNetworkOfAnEntry(t *testing.T) {
	entries := []catalogue.Entry{
		{Alias: "net", Image: "image", NeedsNetwork: true},
		{Alias: "gvisor", Image: "image", NeedsNetwork: true, Ceilings: catalogue.Ceilings{OCIRuntime: "runsc"}},
		{Alias: "alone", Image: "image"},
	}
	for _, test := range []struct {
		allowed bool
		want    []sandboxd.NetworkMode
	}{
		{true, []sandboxd.NetworkMode{sandboxd.NetworkBridge, sandboxd.NetworkProxy, sandboxd.NetworkNone}},
		{false, []sandboxd.NetworkMode{sandboxd.NetworkProxy, sandboxd.NetworkProxy, sandboxd.NetworkNone}},
	} {
		set, err := runtimes.New(runtimes.Config{Entries: entries})
		if err != nil {
			t.Fatal(err)
		}
		d := fake.New(fake.NewWorld(fake.Config{}))
		h, err := New(t.Context(), Config{DataDir: t.TempDir(), Store: store.NewMemory(), Drivers: []sandboxd.Driver{bridged{Driver: d}},
			UIDs: testUIDs(), Runtimes: set, Bridge: test.allowed})
		if err != nil {
			t.Fatal(err)
		}
		listed, err := h.Runtimes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range test.want {
			no := false
			sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Runtime: entries[i].Alias, Start: &no})
			if err != nil || sb.Network.Mode != want || listed[i].Network != string(want) {
				t.Errorf("%s, bridges allowed %v: %s, listed as %s, %v", entries[i].Alias, test.allowed, sb.Network.Mode, listed[i].Network, err)
			}
		}
		for _, fn := range []func() error{h.Close, set.Close, d.Close} {
			if err := fn(); err != nil {
				t.Error(err)
			}
		}
	}
}
