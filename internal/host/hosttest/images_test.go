package hosttest_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/captest"
	"sandboxd/internal/host"
	"sandboxd/internal/host/hosttest"
	"sandboxd/internal/isolate"
	"sandboxd/internal/store"
)

// program builds a static one for images that have nothing else.
func program(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", name, "sandboxd/internal/isolate/prober")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v: %s", err, out)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const says = `"hostname":"sandbox"`

func overHTTP(t *testing.T, made maker) hosttest.ImagesOfHost {
	return remote(t, 20, control, made).(*client.Client)
}

func TestImagesOfProcesses(t *testing.T) {
	captest.Root(t)
	hosttest.RunImages(t, hosttest.ImageHarness{Program: program(t), Says: says, New: func(t *testing.T) hosttest.ImagesOfHost {
		return embedded(t, 20, processDriver).(*host.Host)
	}})
}

func TestImagesOfProcessesOverHTTP(t *testing.T) {
	captest.Root(t)
	hosttest.RunImages(t, hosttest.ImageHarness{Program: program(t), Says: says, New: func(t *testing.T) hosttest.ImagesOfHost {
		return overHTTP(t, processDriver)
	}})
}

func TestImagesOfAnOrdinaryUser(t *testing.T) {
	usable, detail, _ := isolate.UserNamespaces()
	lent := filepath.Join(t.TempDir(), "program")
	if os.Geteuid() == 0 && usable {
		if err := os.WriteFile(lent, []byte(program(t)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if !captest.Rootless(t, usable, detail, lent) {
		return
	}
	text, err := os.ReadFile(filepath.Join(captest.Home(), "program"))
	if err != nil {
		t.Fatal(err)
	}
	hosttest.RunImages(t, hosttest.ImageHarness{Program: string(text), Says: says, New: func(t *testing.T) hosttest.ImagesOfHost {
		return overHTTP(t, processDriver)
	}})
}

func TestImagesOfContainers(t *testing.T) {
	hosttest.RunImages(t, hosttest.ImageHarness{Program: program(t), Says: says, Pulls: true, New: func(t *testing.T) hosttest.ImagesOfHost {
		return overHTTP(t, dockerDriver("runc"))
	}})
}

// Where images are nobody's to choose, nobody brings one either; and a secret that is
// not the administrator's has no power over them.
func TestImagesAreTheAdministrators(t *testing.T) {
	dir := t.TempDir()
	driver := processDriver(t, dir)
	db, err := store.OpenSQLite(t.Context(), filepath.Join(dir, "host.db"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(t.Context(), host.Config{DataDir: dir, Store: db, Drivers: []sandboxd.Driver{driver}, UIDs: sandboxd.UIDPool{First: 220000, Last: 220999}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, close := range []func() error{h.Close, driver.Close, db.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	for name, images := range map[string]sandboxd.ImageHost{
		"nobody's":          remoteOf(t, control, h).(*client.Client),
		"another's":         remoteOf(t, control, struct{ sandboxd.Host }{h}).(*client.Client),
		"the host's secret": remoteOf(t, role, struct{ sandboxd.Host }{h}).(*client.Client),
	} {
		_, err := images.ImportImage(t.Context(), sandboxd.ImageImport{Name: "tools"}, strings.NewReader("x"))
		if sandboxd.ClassOf(err) != sandboxd.ClassForbidden {
			t.Errorf("%s: import: %v", name, err)
		}
		if _, err := images.PullImage(t.Context(), sandboxd.ImagePull{Image: "tools"}, nil); sandboxd.ClassOf(err) != sandboxd.ClassForbidden {
			t.Errorf("%s: pull: %v", name, err)
		}
		if name == "nobody's" {
			continue
		}
		if _, err := images.ListImages(context.Background()); sandboxd.ClassOf(err) != sandboxd.ClassForbidden {
			t.Errorf("%s: list: %v", name, err)
		}
		if err := images.RemoveImage(t.Context(), "", "tools"); sandboxd.ClassOf(err) != sandboxd.ClassForbidden {
			t.Errorf("%s: remove: %v", name, err)
		}
	}
	if _, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Image: "tools"}); sandboxd.ClassOf(err) != sandboxd.ClassForbidden {
		t.Errorf("open: %v", err)
	}
}
