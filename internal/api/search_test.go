package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sandboxd"
)

func (f *doubleFiles) Grep(_ context.Context, path string, opts sandboxd.GrepOptions) (sandboxd.GrepResult, error) {
	f.d.note(func() { f.d.grepped = opts })
	return sandboxd.GrepResult{Matches: []sandboxd.Match{{Path: path + "\xff", Line: 3, Column: 1, Text: "<found>", Before: []string{"b"}}}, Truncated: true, Files: 1}, nil
}

func (f *doubleFiles) Upload(_ context.Context, _ string, part sandboxd.UploadPart, body io.Reader, opts sandboxd.WriteOptions) (sandboxd.UploadState, error) {
	if body == nil {
		return sandboxd.UploadState{Received: 7}, nil
	}
	data, err := io.ReadAll(body)
	f.d.note(func() { f.d.part, f.d.content = part, data })
	at := part.Offset + opts.Size
	return sandboxd.UploadState{Received: at, Complete: at == part.Total, Info: sandboxd.FileInfo{Path: "f", ETag: `"v"`}}, err
}

func (f *doubleFiles) Edit(context.Context, string, sandboxd.Edit) (sandboxd.FileInfo, int, error) {
	return sandboxd.FileInfo{}, 0, sandboxd.Errorf(sandboxd.ClassConflict, "the old text is in the file 2 times and not 1")
}

func (f *doubleFiles) Watch(context.Context, string) (sandboxd.Watcher, error) {
	return f.d.watcher, nil
}

// told is a Watcher that plays events, then its end, or waits.
type told struct {
	events []sandboxd.WatchEvent
	end    error
	closed chan struct{}
}

