package workspace

import (
	"bytes"
	"context"
	"io"

	"sandboxd"
)

// ReadMany implements sandboxd.Files.
func (w *Workspace) ReadMany(ctx context.Context, items []sandboxd.ReadItem) ([]sandboxd.ReadResult, error) {
	if err := fits(len(items)); err != nil {
		return nil, err
	}
	left := int64(sandboxd.BatchBytes)
	results := make([]sandboxd.ReadResult, len(items))
	for i, item := range items {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r := &results[i]
		if r.Info, r.Data, r.Err = w.readPart(ctx, item, left); r.Err == nil {
			left -= int64(len(r.Data))
		}
	}
	return results, nil
}

func fits(items int) error {
	if items > sandboxd.BatchItems {
		return sandboxd.Invalid("items", "a batch has at most %d", sandboxd.BatchItems)
	}
	return nil
}

func (w *Workspace) readPart(ctx context.Context, item sandboxd.ReadItem, most int64) (sandboxd.FileInfo, []byte, error) {
	if item.Offset < 0 || item.Length < 0 {
		return sandboxd.FileInfo{}, nil, sandboxd.Invalid("offset", "offset and length are 0 or more")
	}
	f, err := w.Open(ctx, item.Path)
	if err != nil {
		return sandboxd.FileInfo{}, nil, err
	}
	defer f.Close()
	info := f.Info()
	size := max(0, info.Size-item.Offset)
	if item.Length > 0 {
		size = min(size, item.Length)
	}
	if size > most {
		return info, nil, sandboxd.Errorf(sandboxd.ClassTooLarge, "it has %d bytes and the batch has room for %d", size, most).
			WithHint("read it alone, or a part of it")
	}
	if _, err := f.Seek(item.Offset, io.SeekStart); err != nil {
		return info, nil, sandboxd.Wrap(sandboxd.ClassInvalid, err, "the file cannot be read from there")
	}
	data := make([]byte, size)
	n, err := io.ReadFull(f, data)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return info, nil, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the file cannot be read")
	}
	return info, data[:n], nil
}

// WriteMany implements sandboxd.Files.
func (w *Workspace) WriteMany(ctx context.Context, items []sandboxd.WriteItem) ([]sandboxd.WriteResult, error) {
	if err := fits(len(items)); err != nil {
		return nil, err
	}
	left := int64(sandboxd.BatchBytes)
	results := make([]sandboxd.WriteResult, len(items))
	for i, item := range items {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		size := int64(len(item.Data))
		if size > left {
			results[i].Err = tooLarge(size, left)
			continue
		}
		left -= size
		item.Options.Size = size
		results[i].Info, results[i].Err = w.Write(ctx, item.Path, bytes.NewReader(item.Data), item.Options)
	}
	return results, nil
}
