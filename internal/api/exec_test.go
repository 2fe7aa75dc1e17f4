package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxd"
	"sandboxd/internal/excerpt"
)

// endless is a stream that never stops; closed tells that it was let go.
type endless struct {
	at     int64
	closed chan struct{}
}

func (e *endless) Next(ctx context.Context) (sandboxd.Frame, error) {
	if err := ctx.Err(); err != nil {
		return sandboxd.Frame{}, err
	}
	data := bytes.Repeat([]byte{'x'}, 32<<10)
	e.at += int64(len(data))
	return sandboxd.Frame{Stream: sandboxd.StreamStdout, Offset: e.at - int64(len(data)), Data: data}, nil
}

func (e *endless) Close() error {
	close(e.closed)
	return nil
}

const stream = "Accept: application/x-ndjson"

func TestFrames(t *testing.T) {
	errOut := func(offset int64, data string) sandboxd.Frame {
		return sandboxd.Frame{Stream: sandboxd.StreamStderr, Offset: offset, Data: []byte(data)}
	}
	code := `{"ending":{"cause":"exit","exit_code":0,"cpu_s":0,"wall_s":0,"at":"0001-01-01T00:00:00Z"}}`
	for name, tc := range map[string]struct {
		frames []sandboxd.Frame
		last   error
		want   []string
	}{
		"plain": {[]sandboxd.Frame{out(0, "<a>\n"), errOut(4, "b"), ended(0)}, io.EOF, []string{
			`{"stream":"stdout","offset":0,"data":"<a>\n"}`, `{"stream":"stderr","offset":4,"data":"b"}`, code}},
		"bytes": {[]sandboxd.Frame{out(0, "a\xff\x00"), ended(0)}, io.EOF, []string{
			`{"stream":"stdout","offset":0,"b64":"Yf8A"}`, code}},
		"NUL": {[]sandboxd.Frame{out(0, "a\x00"), ended(0)}, io.EOF, []string{
			`{"stream":"stdout","offset":0,"b64":"YQA="}`, code}},
		"a character that a border cuts": {[]sandboxd.Frame{out(0, "€\xe2"), out(4, "\x82"), out(5, "\xac!"), ended(0)}, io.EOF, []string{
			`{"stream":"stdout","offset":0,"data":"€"}`, `{"stream":"stdout","offset":3,"data":"€!"}`, code}},
		"another stream in between": {[]sandboxd.Frame{out(0, "\xe2"), errOut(1, "x"), out(2, "\x82\xac"), ended(0)}, io.EOF, []string{
			`{"stream":"stdout","offset":0,"b64":"4g=="}`, `{"stream":"stderr","offset":1,"data":"x"}`, `{"stream":"stdout","offset":2,"b64":"gqw="}`, code}},
		"half a character last": {[]sandboxd.Frame{out(0, "a\xf0\x9f"), ended(0)}, io.EOF, []string{
			`{"stream":"stdout","offset":0,"data":"a"}`, `{"stream":"stdout","offset":1,"b64":"8J8="}`, code}},
		"gap": {[]sandboxd.Frame{out(0, "\xe2"), {Gap: &sandboxd.Gap{From: 1, To: 9}}, out(9, "z"), ended(0)}, io.EOF, []string{
			`{"stream":"stdout","offset":0,"b64":"4g=="}`, `{"gap":{"from":1,"to":9}}`, `{"stream":"stdout","offset":9,"data":"z"}`, code}},
		"no ending": {[]sandboxd.Frame{out(0, "a")}, io.EOF, []string{`{"stream":"stdout","offset":0,"data":"a"}`}},
		"broken": {[]sandboxd.Frame{out(0, "a")}, sandboxd.Errorf(sandboxd.ClassUnavailable, "the link broke"), []string{
			`{"stream":"stdout","offset":0,"data":"a"}`, `{"error":{"code":"unavailable","message":"the link broke","retryable":true}}`}},
	} {
		r := newRig(t, controlListener, nil)
		r.double.frames = func() sandboxd.CommandStream { return &script{frames: tc.frames, last: tc.last} }
		got := r.do("GET", boxURL+"/commands/c1/output?offset=7", "")
		lines := strings.Split(strings.TrimSuffix(got.body, "\n"), "\n")
		if diff := cmp.Diff(tc.want, lines); diff != "" || got.status != 200 || got.header.Get("Content-Type") != ndjson {
			t.Errorf("%s: %d %s", name, got.status, diff)
		}
		if len(r.double.offsets) != 1 || r.double.offsets[0] != 7 {
			t.Errorf("%s: read from %v", name, r.double.offsets)
		}
	}
}

