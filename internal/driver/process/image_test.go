package process

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/drivertest"
	"sandboxd/internal/guest"
	"sandboxd/internal/guest/wire"
	"sandboxd/internal/image"
)

// prober is the program of images that have nothing else.
var prober = sync.OnceValues(func() ([]byte, error) { return os.ReadFile(filepath.Join(captest.Home(), "prober")) })

func proberOf(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		program, err := prober()
		if err != nil {
			t.Fatal(err)
		}
		return string(program)
	}
	name := filepath.Join(t.TempDir(), "prober")
	buildProber(t, name)
	program, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(program)
}

func imageDir(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}

func imageLink(name, to string) tar.Header {
	return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink, Mode: 0o777}
}

func imageFile(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o777}
}

// importImage makes an image of entries and of /prober.
func importImage(t *testing.T, store *image.Store, name string, entries []tar.Header, program string) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range append(entries, tar.Header{Name: "prober", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}) {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(w, program); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Import(t.Context(), sandboxd.ImageImport{Name: name}, &archive); err != nil {
		t.Fatal(err)
	}
}

// storeOf is the store of the data directory that a specification is below.
func storeOf(spec *sandboxd.EnvironmentSpec) *image.Store {
	data := filepath.Dir(filepath.Dir(filepath.Dir(spec.Workspace)))
	return image.In(filepath.Join(data, "images"), "process")
}

// hostile is a tree that would lead whoever builds a sandbox's root elsewhere.
var hostile = []tar.Header{
	imageDir("usr"), imageDir("usr/bin"), imageFile("usr/bin/env"), imageLink("bin", "usr/bin"),
	imageDir("real-etc"), imageDir("real-etc/ssl"), imageLink("etc", "../../../real-etc"), imageLink("real-etc/passwd", "/etc/shadow"),
	imageLink("real-etc/outside", "/../../../etc/shadow"), imageLink("proc", "/usr"), imageLink("sys", "/"), imageLink("dev", "/usr/bin"),
	imageLink("workspace", "/"), imageLink("home", "/usr"), imageLink("tmp", "/usr"), imageLink("lib", "/proc/1/root/lib"), imageFile("run"),
}

// The escape prober finds in an image what it finds without.
func TestIsolationInAnImage(t *testing.T) { both(t, testIsolationInAnImage) }

func testIsolationInAnImage(t *testing.T, openBox opener) {
	b := openBox(t, func(s *sandboxd.EnvironmentSpec) {
		importImage(t, storeOf(s), "hostile", hostile, proberOf(t))
		s.Image = "hostile"
	})
	b.judge(t, b.probe(t))
	b.ofTheImage(t)
}

// ofTheImage looks that it is the image's programs that run.
func (b *box) ofTheImage(t *testing.T) {
	t.Helper()
	if r := b.Run("/prober"); r.Exit.Code != 0 || !strings.Contains(r.Stdout, `"hostname":"box"`) {
		t.Errorf("a program of the image: %+v", r)
	}
	start := wire.Start{ID: sandboxd.NewID(), Argv: []string{"/bin/sh", "-c", "true"}, Cwd: "/", Wait: "leader"}
	err := b.Link.Start(t.Context(), start, nil)
	failed, ok := err.(*guest.StartError)
	if !ok || failed.Exit.Code != 127 || !strings.Contains(failed.Exit.Error, "/bin/sh: no such file") {
		t.Errorf("a shell that is not there: %v", err)
	}
}

func TestRootlessImage(t *testing.T) {
	if !rootless(t) {
		return
	}
	b := openBox(t, func(s *sandboxd.EnvironmentSpec) {
		importImage(t, storeOf(s), "hostile", hostile, proberOf(t))
		s.Image = "hostile"
	})
	b.lent(t)
	b.judge(t, b.prove(t))
	b.ofTheImage(t)
}

