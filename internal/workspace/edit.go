package workspace

import (
	"bytes"
	"context"
	"io"

	"sandboxd"
)

// editTries bounds how often an edit begins anew because somebody else wrote the
// file meanwhile.
const editTries = 8

// Edit implements sandboxd.Files. The file is read and replaced as a whole; a
// version that another caller writes in between is not lost but edited in turn.
func (w *Workspace) Edit(ctx context.Context, path string, e sandboxd.Edit) (sandboxd.FileInfo, int, error) {
	var none sandboxd.FileInfo
	switch {
	case e.Old == "":
		return none, 0, sandboxd.Invalid("old", "it is needed")
	case e.Count < 0:
		return none, 0, sandboxd.Invalid("count", "it is 1 or more")
	case e.All && e.Count > 0:
		return none, 0, sandboxd.Invalid("count", "give either count or all")
	}
	if _, err := creatable(path); err != nil {
		return none, 0, err
	}
	for range editTries {
		data, info, err := w.readWhole(ctx, path, sandboxd.EditBytes)
		if err != nil {
			return none, 0, err
		}
		if e.IfMatch != "" && e.IfMatch != info.ETag {
			return none, 0, sandboxd.Errorf(sandboxd.ClassPrecondition, "the file is not the one that was expected")
		}
		found := bytes.Count(data, []byte(e.Old))
		if err := expected(found, e); err != nil {
			return none, 0, err
		}
		// Before it is made: many occurrences of a byte may become as many megabytes.
		if size := int64(len(data)) + int64(found)*int64(len(e.New)-len(e.Old)); size > sandboxd.EditBytes {
			return none, 0, tooLarge(size, sandboxd.EditBytes)
		}
		data = bytes.ReplaceAll(data, []byte(e.Old), []byte(e.New))
		written, err := w.Write(ctx, path, bytes.NewReader(data),
			sandboxd.WriteOptions{IfMatch: info.ETag, Size: int64(len(data)), Synced: e.Synced})
		if sandboxd.ClassOf(err) == sandboxd.ClassPrecondition && e.IfMatch == "" {
			continue
		}
		return written, found, err
	}
	return none, 0, sandboxd.Errorf(sandboxd.ClassBusy, "the file is being written by others all the time")
}

// expected says whether text that is there so often may be replaced.
func expected(found int, e sandboxd.Edit) error {
	want := max(e.Count, 1)
	switch {
	case found == want, e.All && found > 0:
		return nil
	case found == 0:
		return sandboxd.Errorf(sandboxd.ClassConflict, "the old text is not in the file").
			WithHint("every byte counts, spaces and line ends too: read the file again")
	}
	return sandboxd.Errorf(sandboxd.ClassConflict, "the old text is in the file %d times and not %d", found, want).
		WithHint("take in more of the text around it, or say that all of them are meant")
}

func tooLarge(size, most int64) error {
	return sandboxd.Errorf(sandboxd.ClassTooLarge, "it has %d bytes and at most %d are taken", size, most)
}

// readWhole reads a file of at most so many bytes.
func (w *Workspace) readWhole(ctx context.Context, path string, most int64) ([]byte, sandboxd.FileInfo, error) {
	f, err := w.Open(ctx, path)
	if err != nil {
		return nil, sandboxd.FileInfo{}, err
	}
	defer f.Close()
	info := f.Info()
	if info.Size > most {
		return nil, info, tooLarge(info.Size, most)
	}
	data := bytes.NewBuffer(make([]byte, 0, info.Size+1))
	n, err := io.Copy(data, io.LimitReader(f, most+1))
	if err != nil {
		return nil, info, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the file cannot be read")
	}
	if n > most {
		return nil, info, tooLarge(n, most)
	}
	return data.Bytes(), info, nil
}
