package api

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandboxd"
)

// listing is a directory's answer.
type listing struct {
	Path       string           `json:"path"`
	Recursive  bool             `json:"recursive"`
	Entries    []sandboxd.Entry `json:"entries" nullable:"false"`
	Truncated  bool             `json:"truncated" doc:"A bound was met"`
	Incomplete bool             `json:"incomplete" doc:"Something inside could not be read"`
}

// filesOf answers the workspace and the path that a request names.
func (f *face) filesOf(r *http.Request, query url.Values) (sandboxd.Files, string, error) {
	id, name := r.PathValue("id"), query.Get("path")
	h, err := f.at(r.Context(), id)
	if err != nil {
		return nil, "", err
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, "", sandboxd.Invalid("path", "it has a NUL character")
	}
	files, err := h.Files(r.Context(), id)
	return files, name, err
}

// named is filesOf for routes that must not mean the whole workspace by a
// forgotten parameter.
func (f *face) named(r *http.Request, query url.Values) (sandboxd.Files, string, error) {
	if query.Get("path") == "" {
		if _, err := f.at(r.Context(), r.PathValue("id")); err != nil {
			return nil, "", err
		}
		return nil, "", sandboxd.Invalid("path", "it is needed")
	}
	return f.filesOf(r, query)
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

func (f *face) listFiles(w http.ResponseWriter, r *http.Request, query url.Values) error {
	recursive, err := boolean(query, "recursive")
	if err != nil {
		return err
	}
	depth, err := integer(query, "depth")
	if err != nil {
		return err
	}
	most, err := integer(query, "max")
	if err != nil {
		return err
	}
	opts := sandboxd.ListOptions{Depth: 1, MaxEntries: int(min(most, math.MaxInt32))}
	if recursive {
		opts.Depth = math.MaxInt32
	}
	if depth > 0 {
		opts.Depth = int(min(depth, math.MaxInt32))
	}
	return f.answerListing(w, r, query, opts)
}

func (f *face) tree(w http.ResponseWriter, r *http.Request, query url.Values) error {
	return f.answerListing(w, r, query, sandboxd.ListOptions{Depth: sandboxd.TreeDepth, MaxEntries: sandboxd.TreeEntries})
}

func (f *face) answerListing(w http.ResponseWriter, r *http.Request, query url.Values, opts sandboxd.ListOptions) error {
	files, name, err := f.filesOf(r, query)
	if err != nil {
		return err
	}
	found, err := files.List(r.Context(), name, opts)
	if err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, listingOf(name, opts.Depth > 1, found))
	return nil
}

func (f *face) stat(w http.ResponseWriter, r *http.Request, query url.Values) error {
	files, name, err := f.filesOf(r, query)
	if err != nil {
		return err
	}
	info, err := files.Stat(r.Context(), name)
	if err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, sandboxd.EntryOf(info))
	return nil
}

// writeOptions reads the conditions that HTTP has headers for.
func writeOptions(r *http.Request) (sandboxd.WriteOptions, error) {
	opts := sandboxd.WriteOptions{Size: r.ContentLength, IfMatch: r.Header.Get("If-Match")}
	if opts.IfMatch == "*" {
		return opts, sandboxd.Invalid("If-Match", "one ETag is needed")
	}
	switch r.Header.Get("If-None-Match") {
	case "":
	case "*":
		opts.IfNoneMatch = true
	default:
		return opts, sandboxd.Invalid("If-None-Match", "only * is allowed")
	}
	return opts, nil
}

func (f *face) writeFile(w http.ResponseWriter, r *http.Request, query url.Values) error {
	opts, err := writeOptions(r)
	if err != nil {
		return err
	}
	if r.Header.Get("Content-Range") != "" {
		return sandboxd.Invalid("Content-Range", "a part of a file is sent to files/upload")
	}
	if err := switches(query, map[string]*bool{"synced": &opts.Synced, "append": &opts.Append, "executable": &opts.Executable}); err != nil {
		return err
	}
	files, name, err := f.named(r, query)
	if err != nil {
		return err
	}
	info, err := files.Write(r.Context(), name, r.Body, opts)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", info.ETag)
	answerJSON(w, http.StatusOK, sandboxd.EntryOf(info))
	return nil
}

func (f *face) removeFile(w http.ResponseWriter, r *http.Request, query url.Values) error {
	return f.change(w, r, query, sandboxd.Files.Remove)
}

func (f *face) mkdir(w http.ResponseWriter, r *http.Request, query url.Values) error {
	return f.change(w, r, query, sandboxd.Files.Mkdir)
}

