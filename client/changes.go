package client

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"sandboxd"
)

// post is a call with a JSON body, which also has the paths.
func (f *files) post(route string, body any) call {
	return call{method: http.MethodPost, path: []string{"sandboxes", f.id, "files", route}, json: body}
}

// Edit implements sandboxd.Files.
func (f *files) Edit(ctx context.Context, path string, e sandboxd.Edit) (sandboxd.FileInfo, int, error) {
	old, text := sandboxd.ContentOf([]byte(e.Old)), sandboxd.ContentOf([]byte(e.New))
	in := f.post("edit", struct {
		sandboxd.Name
		Old    string `json:"old,omitempty"`
		OldB64 []byte `json:"old_b64,omitempty"`
		New    string `json:"new,omitempty"`
		NewB64 []byte `json:"new_b64,omitempty"`
		Count  int    `json:"count,omitempty"`
		All    bool   `json:"all,omitempty"`
		Synced bool   `json:"synced,omitempty"`
	}{exactly(path), old.Text, old.B64, text.Text, text.B64, e.Count, e.All, e.Synced})
	if e.IfMatch != "" {
		in.header = http.Header{"If-Match": {e.IfMatch}}
	}
	var out struct {
		Replaced int            `json:"replaced"`
		Entry    sandboxd.Entry `json:"entry"`
	}
	_, err := f.c.ask(ctx, &out, in)
	return out.Entry.Info(), out.Replaced, err
}

// exactly is a path in a request, which has it once.
func exactly(path string) sandboxd.Name {
	name := sandboxd.NameOf(path)
	if name.PathB64 != nil {
		name.Path = ""
	}
	return name
}

// ReadMany implements sandboxd.Files.
func (f *files) ReadMany(ctx context.Context, items []sandboxd.ReadItem) ([]sandboxd.ReadResult, error) {
	type item struct {
		sandboxd.Name
		Offset int64 `json:"offset,omitempty"`
		Length int64 `json:"length,omitempty"`
	}
	in := make([]item, len(items))
	for i, it := range items {
		in[i] = item{exactly(it.Path), it.Offset, it.Length}
	}
	var out struct {
		Items []struct {
			Entry sandboxd.Entry `json:"entry"`
			sandboxd.Content
			Error *wireError `json:"error"`
		} `json:"items"`
	}
	if _, err := f.c.ask(ctx, &out, f.post("read", map[string]any{"items": in})); err != nil {
		return nil, err
	}
	if err := answered(len(out.Items), len(items)); err != nil {
		return nil, err
	}
	results := make([]sandboxd.ReadResult, len(items))
	for i, it := range out.Items {
		if it.Error != nil {
			results[i].Err = it.Error.error(0)
			continue
		}
		results[i] = sandboxd.ReadResult{Info: it.Entry.Info(), Data: it.Bytes()}
	}
	return results, nil
}

func answered(got, want int) error {
	if got != want {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "the server answered %d items of %d", got, want)
	}
	return nil
}

// WriteMany implements sandboxd.Files.
func (f *files) WriteMany(ctx context.Context, items []sandboxd.WriteItem) ([]sandboxd.WriteResult, error) {
	type item struct {
		sandboxd.Name
		sandboxd.Content
		IfMatch     string `json:"if_match,omitempty"`
		IfNoneMatch bool   `json:"if_none_match,omitempty"`
		Append      bool   `json:"append,omitempty"`
		Executable  bool   `json:"executable,omitempty"`
		Synced      bool   `json:"synced,omitempty"`
	}
	in := make([]item, len(items))
	for i, it := range items {
		o := it.Options
		in[i] = item{exactly(it.Path), sandboxd.ContentOf(it.Data), o.IfMatch, o.IfNoneMatch, o.Append, o.Executable, o.Synced}
	}
	var out struct {
		Items []struct {
			Entry sandboxd.Entry `json:"entry"`
			Error *wireError     `json:"error"`
		} `json:"items"`
	}
	if _, err := f.c.ask(ctx, &out, f.post("write", map[string]any{"items": in})); err != nil {
		return nil, err
	}
	if err := answered(len(out.Items), len(items)); err != nil {
		return nil, err
	}
	results := make([]sandboxd.WriteResult, len(items))
	for i, it := range out.Items {
		if it.Error != nil {
			results[i].Err = it.Error.error(0)
			continue
		}
		results[i].Info = it.Entry.Info()
	}
	return results, nil
}

// Upload implements sandboxd.Files. A piece is streamed.
func (f *files) Upload(ctx context.Context, path string, part sandboxd.UploadPart, body io.Reader, opts sandboxd.WriteOptions) (sandboxd.UploadState, error) {
	in := f.call(http.MethodGet, path, "upload")
	in.query.Set("upload", part.ID)
	if body != nil {
		if part.Offset < 0 || opts.Size < 0 || opts.Size == 0 && part.Offset != part.Total {
			return sandboxd.UploadState{}, sandboxd.Invalid("range", "offset, size and total are needed, and the size is 0 only at the end")
		}
		if opts.Append {
			return sandboxd.UploadState{}, sandboxd.Invalid("append", "an upload replaces the file")
		}
		span := fmt.Sprintf("bytes %d-%d/%d", part.Offset, part.Offset+opts.Size-1, part.Total)
		if opts.Size == 0 {
			span = fmt.Sprintf("bytes */%d", part.Total)
		}
		in.method = http.MethodPut
		in.header = http.Header{"Content-Type": {"application/octet-stream"}, "Content-Range": {span}}
		if opts.IfMatch != "" {
			in.header.Set("If-Match", opts.IfMatch)
		}
		if opts.IfNoneMatch {
			in.header.Set("If-None-Match", "*")
		}
		in.body, in.size = &sizedReader{r: body, left: opts.Size, bounded: true}, opts.Size
		switches(in.query, map[string]bool{"synced": opts.Synced, "executable": opts.Executable})
	}
	var out struct {
		Received int64          `json:"received"`
		Complete bool           `json:"complete"`
		Entry    sandboxd.Entry `json:"entry"`
	}
	_, err := f.c.ask(ctx, &out, in)
	state := sandboxd.UploadState{Received: out.Received, Complete: out.Complete}
	if out.Complete {
		state.Info = out.Entry.Info()
	}
	return state, err
}
