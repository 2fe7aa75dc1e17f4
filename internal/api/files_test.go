package api

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestContentAsHTTPHasIt(t *testing.T) {
	r := newRig(t, controlListener, nil)
	r.double.content = []byte("0123456789")
	for _, tc := range []struct {
		method string
		header []string
		status int
		body   string
	}{
		{"GET", nil, 200, "0123456789"},
		{"HEAD", nil, 200, ""},
		{"GET", []string{"Range: bytes=2-4"}, 206, "234"},
		{"GET", []string{"Range: bytes=-3"}, 206, "789"},
		{"GET", []string{"Range: bytes=5-", `If-Range: "v1"`}, 206, "56789"},
		{"GET", []string{"Range: bytes=5-", `If-Range: "v0"`}, 200, "0123456789"},
		{"GET", []string{`If-None-Match: "v1"`}, 304, ""},
		{"GET", []string{`If-None-Match: "v0"`}, 200, "0123456789"},
		{"GET", []string{`If-Match: "v1"`}, 200, "0123456789"},
	} {
		got := r.do(tc.method, boxURL+"/files/content?path=f", "", tc.header...)
		if got.status != tc.status || got.body != tc.body || got.header.Get("ETag") != `"v1"` {
			t.Errorf("%s %v: %+v", tc.method, tc.header, got)
		}
		if tc.status < 300 && (got.header.Get("Content-Type") != octets || got.header.Get("X-Content-Type-Options") != "nosniff" ||
			got.header.Get("X-File-Mode") != "0640") {
			t.Errorf("%s %v: %v", tc.method, tc.header, got.header)
		}
	}
	got := r.do("GET", boxURL+"/files/content?path=f", "", "Range: bytes=10-")
	if got.status != 416 || got.envelope(t).Code != "range_not_satisfiable" || got.header.Get("Content-Range") != "bytes */10" {
		t.Errorf("%+v", got)
	}
	got = r.do("GET", boxURL+"/files/content?path=f", "", `If-Match: "v0"`)
	if got.status != 412 || got.envelope(t).Code != "precondition_failed" {
		t.Errorf("%+v", got)
	}
}

func TestWriteAnswersTheEntry(t *testing.T) {
	r := newRig(t, controlListener, nil)
	got := r.do("PUT", boxURL+"/files?path=a%2F%FF", "data")
	if got.status != 200 || got.header.Get("ETag") != `"v2"` || !strings.Contains(got.body, `"path_b64":"YS//"`) || !strings.Contains(got.body, `"size":4`) {
		t.Errorf("%+v", got)
	}
	if got := r.do("PUT", boxURL+"/files?path=a", "data", `If-None-Match: "v1"`); got.status != 400 {
		t.Errorf("%+v", got)
	}
}

func TestHalfATarDoesNotLookWhole(t *testing.T) {
	r := newRig(t, controlListener, nil)
	_, br := r.dial(head("GET", boxURL+"/files/tar"))
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v %v", res, err)
	}
	if n, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Fatalf("%d bytes and no error", n)
	}
	if !strings.Contains(r.log.String(), "the disk went away") {
		// The line is written when the handler is done, before the connection breaks.
		t.Errorf("%s", r.log)
	}
}