func (f *face) change(w http.ResponseWriter, r *http.Request, query url.Values, do func(sandboxd.Files, context.Context, string) error) error {
	files, name, err := f.named(r, query)
	if err != nil {
		return err
	}
	if err := do(files, r.Context(), name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type renameInput struct {
	SandboxPath
	Body struct {
		From    string `json:"from,omitempty"`
		To      string `json:"to,omitempty"`
		FromB64 []byte `json:"from_b64,omitempty" doc:"Instead of from, when it is not UTF-8"`
		ToB64   []byte `json:"to_b64,omitempty" doc:"Instead of to, when it is not UTF-8"`
	}
}

func (f *face) rename(ctx context.Context, in *renameInput) (*struct{}, error) {
	h, err := f.at(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	from, err := eitherName("from", in.Body.From, in.Body.FromB64)
	if err != nil {
		return nil, err
	}
	to, err := eitherName("to", in.Body.To, in.Body.ToB64)
	if err != nil {
		return nil, err
	}
	files, err := h.Files(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return nil, files.Rename(ctx, from, to)
}

func eitherName(field, text string, exact []byte) (string, error) {
	switch {
	case (text == "") == (len(exact) == 0):
		return "", sandboxd.Invalid(field, "give exactly one of %s and %s_b64", field, field)
	case text != "":
		return text, nil
	case strings.IndexByte(string(exact), 0) >= 0:
		return "", sandboxd.Invalid(field+"_b64", "it has a NUL character")
	}
	return string(exact), nil
}

// content answers a file as HTTP has it. X-File-Mode and X-File-Mod-Time carry
// what HTTP has no header for.
func (f *face) content(w http.ResponseWriter, r *http.Request, query url.Values) error {
	files, name, err := f.named(r, query)
	if err != nil {
		return err
	}
	file, err := files.Open(r.Context(), name)
	if err != nil {
		return err
	}
	defer file.Close()
	info := file.Info()
	h := w.Header()
	h.Set("Content-Type", octets)
	h.Set("Cache-Control", "private, no-cache")
	h.Set("X-File-Mode", sandboxd.FormatMode(info.Mode))
	h.Set("X-File-Mod-Time", info.ModTime.UTC().Format(time.RFC3339Nano))
	if info.ETag != "" {
		h.Set("ETag", info.ETag)
	}
	catcher := &refusalCatcher{ResponseWriter: w}
	http.ServeContent(catcher, r, "", info.ModTime, file)
	switch catcher.status {
	case http.StatusRequestedRangeNotSatisfiable:
		return sandboxd.Errorf(sandboxd.ClassRange, "the file does not have the range")
	case http.StatusPreconditionFailed:
		return sandboxd.Errorf(sandboxd.ClassPrecondition, "the file is not the one that the condition names")
	case 0:
		return nil
	}
	return sandboxd.Errorf(sandboxd.ClassInternal, "the file could not be read")
}

// refusalCatcher keeps http.ServeContent from answering errors in plain text.
type refusalCatcher struct {
	http.ResponseWriter
	status int
}

func (c *refusalCatcher) WriteHeader(code int) {
	if code >= 400 {
		c.status = code
		return
	}
	c.ResponseWriter.WriteHeader(code)
}

func (c *refusalCatcher) Write(p []byte) (int, error) {
	if c.status != 0 {
		return len(p), nil
	}
	return c.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the connection.
func (c *refusalCatcher) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// walkEnd is the last line of a walk; without it the walk is not whole.
type walkEnd struct {
	Incomplete bool `json:"incomplete"`
}

func (f *face) walk(w http.ResponseWriter, r *http.Request, query url.Values) error {
	files, name, err := f.filesOf(r, query)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", ndjson)
		return nil
	}
	lines := &lazyWriter{w: w, contentType: ndjson}
	enc := json.NewEncoder(lines)
	enc.SetEscapeHTML(false)
	incomplete, err := files.Walk(r.Context(), name, func(info sandboxd.FileInfo) error { return enc.Encode(sandboxd.EntryOf(info)) })
	switch {
	case err == nil:
		return enc.Encode(map[string]walkEnd{"end": {Incomplete: incomplete}})
	case !lines.begun:
		return err
	}
	note(r.Context(), err)
	_ = enc.Encode(map[string]EnvelopeError{"error": envelope(err).Err})
	return nil
}

// lazyWriter begins the answer with the first byte, so that an error before it is
// still an error.
type lazyWriter struct {
	w           http.ResponseWriter
	contentType string
	begun       bool
}

func (l *lazyWriter) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", l.contentType)
	}
	return l.w.Write(p)
}

const (
	tarType = "application/x-tar"
	zipType = "application/zip"
)

func (f *face) tarOut(w http.ResponseWriter, r *http.Request, query url.Values) error {
	return f.archive(w, r, query, tarType)
}

func (f *face) zipOut(w http.ResponseWriter, r *http.Request, query url.Values) error {
	return f.archive(w, r, query, zipType)
}

func (f *face) archive(w http.ResponseWriter, r *http.Request, query url.Values, kind string) error {
	files, name, err := f.filesOf(r, query)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", kind)
		return nil
	}
	out := &lazyWriter{w: w, contentType: kind}
	// Once begun, an error breaks the connection: half an archive must not look
	// whole.
	if kind == zipType {
		return files.ZipOut(r.Context(), name, out)
	}
	return files.TarOut(r.Context(), name, out)
}

func (f *face) tarIn(w http.ResponseWriter, r *http.Request, query url.Values) error {
	var limits sandboxd.TarLimits
	var err error
	if limits.MaxEntries, err = integer(query, "max_entries"); err != nil {
		return err
	}
	if limits.MaxBytes, err = integer(query, "max_bytes"); err != nil {
		return err
	}
	files, name, err := f.filesOf(r, query)
	if err != nil {
		return err
	}
	res, err := files.TarIn(r.Context(), name, r.Body, limits)
	if err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, res)
	return nil
}
