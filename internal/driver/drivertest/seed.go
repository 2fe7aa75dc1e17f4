package drivertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"sandboxd"
	"sandboxd/internal/captest"
)

// seed makes the home of one specification and remembers what it was given.
type seed struct {
	t     *testing.T
	spec  *sandboxd.EnvironmentSpec
	fails error
	calls int
	found []string // kind, name and target of each entry, and what is in files
}

func (s *seed) SeedHome(_ context.Context, archive io.Reader) error {
	s.calls++
	if archive != nil {
		tr := tar.NewReader(archive)
		for {
			h, err := tr.Next()
			if err == io.EOF {
				break
			}
			body, berr := io.ReadAll(tr)
			if err := errors.Join(err, berr); err != nil {
				s.t.Errorf("the seed: %v", err)
				return err
			}
			s.found = append(s.found, strings.TrimSpace(string(h.Typeflag)+" "+strings.TrimSuffix(h.Name, "/")+" "+h.Linkname+string(body)))
		}
	}
	if s.fails != nil || s.spec.Home == "" {
		return s.fails
	}
	if err := os.Mkdir(s.spec.Home, 0o700); err != nil {
		return err
	}
	return os.Chown(s.spec.Home, int(s.spec.UID), int(s.spec.UID))
}

// unmade is a specification whose home is not there yet.
func (f *fixture) unmade(image string) (sandboxd.EnvironmentSpec, *seed) {
	f.t.Helper()
	spec := f.Spec(f.t)
	if spec.Home != "" {
		if err := os.Remove(spec.Home); err != nil {
			f.t.Fatal(err)
		}
	}
	if image != "" {
		spec.Image = image
	}
	s := &seed{t: f.t, spec: &spec}
	spec.Seed = s
	return spec, s
}

// imageOf makes an image that the end of the test removes.
func (f *fixture) imageOf(archive []byte) string {
	f.t.Helper()
	name, remove := f.Image(f.t, archive)
	f.images = append(f.images, remove)
	return name
}

// homeOf is an archive of a root file system with these in it.
func homeOf(t *testing.T, more ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range append([]tar.Header{{Typeflag: tar.TypeDir, Name: "home/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "home/other", Mode: 0o600}}, more...) {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body = "in " + h.Name
		}
		h.Size = int64(len(body))
		err := w.WriteHeader(&h)
		if err == nil {
			_, err = io.WriteString(w, body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// testSeed wants the home of a new sandbox to be made once, with what its image has.
func testSeed(t *testing.T, f *fixture) {
	spec, s := f.unmade("")
	if _, err := f.start(spec); err != nil {
		t.Fatal(err)
	}
	if s.calls != 1 || len(s.found) != 0 {
		t.Errorf("an environment whose image has no home: seeded %d times, with %q", s.calls, s.found)
	}
	if r := Attach(t, f.d, spec.ID).Run(f.True...); r.Exit.Code != 0 {
		t.Errorf("in the home that was made: %+v", r)
	}
	if err := f.d.Stop(f.context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	spec.Seed, spec.Generation = nil, 2 // it has one now
	if _, err := f.start(spec); err != nil {
		t.Fatal(err)
	}

	spec, s = f.unmade("")
	s.fails = sandboxd.Invalid("image", "it has too much there")
	_, err := f.start(spec)
	wantClass(t, "a start without a home", err, sandboxd.ClassInvalid)
	f.wantRunning(spec.ID, false)
}

// testSeedOfImage wants what an image has at HomeDir, and nothing else of it.
func testSeedOfImage(t *testing.T, f *fixture) {
	captest.Need(t, "driver-homes", f.Image != nil, "this driver runs no images")
	home := tar.Header{Typeflag: tar.TypeDir, Name: "home/sandbox/", Mode: 0o700}
	full := f.imageOf(homeOf(t, home,
		tar.Header{Typeflag: tar.TypeReg, Name: "home/sandbox/.profile", Mode: 0o644},
		tar.Header{Typeflag: tar.TypeDir, Name: "home/sandbox/.config/", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: "home/sandbox/.config/tool", Mode: 0o4777},
		tar.Header{Typeflag: tar.TypeLink, Name: "home/sandbox/.config/zz", Linkname: "home/sandbox/.config/tool", Mode: 0o4777},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "home/sandbox/up", Linkname: "../../../etc/shadow"},
		tar.Header{Typeflag: tar.TypeFifo, Name: "home/sandbox/pipe", Mode: 0o666},
	))
	want := strings.Join([]string{"5 .config", "0 .config/tool in home/sandbox/.config/tool", "1 .config/zz .config/tool",
		"0 .profile in home/sandbox/.profile", "2 up ../../../etc/shadow"}, "\n")
	// Twice, because a driver may keep what it found.
	for range 2 {
		spec, s := f.unmade(full)
		if _, err := f.start(spec); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.found, "\n"); s.calls != 1 || got != want {
			t.Errorf("seeded %d times, with\n%s\nwant\n%s", s.calls, got, want)
		}
	}
	f.reopen()
	spec, s := f.unmade(full)
	if _, err := f.start(spec); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(s.found, "\n"); got != want {
		t.Errorf("after a restart seeded with\n%s", got)
	}
	// Not every driver can show a home where something odd is.
	for what, headers := range map[string][]tar.Header{
		"an empty home":                        nil,
		"a home that is a link to nowhere":     {{Typeflag: tar.TypeSymlink, Name: "home/sandbox", Linkname: "/nowhere"}},
		"odd: a home that is a link to itself": {{Typeflag: tar.TypeSymlink, Name: "home/sandbox", Linkname: "sandbox"}},
		"odd: a home that is a file":           {{Typeflag: tar.TypeReg, Name: "home/sandbox", Mode: 0o644}},
	} {
		spec, s := f.unmade(f.imageOf(homeOf(t, headers...)))
		_, err := f.start(spec)
		if len(s.found) != 0 || err == nil && s.calls != 1 {
			t.Errorf("%s: seeded %d times, with %q", what, s.calls, s.found)
		}
		if works := !strings.HasPrefix(what, "odd: "); works && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
