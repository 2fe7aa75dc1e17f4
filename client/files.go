package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"sandboxd"
)

// Files implements sandboxd.Host. It asks whether the sandbox is there.
func (c *Client) Files(ctx context.Context, id string) (sandboxd.Files, error) {
	if _, err := c.Get(ctx, id); err != nil {
		return nil, err
	}
	return &files{c: c, id: id}, nil
}

// files is a workspace over HTTP.
type files struct {
	c  *Client
	id string
}

func (f *files) call(method, path string, elements ...string) call {
	if path == "" {
		path = "." // some routes refuse a forgotten path; this one is meant
	}
	return call{method: method, path: append([]string{"sandboxes", f.id, "files"}, elements...), query: url.Values{"path": {path}}}
}

// Write implements sandboxd.Files. The body is streamed; of an unknown size it is
// sent in chunks.
func (f *files) Write(ctx context.Context, path string, body io.Reader, opts sandboxd.WriteOptions) (sandboxd.FileInfo, error) {
	in := f.call(http.MethodPut, path)
	in.header = http.Header{"Content-Type": {"application/octet-stream"}}
	// A body of a declared size that ends early or late breaks the exchange, so
	// that the server changes nothing; the failure is the caller's, not the server's.
	sized := &sizedReader{r: body, left: opts.Size, bounded: opts.Size >= 0}
	in.body, in.size = sized, opts.Size
	if opts.IfMatch != "" {
		in.header.Set("If-Match", opts.IfMatch)
	}
	if opts.IfNoneMatch {
		in.header.Set("If-None-Match", "*")
	}
	for name, on := range map[string]bool{"synced": opts.Synced, "append": opts.Append, "executable": opts.Executable} {
		if on {
			in.query.Set(name, "true")
		}
	}
	if opts.Size == 0 {
		// The transport does not read a body of no bytes.
		if _, err := sized.Read(nil); err != nil && err != io.EOF {
			return sandboxd.FileInfo{}, err
		}
	}
	var e sandboxd.Entry
	_, err := f.c.ask(ctx, &e, in)
	return e.Info(), err
}

// sizedReader fails when the body is not as long as declared. The last bytes are
// let go only after the end was seen, because with them the server has a whole
// body and writes it.
type sizedReader struct {
	r       io.Reader
	left    int64
	bounded bool
}

func (s *sizedReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if !s.bounded {
		return n, err
	}
	s.left -= int64(n)
	if s.left == 0 && err == nil {
		err = s.end()
	}
	if s.left < 0 || (err == io.EOF && s.left > 0) {
		err = sandboxd.Invalid("size", "the body is not as long as declared")
	}
	if err != nil && err != io.EOF {
		return 0, err
	}
	return n, err
}

// end answers io.EOF when the body has no more bytes.
func (s *sizedReader) end() error {
	var one [1]byte
	n, err := io.ReadFull(s.r, one[:])
	s.left -= int64(n)
	if err == nil {
		err = io.ErrNoProgress // replaced by the caller, which sees left below 0
	}
	return err
}

// Stat implements sandboxd.Files.
func (f *files) Stat(ctx context.Context, path string) (sandboxd.FileInfo, error) {
	var e sandboxd.Entry
	_, err := f.c.ask(ctx, &e, f.call(http.MethodGet, path, "stat"))
	return e.Info(), err
}

// List implements sandboxd.Files.
func (f *files) List(ctx context.Context, path string, opts sandboxd.ListOptions) (sandboxd.Listing, error) {
	in := f.call(http.MethodGet, path)
	if opts.Depth > 1 {
		in.query.Set("recursive", "true")
		in.query.Set("depth", strconv.Itoa(opts.Depth))
	}
	if opts.MaxEntries > 0 {
		in.query.Set("max", strconv.Itoa(opts.MaxEntries))
	}
	return f.listing(ctx, in)
}

// listing asks for entries.
func (f *files) listing(ctx context.Context, in call) (sandboxd.Listing, error) {
	var out struct {
		Entries    []sandboxd.Entry `json:"entries"`
		Truncated  bool             `json:"truncated"`
		Incomplete bool             `json:"incomplete"`
	}
	if _, err := f.c.ask(ctx, &out, in); err != nil {
		return sandboxd.Listing{}, err
	}
	found := sandboxd.Listing{Entries: make([]sandboxd.FileInfo, 0, len(out.Entries)), Truncated: out.Truncated, Incomplete: out.Incomplete}
	for _, e := range out.Entries {
		found.Entries = append(found.Entries, e.Info())
	}
	return found, nil
}

// Walk implements sandboxd.Files. An error of fn ends the walk and is returned as
// it is.
func (f *files) Walk(ctx context.Context, path string, fn func(sandboxd.FileInfo) error) (incomplete bool, err error) {
	in := f.call(http.MethodGet, path, "walk")
	in.header = http.Header{"Accept": {"application/x-ndjson"}}
	res, err := f.c.do(ctx, in)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	l := lines{r: bufio.NewReaderSize(res.Body, 64<<10)}
	for {
		var row struct {
			sandboxd.Entry
			End *struct {
				Incomplete bool `json:"incomplete"`
			} `json:"end"`
			Error *wireError `json:"error"`
		}
		if err := l.next(&row); err != nil {
			if ctx.Err() != nil {
				return false, f.c.unreachable(ctx, err)
			}
			return false, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the walk broke off")
		}
		switch {
		case row.Error != nil:
			return false, row.Error.error(0)
		case row.End != nil:
			return row.End.Incomplete, nil
		}
		if err := fn(row.Info()); err != nil {
			return false, err
		}
	}
}

