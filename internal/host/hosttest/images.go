package hosttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd"
)

// ImageHarness makes hosts with images for RunImages.
type ImageHarness struct {
	// New answers a host of its own for one test, whose images may be named.
	New func(t *testing.T) ImagesOfHost
	// Program is a static program that prints a word of its own and ends with 0, and
	// Says that word.
	Program, Says string
	// Pulls says that the driver brings images from registries.
	Pulls bool
}

// ImagesOfHost is both of a host's faces.
type ImagesOfHost interface {
	sandboxd.Host
	sandboxd.ImageHost
}

// RunImages runs the suite of sandboxd.ImageHost.
func RunImages(t *testing.T, harness ImageHarness) {
	for _, tc := range []struct {
		name string
		run  func(*imageSuite)
	}{
		{"an image lives from import to removal", lifeOfAnImage},
		{"a name is given once", namesOfImages},
		{"a bad archive is refused and never seen", badArchives},
		{"an import whose caller leaves is never seen", abandonedImport},
		{"an image that is not there", absentImages},
		{"a pull of what is there", pullsOfWhatIsThere},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
			defer cancel()
			h := harness.New(t)
			tc.run(&imageSuite{suite: &suite{T: t, ctx: ctx, host: h}, images: h, harness: harness,
				name: "sandboxd-test-" + sandboxd.NewID()[:8] + ":v1"})
		})
	}
}

type imageSuite struct {
	*suite
	images  sandboxd.ImageHost
	harness ImageHarness
	name    string // of this test's image; engines are shared
}

// archive is a root file system of one program.
func (s *imageSuite) archive(more ...tar.Header) *bytes.Buffer {
	s.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range append(more, tar.Header{Name: "bin/program", Mode: 0o755, Size: int64(len(s.harness.Program)), Typeflag: tar.TypeReg}) {
		s.must(w.WriteHeader(&h))
	}
	_, err := io.WriteString(w, s.harness.Program)
	s.must(err)
	s.must(w.Close())
	return &b
}

func (s *imageSuite) gzipped() *bytes.Buffer {
	s.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.Copy(z, s.archive())
	s.must(err)
	s.must(z.Close())
	return &b
}

func (s *imageSuite) listed() (sandboxd.Image, bool) {
	s.Helper()
	list, err := s.images.ListImages(s.ctx)
	s.must(err)
	if list == nil {
		s.Fatal("the list is null")
	}
	at := slices.IndexFunc(list, func(i sandboxd.Image) bool { return i.Name == s.name })
	if at < 0 {
		return sandboxd.Image{}, false
	}
	return list[at], true
}

func (s *imageSuite) bring() sandboxd.Image {
	s.Helper()
	made, err := s.images.ImportImage(s.ctx, sandboxd.ImageImport{Name: s.name}, s.archive())
	s.must(err)
	s.Cleanup(func() { _ = s.images.RemoveImage(context.Background(), "", s.name) })
	return made
}

func lifeOfAnImage(s *imageSuite) {
	for _, kind := range []string{"plain", "gzipped"} {
		archive := s.archive()
		if kind == "gzipped" {
			archive = s.gzipped()
		}
		made, err := s.images.ImportImage(s.ctx, sandboxd.ImageImport{Name: s.name}, archive)
		s.must(err)
		found, there := s.listed()
		if made.Name != s.name || made.Bytes < int64(len(s.harness.Program)) || !made.Imported || made.ID == "" || !there || found.ID != made.ID || !found.Imported {
			s.Fatalf("made %+v, listed %+v", made, found)
		}
		sb := s.open(sandboxd.OpenRequest{Key: "user-of-the-image", Image: s.name})
		if sb.Image != s.name || sb.Driver != made.Driver {
			s.Fatalf("opened %+v", sb)
		}
		if r := s.run(sb.ID, sandboxd.CommandSpec{Argv: []string{"/bin/program"}}); !strings.Contains(r.stdout.String(), s.harness.Says) {
			s.Fatalf("the image's program: %s", r.stdout.String())
		}
		r := s.run(sb.ID, sandboxd.CommandSpec{Shell: "true"})
		if r.ending.ExitCode == nil || *r.ending.ExitCode != 127 {
			s.Fatalf("a shell that is not there: %+v", r.ending)
		}
		for _, when := range []string{"running", "stopped"} {
			err := s.images.RemoveImage(s.ctx, "", s.name)
			s.wants(err, sandboxd.ClassConflict)
			if !strings.Contains(err.Error(), "user-of-the-image") {
				s.Errorf("in use by a sandbox that is %s: %v", when, err)
			}
			_, err = s.host.Stop(s.ctx, sb.ID)
			s.must(err)
		}
		if r := s.run(sb.ID, sandboxd.CommandSpec{Argv: []string{"/bin/program"}}); !strings.Contains(r.stdout.String(), s.harness.Says) {
			s.Fatalf("started again: %s", r.stdout.String())
		}
		s.must(s.host.Delete(s.ctx, sb.ID))
		s.removed()
		if _, there := s.listed(); there {
			s.Fatal("it is listed after its removal")
		}
		s.wants(s.images.RemoveImage(s.ctx, made.Driver, s.name), sandboxd.ClassNotFound)
	}
}