func (w *told) Next(ctx context.Context) ([]sandboxd.WatchEvent, error) {
	if len(w.events) > 0 {
		one := w.events[:1]
		w.events = w.events[1:]
		return one, nil
	}
	if w.end != nil {
		return nil, w.end
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (w *told) Close() error { close(w.closed); return nil }

// Of two contents none is chosen, and nothing is written.
func TestABatchItemHasOneContent(t *testing.T) {
	r := newRig(t, controlListener, nil)
	got := r.do("POST", boxURL+"/files/write", `{"items":[{"path":"f","text":"a","b64":"Yg=="}]}`)
	if got.status != 400 || !strings.Contains(got.body, "item 0: give text or b64") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestGrepParameters(t *testing.T) {
	r := newRig(t, controlListener, nil)
	got := r.do("GET", boxURL+"/files/grep?path=a&pattern=x%2B&literal=true&ignore_case=true&glob=*.go&skip_hidden=true&before=1&context=2&max=9&max_bytes=99&time_s=99999999", "")
	want := `{"matches":[{"path":"a` + "\uFFFD" + `","path_b64":"Yf8=","line":3,"column":1,"text":"<found>","before":["b"]}],"truncated":true,"incomplete":false,"files":1,"binary":0,"bytes":0}` + "\n"
	if got.status != 200 || got.body != want {
		t.Errorf("%d %s", got.status, got.body)
	}
	if o := r.double.grepped; o != (sandboxd.GrepOptions{Pattern: "x+", Literal: true, IgnoreCase: true, Glob: "*.go", SkipHidden: true, Before: 2, After: 2,
		MaxMatches: 9, MaxBytes: 99, MaxTime: sandboxd.SearchTime}) {
		t.Errorf("asked for %+v", o)
	}
	for _, query := range []string{"max=-1", "literal=maybe", "before=x", "unknown=1", "pattern=a&pattern=b"} {
		if got := r.do("GET", boxURL+"/files/grep?pattern=x&"+query, ""); got.status != 400 {
			t.Errorf("%s: %d", query, got.status)
		}
	}
}

func TestUploadRanges(t *testing.T) {
	r := newRig(t, controlListener, nil)
	put := func(span, body string) answer {
		return r.do("PUT", boxURL+"/files/upload?path=f&upload=u", body, "Content-Range: "+span)
	}
	if got := put("bytes 2-4/9", "abc"); got.status != 202 || got.body != `{"received":5,"complete":false}`+"\n" || r.double.part != (sandboxd.UploadPart{ID: "u", Offset: 2, Total: 9}) {
		t.Errorf("a piece: %+v, %+v", got, r.double.part)
	}
	if got := put("bytes 6-8/9", "abc"); got.status != 200 || got.header.Get("ETag") != `"v"` || !strings.Contains(got.body, `"complete":true,"entry":{"path":"f"`) {
		t.Errorf("the last piece: %+v", got)
	}
	if got := put("bytes */9", ""); got.status != 200 || r.double.part.Offset != 9 {
		t.Errorf("no piece: %+v, %+v", got, r.double.part)
	}
	for _, span := range []string{"", "bytes", "bytes 0-2", "bytes 2-0/9", "bytes 0-9/9", "bytes -1-2/9", "bytes 0-2/*", "bytes a-b/c", "items 0-2/9", "bytes 0-1/9",
		"bytes 0-9223372036854775807/9223372036854775807", "bytes 0-2/9223372036854775808"} {
		if got := put(span, "abc"); got.status != 400 || got.envelope(t).Field != "Content-Range" {
			t.Errorf("%q: %d %s", span, got.status, got.body)
		}
	}
	if got := r.do("GET", boxURL+"/files/upload?path=f&upload=u", ""); got.status != 200 || got.body != `{"received":7,"complete":false}`+"\n" {
		t.Errorf("the state: %+v", got)
	}
	if got := r.do("PUT", boxURL+"/files?path=f", "abc", "Content-Range: bytes 0-2/9"); got.status != 400 {
		t.Errorf("a range on the route of whole files: %d %s", got.status, got.body)
	}
}

func TestEditRefusals(t *testing.T) {
	r := newRig(t, controlListener, nil)
	if got := r.do("POST", boxURL+"/files/edit", `{"path":"f","old":"a","new":"b"}`); got.status != 409 || !strings.Contains(got.body, "2 times") {
		t.Errorf("%+v", got)
	}
	for _, body := range []string{`{}`, `{"old":"a"}`, `{"path":"f","path_b64":"Zg==","old":"a"}`, `{"path":"f","old":"a","old_b64":"Zg=="}`, `{"path":"f","old":"a","regex":true}`, `{"path":"f","old":1}`} {
		if got := r.do("POST", boxURL+"/files/edit", body); got.status != 400 {
			t.Errorf("%s: %d %s", body, got.status, got.body)
		}
	}
}

func TestWatchStream(t *testing.T) {
	r := newRig(t, controlListener, nil)
	r.double.watcher = &told{closed: make(chan struct{}), end: sandboxd.Errorf(sandboxd.ClassGone, "what was watched is not there any more"), events: []sandboxd.WatchEvent{
		{Kind: sandboxd.ChangeChanged, Info: sandboxd.FileInfo{Path: "new\nline", Type: sandboxd.TypeFile, Size: 3, ETag: `"e"`}},
		{Kind: sandboxd.ChangeRemoved, Info: sandboxd.FileInfo{Path: "\xff"}}, {Kind: sandboxd.ChangeResync}}}
	got := r.do("GET", boxURL+"/files/watch", "")
	want := "event: ready\ndata: {}\n\n" +
		`event: changed` + "\n" + `data: {"kind":"changed","entry":{"path":"new\nline","type":"file","size":3,"mode":"0000","mod_time":"0001-01-01T00:00:00Z","etag":"\"e\""}}` + "\n\n" +
		`event: removed` + "\n" + `data: {"kind":"removed","path":"` + "\uFFFD" + `","path_b64":"/w=="}` + "\n\n" +
		"event: resync\n" + `data: {"kind":"resync"}` + "\n\n" +
		"event: error\n" + `data: {"code":"gone","message":"what was watched is not there any more","retryable":false}` + "\n\n"
	if got.status != 200 || got.header.Get("Content-Type") != "text/event-stream" || got.body != want {
		t.Errorf("%d %v\n%s\nwant\n%s", got.status, got.header, got.body, want)
	}
	<-r.double.watcher.(*told).closed
}

// An idle watch beats, and a client that goes away closes it.
func TestWatchBeatsAndIsClosed(t *testing.T) {
	r := newRig(t, controlListener, func(_ *Config, p *pace) { p.heartbeat = 5 * time.Millisecond })
	w := &told{closed: make(chan struct{})}
	r.double.watcher = w
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+r.addr+boxURL+"/files/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testToken)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	begin := make([]byte, len("event: ready\ndata: {}\n\n: beat\n\n: beat\n\n"))
	if _, err := io.ReadFull(res.Body, begin); err != nil || !strings.HasSuffix(string(begin), ": beat\n\n: beat\n\n") {
		t.Errorf("%q, %v", begin, err)
	}
	if err := res.Body.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-w.closed:
	case <-ctx.Done():
		t.Error("the watcher was not closed")
	}
}
