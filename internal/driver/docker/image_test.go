package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"sandboxd"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
)

// prober is a static program, built once, for images that have nothing else.
var prober = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "prober-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "prober"), "sandboxd/internal/isolate/prober")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return out, err
	}
	return os.ReadFile(filepath.Join(dir, "prober"))
})

// makeImage imports an image of some files and of /prober, removed with the test.
func makeImage(t *testing.T, e dockertest.Engine, files []tar.Header, changes ...string) string {
	t.Helper()
	program, err := prober()
	if err != nil {
		t.Fatalf("build the prober: %v: %s", err, program)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range append(files, tar.Header{Name: "prober", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}) {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := "sandboxd-test/" + sandboxd.NewID() + ":latest"
	done, err := e.API.ImageImport(t.Context(), client.ImageImportSource{Source: &archive, SourceName: "-"}, name, client.ImageImportOptions{Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	defer done.Close()
	if _, err := io.Copy(io.Discard, done); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := e.API.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	})
	return name
}

// Whatever an image is made of, the sandbox works or a command says what it lacks.
func TestOddImages(t *testing.T) {
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink, Mode: 0o777}
	}
	for _, test := range []struct {
		name    string
		files   []tar.Header
		changes []string
	}{
		{"nothing but one program", nil, nil},
		{"dev/null is a link to a file of the machine", []tar.Header{dir("dev"), dir("etc"), link("dev/null", "/etc/hosts")}, nil},
		{"dev is a link", []tar.Header{dir("elsewhere"), link("dev", "elsewhere")}, nil},
		{"etc/passwd is a link", []tar.Header{dir("etc"), link("etc/passwd", "/nowhere/at/all")}, nil},
		{"an entrypoint that exits", nil, []string{`ENTRYPOINT ["/prober"]`, `CMD ["x"]`, "USER nobody", "WORKDIR /nowhere/at/all"}},
		{"a health check", nil, []string{"HEALTHCHECK --interval=1s CMD /prober"}},
		{"variables that the init would heed", nil, []string{"ENV GODEBUG=inittrace=1 GOGC=1 GOTRACEBACK=system"}},
	} {
		for _, runtime := range runtimes {
			t.Run(test.name+"/"+runtime, func(t *testing.T) {
				e := dockertest.Find(t, runtime)
				image := makeImage(t, e, test.files, test.changes...)
				b := openBox(t, e, func(s *sandboxd.EnvironmentSpec) { s.Image = image })
				if r := b.Run("/prober"); r.Exit.Code != 0 || !strings.Contains(r.Stdout, `"hostname":"box"`) {
					t.Errorf("a program of the image: %+v", r)
				}
				start := wire.Start{ID: sandboxd.NewID(), Argv: []string{"/bin/sh", "-c", "true"}, Cwd: "/", Wait: "leader"}
				err := b.Link.Start(t.Context(), start, nil)
				failed, ok := err.(*guest.StartError)
				if !ok || failed.Exit.Code != 127 || !strings.Contains(failed.Exit.Error, "/bin/sh: no such file") {
					t.Errorf("a shell that is not there: %v", err)
				}
			})
		}
	}
}

// What an image says of its environment is told; its volumes are no volumes.
func TestImageSettings(t *testing.T) {
	e := dockertest.Find(t, "runc")
	image := makeImage(t, e, nil, "ENV COLOUR=blue", "VOLUME /data /workspace", "VOLUME /workspace/. /other/../workspace")
	b := openBox(t, e, func(s *sandboxd.EnvironmentSpec) { s.Image = image })
	if env := b.d.Environ(b.spec.ID); !slices.Contains(env, "COLOUR=blue") {
		t.Errorf("environment %q", env)
	}
	seen, err := e.API.ContainerInspect(t.Context(), b.d.containerName(b.spec.ID), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range seen.Container.Mounts {
		if m.Type == "volume" {
			t.Errorf("a volume: %+v", m)
		}
	}
	if !strings.Contains(seen.Container.HostConfig.Tmpfs["/data"], "size=") || len(seen.Container.HostConfig.Tmpfs) != 2 {
		t.Errorf("the place of a volume: %v", seen.Container.HostConfig.Tmpfs)
	}
}

func TestWritableRoot(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			e := dockertest.Find(t, runtime)
			for writable, code := range map[bool]int{false: 1, true: 0} {
				b := openBox(t, e, func(s *sandboxd.EnvironmentSpec) { s.WritableRoot = writable })
				// Its directories belong to root still: /var/tmp is anybody's.
				if r := b.Run("/bin/sh", "-c", "echo x >/var/tmp/f || exit 1"); r.Exit.Code != code {
					t.Errorf("writable %v: %+v", writable, r)
				}
			}
		})
	}
}