// Mkdir implements sandboxd.Files.
func (f *files) Mkdir(ctx context.Context, path string) error {
	_, err := f.c.ask(ctx, nil, f.call(http.MethodPost, path, "mkdir"))
	return err
}

// Remove implements sandboxd.Files.
func (f *files) Remove(ctx context.Context, path string) error {
	_, err := f.c.ask(ctx, nil, f.call(http.MethodDelete, path))
	return err
}

// Rename implements sandboxd.Files.
func (f *files) Rename(ctx context.Context, from, to string) error {
	body := map[string]any{}
	for field, name := range map[string]string{"from": from, "to": to} {
		if utf8.ValidString(name) {
			body[field] = name
		} else {
			body[field+"_b64"] = []byte(name)
		}
	}
	in := f.call(http.MethodPost, "", "rename")
	in.query, in.json = nil, body
	_, err := f.c.ask(ctx, nil, in)
	return err
}

// TarOut implements sandboxd.Files.
func (f *files) TarOut(ctx context.Context, path string, w io.Writer) error {
	return f.archive(ctx, f.call(http.MethodGet, path, "tar"), w)
}

// ZipOut implements sandboxd.Files.
func (f *files) ZipOut(ctx context.Context, path string, w io.Writer) error {
	return f.archive(ctx, f.call(http.MethodGet, path, "zip"), w)
}

func (f *files) archive(ctx context.Context, in call, w io.Writer) error {
	in.header = http.Header{"Accept": {"application/x-tar, application/zip"}}
	res, err := f.c.do(ctx, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	out := &rememberingWriter{w: w}
	if _, err := io.Copy(out, res.Body); err != nil {
		if out.err != nil {
			return out.err
		}
		if ctx.Err() != nil {
			return f.c.unreachable(ctx, err)
		}
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the archive broke off")
	}
	return nil
}

// rememberingWriter tells a failure of the caller's writer from one of the wire.
type rememberingWriter struct {
	w   io.Writer
	err error
}

func (r *rememberingWriter) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	r.err = err
	return n, err
}

// TarIn implements sandboxd.Files.
func (f *files) TarIn(ctx context.Context, path string, r io.Reader, limits sandboxd.TarLimits) (res sandboxd.TarResult, err error) {
	in := f.call(http.MethodPut, path, "tar")
	in.header = http.Header{"Content-Type": {"application/x-tar"}}
	in.body, in.size = io.NopCloser(r), -1
	if limits.MaxEntries > 0 {
		in.query.Set("max_entries", strconv.FormatInt(limits.MaxEntries, 10))
	}
	if limits.MaxBytes > 0 {
		in.query.Set("max_bytes", strconv.FormatInt(limits.MaxBytes, 10))
	}
	_, err = f.c.ask(ctx, &res, in)
	return res, err
}

// Usage implements sandboxd.Files.
func (f *files) Usage(ctx context.Context) (usage sandboxd.Usage, err error) {
	return usage, f.c.get(ctx, &usage, nil, "sandboxes", f.id, "usage")
}

// Open implements sandboxd.Files. The content is read as it is wanted; after a
// seek it is asked for again from there, on condition that the file is the same.
func (f *files) Open(ctx context.Context, path string) (sandboxd.FileReader, error) {
	r := &reader{f: f, ctx: ctx, path: path}
	res, err := f.c.do(ctx, r.request(0))
	if err != nil {
		return nil, err
	}
	h := res.Header
	r.body = res.Body
	r.info = sandboxd.FileInfo{Path: path, Type: sandboxd.TypeFile, Size: res.ContentLength, Mode: sandboxd.ParseMode(h.Get("X-File-Mode")), ETag: h.Get("ETag")}
	r.info.ModTime, _ = time.Parse(time.RFC3339Nano, h.Get("X-File-Mod-Time"))
	return r, nil
}

// reader is an open file over HTTP. It is for one goroutine.
type reader struct {
	f    *files
	ctx  context.Context // of the Open, for the requests that later reads need
	path string
	info sandboxd.FileInfo
	at   int64         // where the next Read reads
	body io.ReadCloser // positioned at at; nil after a seek
}

func (r *reader) request(from int64) call {
	in := r.f.call(http.MethodGet, r.path, "content")
	in.header = http.Header{"Accept": {"application/octet-stream"}}
	if from > 0 {
		in.header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
	if r.info.ETag != "" {
		in.header.Set("If-Match", r.info.ETag)
	}
	return in
}

// Info implements sandboxd.FileReader.
func (r *reader) Info() sandboxd.FileInfo { return r.info }

func (r *reader) Read(p []byte) (int, error) {
	if r.at >= r.info.Size {
		return 0, io.EOF
	}
	if r.body == nil {
		res, err := r.f.c.do(r.ctx, r.request(r.at))
		if err != nil {
			return 0, err
		}
		r.body = res.Body
	}
	n, err := r.body.Read(p)
	r.at += int64(n)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF) && r.at >= r.info.Size:
		return n, io.EOF
	case r.ctx.Err() != nil:
		return n, r.f.c.unreachable(r.ctx, err)
	}
	return n, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the file broke off")
}

// Seek implements io.Seeker.
func (r *reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.info.Size
	}
	if offset < 0 {
		return r.at, sandboxd.Invalid("offset", "it is before the begin of the file")
	}
	if offset != r.at && r.body != nil {
		_ = r.body.Close()
		r.body = nil
	}
	r.at = offset
	return offset, nil
}

func (r *reader) Close() error {
	if r.body == nil {
		return nil
	}
	return r.body.Close()
}
