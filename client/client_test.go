package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sandboxd"
)

const boxID = "abcdefghijklmnopqrst"

// serve makes a client of a scripted server.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(handler)
	c, err := New(srv.URL+"/", "the-token")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		srv.Close()
	})
	return c
}

func TestErrorsComeBackAsTheyWere(t *testing.T) {
	code := 137
	for _, class := range []sandboxd.Class{sandboxd.ClassInvalid, sandboxd.ClassUnauthorized, sandboxd.ClassForbidden, sandboxd.ClassNotFound,
		sandboxd.ClassConflict, sandboxd.ClassGone, sandboxd.ClassPrecondition, sandboxd.ClassTooLarge, sandboxd.ClassRange, sandboxd.ClassBusy,
		sandboxd.ClassCapacity, sandboxd.ClassUnsupported, sandboxd.ClassUnavailable, sandboxd.ClassNoSpace, sandboxd.ClassInternal} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer the-token" {
				t.Errorf("secret %q", r.Header.Get("Authorization"))
			}
			w.WriteHeader(class.HTTPStatus())
			_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": class, "message": "limits.cpus: too many", "field": "limits.cpus",
				"hint": "take fewer", "retry_s": 2.5, "ending": sandboxd.Ending{Cause: sandboxd.CauseMemory, ExitCode: &code}}})
		})
		_, err := c.Get(context.Background(), boxID)
		var e *sandboxd.Error
		if !errors.As(err, &e) || e.Class != class || e.Field != "limits.cpus" || e.Message != "too many" || e.Hint != "take fewer" ||
			e.RetryS != 2.5 || e.Ending == nil || e.Ending.Cause != sandboxd.CauseMemory || *e.Ending.ExitCode != 137 {
			t.Errorf("%s came back as %#v", class, err)
		}
	}
}

func TestAnswersOfOtherServers(t *testing.T) {
	for status, class := range map[int]sandboxd.Class{404: sandboxd.ClassNotFound, 502: sandboxd.ClassInternal, 405: sandboxd.ClassInvalid,
		302: sandboxd.ClassInternal, 503: sandboxd.ClassUnavailable} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://elsewhere.example/")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<html>")
		})
		_, err := c.Get(context.Background(), boxID)
		var e *sandboxd.Error
		if !errors.As(err, &e) || e.Class != class || e.Hint == "" {
			t.Errorf("%d came back as %v (%s)", status, err, sandboxd.ClassOf(err))
		}
	}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":`) })
	if _, err := c.Get(context.Background(), boxID); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable {
		t.Errorf("half an answer came back as %v", err)
	}
}

func TestNobodyThere(t *testing.T) {
	c, err := New("http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	var e *sandboxd.Error
	if _, err := c.List(context.Background(), ""); !errors.As(err, &e) || e.Class != sandboxd.ClassUnavailable || e.Hint == "" {
		t.Errorf("%v", err)
	}
	for _, address := range []string{"", "127.0.0.1:9090", "ftp://x", "http://", "http://u:p@x", "http://x?y=z", "http://[::1"} {
		if _, err := New(address, ""); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
			t.Errorf("%q: %v", address, err)
		}
	}
	if _, err := New("http://x", "a\nb"); sandboxd.ClassOf(err) != sandboxd.ClassInvalid {
		t.Errorf("%v", err)
	}
}