// Whatever an image is made of, the sandbox works or a command says what it lacks.
func TestOddImages(t *testing.T) {
	need(t)
	program := proberOf(t)
	many := []tar.Header{imageDir("etc")}
	for i := range image.MaxNames - 2 { // beside etc and the program
		many = append(many, imageLink(fmt.Sprint("top", i), strings.Repeat("x", 4000)), imageLink(fmt.Sprint("etc/name", i), strings.Repeat("x", 4000)))
	}
	for name, entries := range map[string][]tar.Header{
		"as many and as long names as can be":      many,
		"nothing but one program":                  nil,
		"dev/null is a link to a file":             {imageDir("dev"), imageDir("etc"), imageLink("dev/null", "/etc/hosts")},
		"dev/null is a file":                       {imageDir("dev"), imageFile("dev/null")},
		"dev and proc are links":                   {imageDir("elsewhere"), imageLink("dev", "elsewhere"), imageLink("proc", "/elsewhere")},
		"etc is a link to the machine's":           {imageLink("etc", "/etc")},
		"etc is a link out":                        {imageLink("etc", "../../../../../../etc")},
		"etc is a file":                            {imageFile("etc")},
		"etc is a link to nothing":                 {imageLink("etc", "/nowhere/at/all")},
		"etc/passwd and etc/hosts are links":       {imageDir("etc"), imageLink("etc/passwd", "/nowhere"), imageLink("etc/hosts", "/proc/1/environ")},
		"usr is a link out":                        {imageLink("usr", "/../../../usr")},
		"everything at the top is a file":          {imageFile("usr"), imageFile("workspace"), imageFile("home"), imageFile("tmp"), imageFile("var"), imageFile("proc"), imageFile("sys"), imageFile("dev")},
		"names that a shell or a mount would mind": {imageFile("-rf"), imageFile("a b\tc"), imageFile("\xff\xfe"), imageFile("new\nline")},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBox(t, func(s *sandboxd.EnvironmentSpec) {
				importImage(t, storeOf(s), "odd", entries, program)
				s.Image = "odd:latest"
			})
			b.ofTheImage(t)
			var got map[string]string
			if err := json.Unmarshal([]byte(b.Run("/prober").Stdout), &got); err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{"create in /workspace": "ok", "create in /tmp": "ok", "create in /": denied, "create in /etc": denied,
				"read /etc/shadow": "ENOENT", "write /etc/passwd": denied, "processes": "2", "interfaces": "lo"} {
				if !strings.Contains(want, got[name]) || got[name] == "" {
					t.Errorf("%s: %q, want %s", name, got[name], want)
				}
			}
		})
	}
}

// An image that is used stays: by what runs, what a later driver adopted, and what was
// handed over from the pool; what is only kept ready ends with it.
func TestImageInUse(t *testing.T) {
	need(t)
	h := harness(t)
	before := h.Left()
	d := h.Open(t).(*Driver)
	program := proberOf(t)
	importImage(t, d.images, "tools", nil, program)
	spec := h.Spec(t)
	spec.Image = "tools"
	if name, err := d.ChooseImage("tools:latest", ""); name != "tools" || err != nil {
		t.Errorf("chosen %q, %v", name, err)
	}
	warm(t, d, spec, 1)
	handle, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if d.nameOf(spec.ID) == spec.ID {
		t.Error("the sandbox did not come from the pool")
	}
	refused := func(d *Driver, when string) {
		t.Helper()
		if err := d.RemoveImage(t.Context(), "tools"); sandboxd.ClassOf(err) != sandboxd.ClassConflict {
			t.Errorf("remove %s: %v", when, err)
		}
	}
	refused(d, "while it runs")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = h.Open(t).(*Driver)
	defer d.Close()
	if err := d.Adopt(t.Context(), spec.ID, handle); err != nil {
		t.Fatal(err)
	}
	refused(d, "while it is adopted")
	s := drivertest.Attach(t, d, spec.ID)
	if r := s.Run("/prober"); r.Exit.Code != 0 {
		t.Errorf("after the adoption: %+v", r)
	}
	if err := d.Stop(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	again := h.Spec(t)
	again.Image = "tools"
	warm(t, d, again, 1)
	if err := d.RemoveImage(t.Context(), "tools:latest"); err != nil {
		t.Errorf("remove one that only the pool has: %v", err)
	}
	if _, err := d.Start(t.Context(), again); sandboxd.ClassOf(err) != sandboxd.ClassNotFound || !strings.Contains(err.Error(), "there is no image tools here") {
		t.Errorf("start in an image that is gone: %v", err)
	}
	if list, err := d.ListImages(t.Context()); len(list) != 0 || err != nil {
		t.Errorf("images %v, %v", list, err)
	}
	if after := h.Left(); after != before {
		t.Errorf("left behind\nbefore:\n%s\nafter:\n%s", before, after)
	}
}

// Of two images the second is not what was made ready for the first.
func TestAnotherImageIsAnotherKind(t *testing.T) {
	need(t)
	h := harness(t)
	d := h.Open(t).(*Driver)
	defer d.Close()
	spec := h.Spec(t)
	program, err := d.init.Install(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := spec
	other.Image = "tools"
	if kindOf(program, spec) == kindOf(program, other) {
		t.Error("an image is of no matter to the pool")
	}
}

func TestChooseImage(t *testing.T) {
	dir := t.TempDir()
	d := openDriver(t, dir)
	defer d.Close()
	for _, test := range []struct {
		image, runtime string
		class          sandboxd.Class
	}{{"", "", ""}, {"tools", "", sandboxd.ClassNotFound}, {"../../etc", "", sandboxd.ClassNotFound}, {"registry.example/team/tools:1", "", sandboxd.ClassNotFound}, {"", "runsc", sandboxd.ClassUnsupported}} {
		if got, err := d.ChooseImage(test.image, test.runtime); got != "" || err == nil && test.class != "" || err != nil && sandboxd.ClassOf(err) != test.class {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
	}
	if d.images.Any() {
		t.Error("there are images")
	}
}
