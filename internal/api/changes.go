package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"sandboxd"
)

type editInput struct {
	SandboxPath
	IfMatch string `header:"If-Match" doc:"Only if the file's ETag is this"`
	Body    struct {
		sandboxd.Name
		Old    string `json:"old,omitempty" doc:"The exact text that is there"`
		New    string `json:"new,omitempty" doc:"What is put in its place; may be empty"`
		OldB64 []byte `json:"old_b64,omitempty" doc:"Instead of old, when it is not text"`
		NewB64 []byte `json:"new_b64,omitempty" doc:"Instead of new, when it is not text"`
		Count  int    `json:"count,omitempty" doc:"How often old must be there, default 1"`
		All    bool   `json:"all,omitempty" doc:"Replace it as often as it is there"`
		Synced bool   `json:"synced,omitempty" doc:"Answer after the bytes survive a power cut"`
	}
}

// editAnswer says what an edit did.
type editAnswer struct {
	Replaced int            `json:"replaced" doc:"How often the text was replaced"`
	Entry    sandboxd.Entry `json:"entry"`
}

type editOutput struct {
	ETag string `header:"ETag"`
	Body editAnswer
}

// filesAt answers the workspace for a route with a JSON body.
func (f *face) filesAt(ctx context.Context, id string) (sandboxd.Files, error) {
	h, err := f.at(ctx, id)
	if err != nil {
		return nil, err
	}
	return h.Files(ctx, id)
}

