package deploy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"

	"sandboxd/internal/catalogue"
	"sandboxd/test/server"
)

func TestMain(m *testing.M) { os.Exit(server.Main(m)) }

// root is where the files are.
const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// tracked answers the files of the repository.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	return strings.Fields(string(out))
}

// compose reads a compose file strictly: a key that nobody knows is an error.
func compose(t *testing.T, name string) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{filepath.Join(root, name)},
		cli.WithProfiles([]string{"*"}), cli.WithEnv([]string{"SANDBOXD_TOKEN=0123456789abcdef"}), cli.WithName("test"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := opts.LoadProject(context.Background())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return p
}

func composeFiles(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, name := range tracked(t) {
		if regexp.MustCompile(`compose[^/]*\.ya?ml$`).MatchString(name) {
			names = append(names, name)
		}
	}
	if !slices.Contains(names, "docker-compose.yml") {
		t.Fatalf("the compose file is not among %v", names)
	}
	return names
}

// Our image is named by the version of the checkout wherever it is named.
func TestImageIsPinned(t *testing.T) {
	version := strings.TrimSpace(read(t, "VERSION"))
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(version) {
		t.Fatalf("VERSION is %q", version)
	}
	named := regexp.MustCompile(`(?:image:\s*|docker (?:pull|run)\s.*)\bsandboxd(?::([A-Za-z0-9._-]+))?(?:\s|$)`)
	found := 0
	for _, name := range tracked(t) {
		if !regexp.MustCompile(`\.(ya?ml|sh|md)$|Makefile$|Dockerfile$`).MatchString(name) {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // deleted and not committed
		}
		for _, m := range named.FindAllStringSubmatch(string(raw), -1) {
			found++
			if m[1] != version {
				t.Errorf("%s names the image %q, and VERSION is %s", name, strings.TrimSpace(m[0]), version)
			}
		}
	}
	if found == 0 {
		t.Error("nothing names the image")
	}
}

// No compose file opens a port beyond this machine or ships a password, and the host has
// its files at one path on both sides and no more of the machine than it needs.
func TestComposeFiles(t *testing.T) {
	for _, name := range composeFiles(t) {
		for _, s := range compose(t, name).Services {
			for _, p := range s.Ports {
				if ip, err := netip.ParseAddr(p.HostIP); err != nil || !ip.IsLoopback() {
					t.Errorf("%s: service %s publishes %s on %q", name, s.Name, p.Published, p.HostIP)
				}
			}
			if s.Privileged || s.NetworkMode == "host" || s.Pid == "host" {
				t.Errorf("%s: service %s has the machine", name, s.Name)
			}
			for key, value := range s.Environment {
				secret := regexp.MustCompile(`(?i)password|secret|token|key`).MatchString(key)
				if secret && value != nil && *value != "0123456789abcdef" {
					t.Errorf("%s: service %s is shipped with a value of %s", name, s.Name, key)
				}
			}
			for _, v := range s.Volumes {
				if v.Type != types.VolumeTypeBind || v.Source != v.Target {
					t.Errorf("%s: service %s has %s at %s: the engine does not find it there", name, s.Name, v.Source, v.Target)
				}
			}
		}
	}
	if s, err := compose(t, "docker-compose.yml").GetService("sandboxd"); err != nil || !slices.Contains(s.Profiles, "sandbox") {
		t.Errorf("the service sandboxd in the profile sandbox: %v", err)
	}
}

// Where the host of the project's own compose file answers: to services of the project,
// and on the machine.
const (
	insideAddress  = "http://sandboxd:8080"
	outsideAddress = "http://127.0.0.1:8080"
)

// The compose file's host is at its two addresses and at no other, and docs/host.md says so.
func TestAddressesOfTheHost(t *testing.T) {
	s, err := compose(t, "docker-compose.yml").GetService("sandboxd")
	if err != nil {
		t.Fatal(err)
	}
	listen := s.Environment["SANDBOXD_LISTEN"]
	if listen == nil || len(s.Ports) != 1 || s.NetworkMode != "" || s.ContainerName != "" || s.Hostname != "" {
		t.Fatalf("it listens on %v, with the ports %+v", listen, s.Ports)
	}
	_, port, err := net.SplitHostPort(*listen)
	if err != nil || fmt.Sprint(s.Ports[0].Target) != port {
		t.Errorf("it listens on %s, and published is its port %d", *listen, s.Ports[0].Target)
	}
	if got := "http://" + net.JoinHostPort(s.Name, port); got != insideAddress {
		t.Errorf("in the project it is %s, not %s", got, insideAddress)
	}
	if got := "http://" + net.JoinHostPort(s.Ports[0].HostIP, s.Ports[0].Published); got != outsideAddress {
		t.Errorf("on the machine it is %s, not %s", got, outsideAddress)
	}
	doc := read(t, "docs/host.md")
	if !strings.Contains(doc, "`"+insideAddress+"`") || !strings.Contains(doc, "`"+outsideAddress+"`") {
		t.Errorf("docs/host.md does not name %s and %s", insideAddress, outsideAddress)
	}
}

// The copy of the catalogue is the catalogue.
func TestRuntimesOfComposeFiles(t *testing.T) {
	copies := 0
	for _, name := range composeFiles(t) {
		text := read(t, name)
		if !strings.Contains(text, "SANDBOXD_RUNTIMES:") {
			continue
		}
		copies++
		if err := catalogue.Drift(name, []byte(text), catalogue.Offered(catalogue.Shipped(), false)); err != nil {
			t.Error(err)
		}
	}
	if copies == 0 {
		t.Error("no compose file has a copy")
	}
}

// A key that compose does not know does not pass for a setting.
func TestComposeIsReadStrictly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "compose.yml")
	if err := os.WriteFile(name, []byte("services:\n  sandboxd:\n    image: x\n    prots: [\"1:1\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := cli.NewProjectOptions([]string{name}, cli.WithName("test"))
	if err == nil {
		_, err = opts.LoadProject(context.Background())
	}
	if err == nil || !strings.Contains(err.Error(), "prots") {
		t.Fatalf("error %v", err)
	}
}

// The token is made once, and kept by a repeated set-up.
func TestTokenIsMadeOnce(t *testing.T) {
	for name, before := range map[string]string{"no file": "", "other settings": "A=1\nSANDBOXD_TOKEN=\nB=2\n"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), ".env")
			if before != "" {
				if err := os.WriteFile(file, []byte(before), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			run := func() string {
				cmd := exec.Command(filepath.Join(root, "scripts/sandbox-token.sh"))
				cmd.Env = append(os.Environ(), "ENV_FILE="+file)
				if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "SANDBOXD_TOKEN=") {
					t.Fatalf("%v: %s", err, out)
				}
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			first := run()
			if n := len(regexp.MustCompile(`(?m)^SANDBOXD_TOKEN=[0-9a-f]{64}$`).FindAllString(first, -1)); n != 1 {
				t.Fatalf("%d tokens in %q", n, first)
			}
			for _, line := range []string{"A=1", "B=2"} {
				if before != "" && !strings.Contains(first, line+"\n") {
					t.Errorf("%s is lost in %q", line, first)
				}
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
			if again := run(); again != first {
				t.Errorf("made again: %q, then %q", first, again)
			}
		})
	}
}
