package crash

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/failpoint"
	"sandboxd/test/server"
)

// imagePoints begin the names of the points of an import and a removal.
const imagePoints = "image."

// rootFS is a tar of one file.
func rootFS(t *testing.T) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1})
	if err == nil {
		_, err = w.Write([]byte("x"))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestEveryPointOfAnImage ends the server while it imports or removes an image: the next
// one has it whole or not at all, and the name can be used again.
func TestEveryPointOfAnImage(t *testing.T) {
	captest.Root(t)
	reached := 0
	for _, point := range failpoint.All() {
		if !strings.HasPrefix(point, imagePoints) {
			continue
		}
		reached++
		t.Run(point, func(t *testing.T) {
			s := server.New(t, child)
			start(s, point)
			bring := func() error {
				_, err := s.C.ImportImage(t.Context(), sandboxd.ImageImport{Name: "tools"}, rootFS(t))
				return err
			}
			if bring() == nil {
				_ = s.C.RemoveImage(t.Context(), "", "tools") // the answer is lost with the server
			}
			select {
			case <-s.Done():
			case <-time.After(20 * time.Second):
				t.Fatalf("neither an import nor a removal reached %s", point)
			}
			start(s, "")
			list, err := s.C.ListImages(t.Context())
			if err != nil || len(list) != 0 {
				t.Fatalf("there are %+v, %v", list, err)
			}
			if err := bring(); err != nil {
				t.Errorf("import again: %v", err)
			}
			if err := s.C.RemoveImage(t.Context(), "", "tools"); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
	}
	if reached == 0 {
		t.Error("there are no such points")
	}
}