func (f *face) edit(ctx context.Context, in *editInput) (*editOutput, error) {
	files, err := f.filesAt(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	b := in.Body
	name, err := eitherName("path", b.Path, b.PathB64)
	if err != nil {
		return nil, err
	}
	e := sandboxd.Edit{Old: b.Old, New: b.New, Count: b.Count, All: b.All, IfMatch: in.IfMatch, Synced: b.Synced}
	for _, given := range []struct {
		field string
		text  *string
		b64   []byte
	}{{"old", &e.Old, b.OldB64}, {"new", &e.New, b.NewB64}} {
		if len(given.b64) == 0 {
			continue
		}
		if *given.text != "" {
			return nil, sandboxd.Invalid(given.field, "give %s or %s_b64", given.field, given.field)
		}
		*given.text = string(given.b64)
	}
	info, replaced, err := files.Edit(ctx, name, e)
	if err != nil {
		return nil, err
	}
	return &editOutput{ETag: info.ETag, Body: editAnswer{Replaced: replaced, Entry: sandboxd.EntryOf(info)}}, nil
}

// wanted is one file of a batch to read.
type wanted struct {
	sandboxd.Name
	Offset int64 `json:"offset,omitempty" doc:"First byte wanted"`
	Length int64 `json:"length,omitempty" doc:"At most so many bytes; 0 means to the end"`
}

type readFilesInput struct {
	SandboxPath
	Body struct {
		Items []wanted `json:"items"`
	}
}

// readItem is one file of a batch, or why it could not be read.
type readItem struct {
	Entry *sandboxd.Entry `json:"entry,omitempty"`
	sandboxd.Content
	Error *EnvelopeError `json:"error,omitempty"`
}

type readFilesOutput struct {
	Body struct {
		Items []readItem `json:"items" nullable:"false"`
	}
}

func (f *face) readFiles(ctx context.Context, in *readFilesInput) (*readFilesOutput, error) {
	files, err := f.filesAt(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	items := make([]sandboxd.ReadItem, len(in.Body.Items))
	for i, item := range in.Body.Items {
		items[i] = sandboxd.ReadItem{Path: item.Exact(), Offset: item.Offset, Length: item.Length}
	}
	results, err := files.ReadMany(ctx, items)
	if err != nil {
		return nil, err
	}
	out := &readFilesOutput{}
	out.Body.Items = make([]readItem, len(results))
	for i, res := range results {
		if res.Err != nil {
			out.Body.Items[i].Error = &envelope(res.Err).Err
			continue
		}
		entry := sandboxd.EntryOf(res.Info)
		out.Body.Items[i] = readItem{Entry: &entry, Content: sandboxd.ContentOf(res.Data)}
	}
	return out, nil
}

// given is one file of a batch to write.
type given struct {
	sandboxd.Name
	sandboxd.Content
	IfMatch     string `json:"if_match,omitempty" doc:"Only if the present ETag is this"`
	IfNoneMatch bool   `json:"if_none_match,omitempty" doc:"Only if nothing is there"`
	Append      bool   `json:"append,omitempty" doc:"Add to the end"`
	Executable  bool   `json:"executable,omitempty" doc:"Give a new file its execute bits"`
	Synced      bool   `json:"synced,omitempty" doc:"Answer after the bytes survive a power cut"`
}

type writeFilesInput struct {
	SandboxPath
	Body struct {
		Items []given `json:"items"`
	}
}

// writeItem is one file of a batch as it is now, or why it was not written.
type writeItem struct {
	Entry *sandboxd.Entry `json:"entry,omitempty"`
	Error *EnvelopeError  `json:"error,omitempty"`
}

type writeFilesOutput struct {
	Body struct {
		Items []writeItem `json:"items" nullable:"false"`
	}
}

func (f *face) writeFiles(ctx context.Context, in *writeFilesInput) (*writeFilesOutput, error) {
	files, err := f.filesAt(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	items := make([]sandboxd.WriteItem, len(in.Body.Items))
	for i, item := range in.Body.Items {
		if item.Text != "" && item.B64 != nil {
			return nil, sandboxd.Invalid("items", "item %d: give text or b64", i)
		}
		items[i] = sandboxd.WriteItem{Path: item.Exact(), Data: item.Bytes(), Options: sandboxd.WriteOptions{IfMatch: item.IfMatch,
			IfNoneMatch: item.IfNoneMatch, Append: item.Append, Executable: item.Executable, Synced: item.Synced}}
	}
	results, err := files.WriteMany(ctx, items)
	if err != nil {
		return nil, err
	}
	out := &writeFilesOutput{}
	out.Body.Items = make([]writeItem, len(results))
	for i, res := range results {
		if res.Err != nil {
			out.Body.Items[i].Error = &envelope(res.Err).Err
			continue
		}
		entry := sandboxd.EntryOf(res.Info)
		out.Body.Items[i].Entry = &entry
	}
	return out, nil
}

const uploadDoc = `the body is the piece that Content-Range names, as "bytes 0-1023/4096"; "bytes */4096" with no body ends an upload of which all bytes are there. A piece begins where what was received ends, or at 0 to begin anew. 202 while bytes are missing, 200 when the file is in place`

// uploadAnswer says how far an upload is.
type uploadAnswer struct {
	Received int64           `json:"received" doc:"Bytes that are there; the next piece begins here"`
	Complete bool            `json:"complete" doc:"The file is in place"`
	Entry    *sandboxd.Entry `json:"entry,omitempty"`
}

func (f *face) uploadState(w http.ResponseWriter, r *http.Request, query url.Values) error {
	files, name, err := f.named(r, query)
	if err != nil {
		return err
	}
	state, err := files.Upload(r.Context(), name, sandboxd.UploadPart{ID: query.Get("upload")}, nil, sandboxd.WriteOptions{})
	if err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, uploadAnswer{Received: state.Received})
	return nil
}

func (f *face) upload(w http.ResponseWriter, r *http.Request, query url.Values) error {
	files, name, err := f.named(r, query)
	if err != nil {
		return err
	}
	opts, err := writeOptions(r)
	if err != nil {
		return err
	}
	if err := switches(query, map[string]*bool{"synced": &opts.Synced, "executable": &opts.Executable}); err != nil {
		return err
	}
	part, size, err := contentRange(r.Header.Get("Content-Range"))
	if err != nil {
		return err
	}
	if r.ContentLength >= 0 && r.ContentLength != size {
		return sandboxd.Invalid("Content-Range", "the body does not have as many bytes")
	}
	part.ID, opts.Size = query.Get("upload"), size
	state, err := files.Upload(r.Context(), name, part, r.Body, opts)
	if err != nil {
		return err
	}
	out := uploadAnswer{Received: state.Received, Complete: state.Complete}
	status := http.StatusAccepted
	if state.Complete {
		entry := sandboxd.EntryOf(state.Info)
		out.Entry, status = &entry, http.StatusOK
		w.Header().Set("ETag", state.Info.ETag)
	}
	answerJSON(w, status, out)
	return nil
}

// contentRange reads "bytes 0-1023/4096" or "bytes */4096".
func contentRange(header string) (part sandboxd.UploadPart, size int64, err error) {
	wrong := sandboxd.Invalid("Content-Range", "it is needed, as bytes 0-1023/4096")
	rest, ok := strings.CutPrefix(header, "bytes ")
	span, total, slash := strings.Cut(rest, "/")
	if !ok || !slash {
		return part, 0, wrong
	}
	if part.Total, err = strconv.ParseInt(total, 10, 64); err != nil || part.Total < 0 {
		return part, 0, wrong
	}
	if span == "*" {
		part.Offset = part.Total
		return part, 0, nil
	}
	first, last, _ := strings.Cut(span, "-")
	end, err := strconv.ParseInt(last, 10, 64)
	if err != nil {
		return part, 0, wrong
	}
	if part.Offset, err = strconv.ParseInt(first, 10, 64); err != nil || part.Offset < 0 || end < part.Offset || end >= part.Total {
		return part, 0, wrong
	}
	return part, end - part.Offset + 1, nil
}