// removed removes the image; what a delete goes on clearing away holds it for a moment.
func (s *imageSuite) removed() {
	s.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.images.RemoveImage(s.ctx, "", s.name)
		if err == nil {
			return
		}
		s.wants(err, sandboxd.ClassConflict)
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			s.Fatal(err)
		}
	}
}

func namesOfImages(s *imageSuite) {
	s.bring()
	_, err := s.images.ImportImage(s.ctx, sandboxd.ImageImport{Name: s.name}, s.archive())
	s.wants(err, sandboxd.ClassConflict)
	for _, name := range []string{"", "../x", "Upper", "a/b", "-x", strings.Repeat("a", 65)} {
		_, err := s.images.ImportImage(s.ctx, sandboxd.ImageImport{Name: name}, s.archive())
		s.wants(err, sandboxd.ClassInvalid)
	}
	_, err = s.images.ImportImage(s.ctx, sandboxd.ImageImport{Name: s.name, Driver: "none-such"}, s.archive())
	s.wants(err, sandboxd.ClassInvalid)
	s.wants(s.images.RemoveImage(s.ctx, "", ""), sandboxd.ClassInvalid)
}

func badArchives(s *imageSuite) {
	saved := tar.Header{Name: "blobs/sha256/", Typeflag: tar.TypeDir, Mode: 0o755}
	for name, archive := range map[string]io.Reader{
		"nothing": strings.NewReader(""), "text": strings.NewReader(strings.Repeat("no tar ", 1000)),
		"the layers of an image": s.archive(saved), "half a gzip": bytes.NewReader(s.gzipped().Bytes()[:5000]),
		"half a tar": bytes.NewReader(s.archive().Bytes()[:5000]),
	} {
		_, err := s.images.ImportImage(s.ctx, sandboxd.ImageImport{Name: s.name}, archive)
		if err == nil || sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
			s.Errorf("%s: %v (class %s)", name, err, sandboxd.ClassOf(err))
		}
	}
	_, err := s.images.ImportImage(s.ctx, sandboxd.ImageImport{Name: s.name, Limits: sandboxd.TarLimits{MaxBytes: 4096}}, s.gzipped())
	s.wants(err, sandboxd.ClassInvalid)
	if _, there := s.listed(); there {
		s.Fatal("what was refused is listed")
	}
}

func abandonedImport(s *imageSuite) {
	ctx, cancel := context.WithCancel(s.ctx)
	r, w := io.Pipe()
	over := make(chan error, 1)
	go func() {
		_, err := s.images.ImportImage(ctx, sandboxd.ImageImport{Name: s.name}, r)
		over <- err
	}()
	_, err := w.Write(s.archive().Bytes()[:200_000])
	s.must(err)
	if _, there := s.listed(); there {
		s.Error("half an image is listed")
	}
	cancel()
	w.CloseWithError(context.Canceled)
	if err := <-over; err == nil {
		s.Error("an import of half an archive succeeded")
	}
	if _, there := s.listed(); there {
		s.Error("half an image is listed after its end")
	}
}

func absentImages(s *imageSuite) {
	s.wants(s.images.RemoveImage(s.ctx, "", s.name), sandboxd.ClassNotFound)
	if s.harness.Pulls {
		return // it would be looked for in a registry
	}
	_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Key: "absent", Image: s.name})
	s.wants(err, sandboxd.ClassNotFound)
	if !strings.Contains(err.Error(), "image") {
		s.Error(err)
	}
	list, err := s.host.List(s.ctx, "absent")
	s.must(err)
	if len(list) != 0 {
		s.Errorf("a sandbox is left: %+v", list)
	}
	_, err = s.images.PullImage(s.ctx, sandboxd.ImagePull{Image: s.name}, nil)
	s.wants(err, sandboxd.ClassNotFound)
}

func pullsOfWhatIsThere(s *imageSuite) {
	made := s.bring()
	got, err := s.images.PullImage(s.ctx, sandboxd.ImagePull{Image: s.name, Missing: true}, nil)
	s.must(err)
	if got.ID != made.ID || got.Name != made.Name {
		s.Errorf("made %+v, got %+v", made, got)
	}
	for _, image := range []string{"", "two words", "-rf", strings.Repeat("a", 256)} {
		_, err := s.images.PullImage(s.ctx, sandboxd.ImagePull{Image: image}, nil)
		s.wants(err, sandboxd.ClassInvalid)
	}
	if !s.harness.Pulls {
		_, err := s.images.PullImage(s.ctx, sandboxd.ImagePull{Image: s.name}, nil)
		s.wants(err, sandboxd.ClassUnsupported)
	}
}