func TestIdsCannotNameOtherRoutes(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete && !strings.HasPrefix(r.RequestURI, "/v1/sandboxes/") {
			t.Errorf("%s", r.RequestURI)
		}
		w.WriteHeader(http.StatusNotFound)
	})
	for _, id := range []string{"", ".", "..", "../../x", "a/b", "a?b=c", "a#b", "%2e%2e", "a\x00"} {
		if err := c.Delete(context.Background(), id); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestStreams(t *testing.T) {
	ending := `{"ending":{"cause":"exit","exit_code":0}}` + "\n"
	for name, tc := range map[string]struct {
		body   string
		follow bool
		want   string // data and gaps, in order
		class  sandboxd.Class
	}{
		"whole":                    {`{"stream":"stdout","offset":0,"data":"a"}` + "\n\n\n" + `{"stream":"stderr","offset":1,"b64":"/w=="}` + "\n" + ending, true, "a\xffE", ""},
		"gap":                      {`{"gap":{"from":0,"to":5}}` + "\n" + ending, true, "GE", ""},
		"what is there":            {`{"stream":"stdout","offset":0,"data":"a"}` + "\n", false, "a", ""},
		"no ending":                {`{"stream":"stdout","offset":0,"data":"a"}` + "\n", true, "a", sandboxd.ClassUnavailable},
		"half a line":              {`{"stream":"stdout","offset":0,"data":"a"}` + "\n" + `{"endi`, true, "a", sandboxd.ClassUnavailable},
		"half a line, no follow":   {`{"stream":"std`, false, "", sandboxd.ClassUnavailable},
		"not JSON":                 {"hello\n" + ending, true, "", sandboxd.ClassUnavailable},
		"error":                    {`{"error":{"code":"gone","message":"it went"}}` + "\n", true, "", sandboxd.ClassGone},
		"error of an unknown kind": {`{"error":{"code":"new_kind","message":"it went"}}` + "\n", true, "", sandboxd.ClassInternal},
		"unknown lines":            {`{"command_id":"c"}` + "\n" + `{"news":1}` + "\n" + ending, true, "E", ""},
	} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("offset") != "3" || (r.URL.Query().Get("follow") == "true") != tc.follow {
				t.Errorf("%s", r.URL)
			}
			_, _ = io.WriteString(w, tc.body)
		})
		s, err := c.FollowCommand(context.Background(), boxID, "c", sandboxd.FollowOptions{Offset: 3, Follow: tc.follow})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for {
			var f sandboxd.Frame
			if f, err = s.Next(context.Background()); err != nil {
				break
			}
			got += string(f.Data)
			if f.Gap != nil {
				got += "G"
			}
			if f.Ending != nil {
				got += "E"
			}
		}
		if tc.class == "" && err != io.EOF || tc.class != "" && sandboxd.ClassOf(err) != tc.class || got != tc.want {
			t.Errorf("%s: %q, %v (%s)", name, got, err, sandboxd.ClassOf(err))
		}
		if _, again := s.Next(context.Background()); !errors.Is(again, err) {
			t.Errorf("%s: a second read answers %v after %v", name, again, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAWaitForOutputEndsWithItsContext(t *testing.T) {
	gone := make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	})
	s, err := c.FollowCommand(context.Background(), boxID, "c", sandboxd.FollowOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Next(ctx); sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the server was not told")
	}
}

func TestAWalkWithoutItsEndIsNotWhole(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/walk") {
			_, _ = io.WriteString(w, `{"path":"a","type":"file","mode":"0755","size":3}`+"\n")
			return
		}
		_, _ = io.WriteString(w, `{}`)
	})
	files, err := c.Files(context.Background(), boxID)
	if err != nil {
		t.Fatal(err)
	}
	var seen []sandboxd.FileInfo
	_, err = files.Walk(context.Background(), "", func(info sandboxd.FileInfo) error {
		seen = append(seen, info)
		return nil
	})
	if sandboxd.ClassOf(err) != sandboxd.ClassUnavailable || len(seen) != 1 || seen[0].Mode != 0o755 || seen[0].Size != 3 {
		t.Errorf("%v %+v", err, seen)
	}
}

func TestAFileThatChangedIsNotReadOn(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/content"):
			_, _ = io.WriteString(w, `{}`)
		case r.Header.Get("Range") == "":
			w.Header().Set("ETag", `"one"`)
			_, _ = io.WriteString(w, "0123456789")
		case r.Header.Get("If-Match") != `"one"` || r.Header.Get("Range") != "bytes=5-":
			t.Errorf("%v", r.Header)
		default:
			w.WriteHeader(http.StatusPreconditionFailed)
		}
	})
	files, err := c.Files(context.Background(), boxID)
	if err != nil {
		t.Fatal(err)
	}
	f, err := files.Open(context.Background(), "f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(5, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(make([]byte, 1)); sandboxd.ClassOf(err) != sandboxd.ClassPrecondition {
		t.Errorf("%v", err)
	}
}

func TestTerminal(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("command_id") == "none" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":{"code":"not_found","message":"no such command"}}`)
			return
		} else if q.Get("cols") != "90" || q.Get("rows") != "30" {
			t.Errorf("%s", r.URL)
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Errorf("%v", err)
			return
		}
		defer conn.CloseNow()
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(`{"command_id":"sh"}`))
		for range 2 { // a resize, then input: both are echoed
			_, data, err := conn.Read(r.Context())
			if err != nil {
				t.Errorf("%v", err)
				return
			}
			_ = conn.Write(r.Context(), websocket.MessageBinary, data)
		}
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(`{"ending":{"cause":"exit","exit_code":5}}`))
		_ = conn.Close(websocket.StatusNormalClosure, "")
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := c.Terminal(ctx, boxID, TerminalOptions{Command: "none"}); sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		t.Fatalf("%v", err)
	}
	term, err := c.Terminal(ctx, boxID, TerminalOptions{Size: sandboxd.TTY{Cols: 90, Rows: 30}})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	if err := term.Resize(sandboxd.TTY{Cols: 10, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := term.Write([]byte("ls")); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(term)
	if err != nil || string(all) != `{"resize":{"cols":10,"rows":20}}ls` {
		t.Fatalf("%q %v", all, err)
	}
	if term.CommandID() != "sh" || term.Ending() == nil || *term.Ending().ExitCode != 5 {
		t.Fatalf("%s %+v", term.CommandID(), term.Ending())
	}
}