func TestIdleStreamsBeatAndHalfACharacterIsNotKeptBack(t *testing.T) {
	r := newRig(t, controlListener, func(_ *Config, p *pace) { p.heartbeat = 100 * time.Millisecond })
	r.double.frames = func() sandboxd.CommandStream { return &script{frames: []sandboxd.Frame{out(0, "\xe2")}} }
	_, br := r.dial(head("GET", boxURL+"/commands/c1/output?follow=1"))
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	body := bufio.NewReader(res.Body)
	for _, want := range []string{`{"stream":"stdout","offset":0,"b64":"4g=="}` + "\n", "\n", "\n"} {
		if line, err := body.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q %v, want %q", line, err, want)
		}
	}
}

func TestExecAsOneObject(t *testing.T) {
	r := newRig(t, controlListener, nil)
	r.double.frames = plays(out(0, "<hello>"), sandboxd.Frame{Stream: sandboxd.StreamStderr, Offset: 7, Data: []byte("\xff")}, ended(3))
	got := r.do("POST", boxURL+"/exec", `{"shell":"x"}`)
	var res Result
	if err := json.Unmarshal([]byte(got.body), &res); err != nil {
		t.Fatal(err)
	}
	if got.status != 200 || res.CommandID != "c1" || res.Stdout != "<hello>" || res.Stderr != "" || res.StderrB64 != "/w==" ||
		res.ExitCode == nil || *res.ExitCode != 3 || res.Ending == nil || res.Truncated != 0 {
		t.Fatalf("%+v", got)
	}
	r.double.frames = plays(out(0, "half"))
	if got := r.do("POST", boxURL+"/exec", `{"shell":"x"}`); got.status != 503 || got.envelope(t).Code != "unavailable" {
		t.Fatalf("output without an ending: %+v", got)
	}
	got = r.do("POST", boxURL+"/exec", `{"shell":"x","background":true}`)
	if got.status != 200 || !strings.HasPrefix(got.body, `{"command_id":"c1"`) {
		t.Fatalf("%+v", got)
	}
	r.double.start = func(sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
		return sandboxd.Command{}, false, sandboxd.Errorf(sandboxd.ClassConflict, "another command has this id")
	}
	if got := r.do("POST", boxURL+"/exec", `{"shell":"x"}`, stream); got.status != 409 || got.envelope(t).Code != "conflict" {
		t.Fatalf("%+v", got)
	}
}

func TestExecAsLines(t *testing.T) {
	r := newRig(t, controlListener, nil)
	r.double.frames = plays(out(0, "hi"), ended(0))
	got := r.do("POST", boxURL+"/exec", `{"argv":["x"]}`, stream)
	lines := strings.Split(got.body, "\n")
	if got.status != 200 || len(lines) != 4 || lines[0] != `{"command_id":"c1"}` || !strings.HasPrefix(lines[2], `{"ending":`) {
		t.Fatalf("%+v", got)
	}
}

func TestOutputThatIsNoTextIsShownInBase64(t *testing.T) {
	for text, want := range map[string]string{"plain ü": "", "\x80abc\xc3": base64.StdEncoding.EncodeToString([]byte("\x80abc\xc3"))} {
		e := excerpt.New(keepEach)
		if _, err := e.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		plain, b64, left := shown(e)
		if b64 != want || left != 0 || want == "" && plain != text || want != "" && plain != "" {
			t.Errorf("%q is shown as %q, %q, %d", text, plain, b64, left)
		}
	}
}

func TestAnAbandonedExecIsStopped(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		lines      bool
		started    bool
		stops      bool
	}{
		{"lines", `{"argv":["x"]}`, true, true, true},
		{"object", `{"argv":["x"]}`, false, true, true},
		{"someone else's", `{"argv":["x"],"command_id":"c1"}`, true, false, false},
		{"may be an orphan", `{"argv":["x"],"orphan_after_s":60}`, true, true, false},
	} {
		r := newRig(t, controlListener, nil)
		r.double.start = func(sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
			return sandboxd.Command{ID: "c1"}, tc.started, nil
		}
		closed := make(chan struct{})
		r.double.frames = func() sandboxd.CommandStream { return &script{closed: closed} }
		accept := "Accept: application/json"
		if tc.lines {
			accept = stream
		}
		conn, _ := r.dial(head("POST", boxURL+"/exec", accept, "Content-Length: "+itoa(len(tc.body))) + tc.body)
		r.await("the follow", func(d *double) bool { return len(d.offsets) == 1 })
		conn.Close()
		<-closed
		if tc.stops {
			r.await(tc.name+" is stopped", func(d *double) bool { return len(d.stopped) == 1 })
			continue
		}
		deadline := time.After(10 * time.Second)
		for !strings.Contains(r.log.String(), "/exec") { // the line is written after everything else
			select {
			case <-time.After(5 * time.Millisecond):
			case <-deadline:
				t.Fatal("the request did not end")
			}
		}
		if len(r.double.stopped) != 0 {
			t.Errorf("%s: it was stopped", tc.name)
		}
	}
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}
