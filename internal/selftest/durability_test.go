package selftest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"sandboxd"
)

// forgetful is a host, and what comes after its death, with one thing wrong. It
// has the methods that the durability checks call.
type forgetful struct {
	sandboxd.Host
	wrong   string
	deaths  int
	written map[string][]byte
	gone    bool
}

// mortal is its server.
type mortal struct{ *forgetful }

func (m mortal) Start(context.Context) (sandboxd.Host, error) { return m.forgetful, nil }
func (m mortal) Kill() error                                  { m.deaths++; return nil }

func (f *forgetful) is(wrong string) bool { return f.deaths > 0 && f.wrong == wrong }

func (f *forgetful) sandbox() sandboxd.Sandbox {
	sb := sandboxd.Sandbox{ID: "one", State: sandboxd.StateRunning, Generation: 1}
	if f.is("environment") {
		sb.Generation = 2
	}
	return sb
}

func (f *forgetful) Open(context.Context, sandboxd.OpenRequest) (sandboxd.Sandbox, bool, error) {
	return f.sandbox(), true, nil
}

func (f *forgetful) Get(context.Context, string) (sandboxd.Sandbox, error) { return f.sandbox(), nil }

func (f *forgetful) Stop(context.Context, string) (sandboxd.Sandbox, error) {
	return f.sandbox(), nil
}

func (f *forgetful) Delete(context.Context, string) error { f.gone = true; return nil }

func (f *forgetful) Files(context.Context, string) (sandboxd.Files, error) {
	return workspaceOf{f: f}, nil
}

// workspaceOf are its files.
type workspaceOf struct {
	sandboxd.Files
	f *forgetful
}

func (w workspaceOf) Write(_ context.Context, path string, body io.Reader, _ sandboxd.WriteOptions) (sandboxd.FileInfo, error) {
	content, err := io.ReadAll(body)
	w.f.written[path] = content
	return sandboxd.FileInfo{}, err
}

type reader struct{ *bytes.Reader }

func (reader) Close() error            { return nil }
func (reader) Info() sandboxd.FileInfo { return sandboxd.FileInfo{} }

func (w workspaceOf) Open(_ context.Context, path string) (sandboxd.FileReader, error) {
	content := w.f.written[path]
	if w.f.is("file") {
		content = content[:len(content)-1]
	}
	return reader{bytes.NewReader(content)}, nil
}

func (f *forgetful) StartCommand(context.Context, string, sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
	return sandboxd.Command{ID: "counter"}, true, nil
}

// counted is the output of the prober, and its ending.
type counted struct{ frames []sandboxd.Frame }

func (c *counted) Next(context.Context) (sandboxd.Frame, error) {
	if len(c.frames) == 0 {
		return sandboxd.Frame{}, io.EOF
	}
	frame := c.frames[0]
	c.frames = c.frames[1:]
	return frame, nil
}

func (c *counted) Close() error { return nil }

func (f *forgetful) FollowCommand(_ context.Context, _, _ string, opts sandboxd.FollowOptions) (sandboxd.CommandStream, error) {
	var all strings.Builder
	for i := range countTo {
		if !f.is("a line") || i != countSeen+5 {
			fmt.Fprintln(&all, i+1)
		}
	}
	text := all.String()
	if f.deaths == 0 {
		text = text[:strings.Index(text, fmt.Sprint(countSeen+1))]
	}
	code := 0
	ending := sandboxd.Ending{Cause: sandboxd.CauseExit, ExitCode: &code}
	if f.is("ending") {
		ending = sandboxd.Ending{Cause: sandboxd.CauseUnknown}
	}
	if f.is("twice") {
		opts.Offset -= 3
	}
	return &counted{[]sandboxd.Frame{{Stream: sandboxd.StreamStdout, Offset: opts.Offset, Data: []byte(text[opts.Offset:])}, {Ending: &ending}}}, nil
}

// TestDurability loses one thing at a time.
func TestDurability(t *testing.T) {
	for wrong, mechanism := range map[string]string{"": "", "environment": "adoption", "file": "files", "a line": "journal", "twice": "journal", "ending": "journal"} {
		f := &forgetful{wrong: wrong, written: map[string][]byte{}}
		lines, err := (&trial{Config: Config{Server: mortal{f}}}).durability(t.Context())
		if err != nil {
			t.Errorf("%q: %v", wrong, err)
		}
		var want []string
		if mechanism != "" {
			want = []string{mechanism}
		}
		if failed := (Report{Lines: lines}).Failed(); !slices.Equal(failed, want) || len(lines) != 3 {
			t.Errorf("%q lost: %d lines, these fail: %q", wrong, len(lines), failed)
		}
		if !f.gone || f.deaths != 1 {
			t.Errorf("%q: deleted %v, deaths %d", wrong, f.gone, f.deaths)
		}
	}
}
