package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxd"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/host"
	"sandboxd/internal/store"
)

// newHost is a whole host on the fake driver.
func newHost(t *testing.T) sandboxd.Host { return newHostIn(t, fake.NewWorld(fake.Config{})) }

func newHostIn(t *testing.T, world *fake.World) sandboxd.Host {
	t.Helper()
	driver := fake.New(world)
	h, err := host.New(t.Context(), host.Config{DataDir: t.TempDir(), Store: store.NewMemory(), Drivers: []sandboxd.Driver{driver},
		UIDs: sandboxd.UIDPool{First: 200000, Last: 200099}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.StopAll(context.Background()); err != nil {
			t.Error(err)
		}
		h.Close()
		driver.Close()
	})
	return h
}

// connect starts a session over pipes in memory. end ends it and waits until the
// server has cleaned up.
func connect(t *testing.T, h sandboxd.Host, opts Options) (c *mcp.ClientSession, end func()) {
	t.Helper()
	ours, theirs := mcp.NewInMemoryTransports()
	served := make(chan error, 1)
	go func() { served <- Serve(context.Background(), h, opts, theirs) }()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		c.Close()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the session did not end")
		}
	}
}

// call calls a tool; its text and data come back.
func call(t *testing.T, c *mcp.ClientSession, tool string, args map[string]any) (*mcp.CallToolResult, string) {
	t.Helper()
	result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	text := ""
	for _, part := range result.Content {
		if part, ok := part.(*mcp.TextContent); ok {
			text += part.Text
		}
	}
	return result, text
}

type args = map[string]any

func TestTheBriefingAndTheTools(t *testing.T) {
	c, end := connect(t, newHost(t), Options{Version: "9"})
	defer end()
	if got := c.InitializeResult(); got.Instructions != briefing || got.ServerInfo.Name != "sandboxd" || got.ServerInfo.Version != "9" {
		t.Errorf("initialize: %+v", got)
	}
	tools, err := c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
		if tool.Description == "" || tool.InputSchema == nil {
			t.Errorf("%s has no description or schema", tool.Name)
		}
	}
	if got := strings.Join(names, " "); got != "edit glob grep ls open read remove run write" {
		t.Errorf("tools %s", got)
	}
}

func TestOneSandboxMadeAtFirstUse(t *testing.T) {
	h := newHost(t)
	c, end := connect(t, h, Options{})
	count := func(want int) sandboxd.Sandbox {
		t.Helper()
		list, err := h.List(t.Context(), "")
		if err != nil || len(list) != want {
			t.Fatalf("%d sandboxes, %v; want %d", len(list), err, want)
		}
		if want == 0 {
			return sandboxd.Sandbox{}
		}
		return list[0]
	}
	count(0)
	if _, text := call(t, c, "open", nil); !strings.Contains(text, "is running. Files: /workspace") {
		t.Errorf("open: %s", text)
	}
	call(t, c, "write", args{"path": "a", "content": "x"})
	first := count(1)

	// Deleted under the session: one refusal that says so, then a new one.
	if err := h.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	result, text := call(t, c, "read", args{"path": "a"})
	if !result.IsError || !strings.Contains(text, "gone: the sandbox was deleted\nhint: its files are lost") {
		t.Errorf("read in a deleted sandbox: %s", text)
	}
	call(t, c, "ls", nil)
	if second := count(1); second.ID == first.ID {
		t.Error("the deleted sandbox is still there")
	}
	end()
	count(0)
}

// TestTheEnvironmentEndsUnderTheSession: the sandbox, its files and its owner stay.
func TestTheEnvironmentEndsUnderTheSession(t *testing.T) {
	world := fake.NewWorld(fake.Config{})
	h := newHostIn(t, world)
	c, end := connect(t, h, Options{})
	call(t, c, "write", args{"path": "a", "content": "still here"})
	list, err := h.List(t.Context(), "")
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if !world.Kill(list[0].ID) {
		t.Fatal("nothing to kill")
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); ; {
		if sb, err := h.Get(t.Context(), list[0].ID); err == nil && sb.State == sandboxd.StateCold {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the end was not noticed")
		}
	}
	if result, text := call(t, c, "run", args{"command": "true"}); !result.IsError || !strings.Contains(text, "hint: the files are kept; open starts") {
		t.Errorf("run without an environment: %s", text)
	}
	if result, text := call(t, c, "open", nil); result.IsError || !strings.Contains(text, list[0].ID) {
		t.Errorf("open: %s", text)
	}
	if _, text := call(t, c, "read", args{"path": "a"}); text != "still here" {
		t.Errorf("read: %s", text)
	}
	end()
	if list, err := h.List(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("the session left %v, %v", list, err)
	}
}

func TestWhoseSandboxIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		before bool
		opts   Options
		kept   bool
	}{
		"its own":            {false, Options{Key: "mine"}, false},
		"its own, kept":      {false, Options{Key: "mine", Keep: true}, true},
		"that of another":    {true, Options{Key: "mine"}, true},
		"another's and kept": {true, Options{Key: "mine", Keep: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			if c.before {
				if _, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Key: "mine"}); err != nil {
					t.Fatal(err)
				}
			}
			session, end := connect(t, h, c.opts)
			call(t, session, "ls", nil)
			end()
			list, err := h.List(t.Context(), "mine")
			if err != nil || (len(list) == 1) != c.kept {
				t.Errorf("%d left, %v; kept should be %t", len(list), err, c.kept)
			}
		})
	}
}

func TestRun(t *testing.T) {
	c, end := connect(t, newHost(t), Options{})
	defer end()
	for name, row := range map[string]struct {
		args args
		want []string
		code any
	}{
		"output":       {args{"argv": []string{"echo", "hi there"}}, []string{"exit code 0\n--- stdout\nhi there\n"}, 0.0},
		"a failure":    {args{"argv": []string{"exit", "3"}}, []string{"exit code 3\n"}, 3.0},
		"stdin":        {args{"argv": []string{"cat"}, "stdin": "typed"}, []string{"--- stdout\ntyped\n"}, 0.0},
		"a time limit": {args{"argv": []string{"sleep", "60"}, "timeout_s": 0.2}, []string{"exit code 124 (timeout", "remedy: "}, 124.0},
		"much output":  {args{"argv": []string{"flood", "200000"}}, []string{"left out ...]"}, 0.0},
	} {
		t.Run(name, func(t *testing.T) {
			result, text := call(t, c, "run", row.args)
			for _, want := range row.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in %.200q", want, text)
				}
			}
			if n := len([]rune(text)); n > maxChars+500 {
				t.Errorf("%d characters", n)
			}
			data, ok := result.StructuredContent.(map[string]any)
			if !ok || data["exit_code"] != row.code || result.IsError {
				t.Errorf("data %v, error %t", result.StructuredContent, result.IsError)
			}
		})
	}
	for name, bad := range map[string]args{"neither": {}, "both": {"command": "x", "argv": []string{"x"}}} {
		if result, text := call(t, c, "run", bad); !result.IsError || !strings.HasPrefix(text, "invalid_request: command: ") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if result, text := call(t, c, "run", args{"nonsense": 1}); !result.IsError || !strings.Contains(text, "nonsense") {
		t.Errorf("unknown argument: %s", text)
	}
}

func TestFiles(t *testing.T) {
	c, end := connect(t, newHost(t), Options{})
	defer end()
	if _, text := call(t, c, "ls", nil); text != "(empty)\n" {
		t.Errorf("ls: %q", text)
	}
	var numbered strings.Builder
	for i := 1; i <= 5000; i++ {
		fmt.Fprintf(&numbered, "line %d\n", i)
	}
	call(t, c, "write", args{"path": "d/n.txt", "content": numbered.String()})
	call(t, c, "write", args{"path": "d/u.txt", "content": "grün"})
	call(t, c, "write", args{"path": "d/u.txt", "content": "er\n", "append": true})
	for name, row := range map[string]struct {
		args args
		want string
	}{
		"whole":    {args{"path": "d/u.txt"}, "grüner\n"},
		"a part":   {args{"path": "d/n.txt", "offset": 2, "limit": 2}, "line 2\nline 3\n[lines 2 to 3 of 5000]\n"},
		"the end":  {args{"path": "d/n.txt", "offset": 5000}, "line 5000\n[lines 5000 to 5000 of 5000]\n"},
		"no path":  {args{"path": "/workspace/d/u.txt"}, "grüner\n"},
		"too far":  {args{"path": "d/n.txt", "offset": 5001}, "range_not_satisfiable: the file has 5000 lines and the reading would begin at 5001"},
		"negative": {args{"path": "d/n.txt", "offset": -1}, "invalid_request: offset: offset and limit are at least 1"},
	} {
		if _, text := call(t, c, "read", row.args); text != row.want {
			t.Errorf("read %s: %q, want %q", name, text, row.want)
		}
	}
	if _, text := call(t, c, "read", args{"path": "d/n.txt"}); !strings.HasSuffix(text, "line 2000\n[lines 1 to 2000 of 5000]\n") {
		t.Errorf("read without a limit ends %q", text[len(text)-60:])
	}
	if _, text := call(t, c, "ls", args{"depth": 2}); text != "d/\nd/n.txt (48893 bytes)\nd/u.txt (8 bytes)\n" {
		t.Errorf("ls: %q", text)
	}
	call(t, c, "remove", args{"path": "d"})
	for _, tool := range []string{"read", "remove"} {
		if result, text := call(t, c, tool, args{"path": "d"}); !result.IsError || !strings.HasPrefix(text, "not_found: ") {
			t.Errorf("%s: %s", tool, text)
		}
	}
	if result, _ := call(t, c, "read", args{"path": "../x"}); !result.IsError {
		t.Error("a path that leaves was read")
	}
	if result, text := call(t, c, "write", args{"path": "b", "content": "%%", "base64": true}); !result.IsError || text != "invalid_request: content: it is not base64" {
		t.Errorf("bad base64: %s", text)
	}
}

func TestPicturesAndOtherBinaryFiles(t *testing.T) {
	h := newHost(t)
	c, end := connect(t, h, Options{Key: "pictures"})
	defer end()
	call(t, c, "open", nil)
	list, err := h.List(t.Context(), "pictures")
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	files, err := h.Files(t.Context(), list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		if _, err := files.Write(t.Context(), name, bytes.NewReader(data), sandboxd.WriteOptions{Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
	}
	var drawn bytes.Buffer
	if err := png.Encode(&drawn, image.NewRGBA(image.Rect(0, 0, 4, 4))); err != nil {
		t.Fatal(err)
	}
	put("p.png", drawn.Bytes())
	put("p.gif", []byte("GIF89a\x01\x00\x01\x00"))
	put("p.jpg", []byte("\xff\xd8\xff\xe0rest"))
	put("p.webp", []byte("RIFF\x10\x00\x00\x00WEBPVP8 "))
	for name, kind := range map[string]string{"p.png": "image/png", "p.gif": "image/gif", "p.jpg": "image/jpeg", "p.webp": "image/webp"} {
		result, text := call(t, c, "read", args{"path": name})
		if len(result.Content) != 1 {
			t.Fatalf("%s: %s", name, text)
		}
		got, ok := result.Content[0].(*mcp.ImageContent)
		if !ok || got.MIMEType != kind || name == "p.png" && !bytes.Equal(got.Data, drawn.Bytes()) {
			t.Errorf("%s: %T %s", name, result.Content[0], text)
		}
	}

	put("big.png", append(drawn.Bytes(), make([]byte, maxImage)...))
	noise := make([]byte, 3000)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	put("noise", append([]byte("\x00"), noise...))
	put("a.zip", append([]byte("PK\x03\x04\x00"), noise...))
	for name, want := range map[string]refusal{
		"big.png": {Code: sandboxd.ClassTooLarge, Kind: "image/png", Size: int64(drawn.Len() + maxImage)},
		"noise":   {Code: sandboxd.ClassUnsupported, Kind: "application/octet-stream", Size: 3001},
		"a.zip":   {Code: sandboxd.ClassUnsupported, Kind: "application/zip", Size: 3005},
	} {
		result, text := call(t, c, "read", args{"path": name})
		raw, err := json.Marshal(result.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Error refusal }
		if err := json.Unmarshal(raw, &got); err != nil || !result.IsError {
			t.Fatalf("%s: %v, %s", name, err, text)
		}
		if got.Error.Code != want.Code || got.Error.Kind != want.Kind || got.Error.Size != want.Size || got.Error.Hint == "" {
			t.Errorf("%s: %+v, want %+v", name, got.Error, want)
		}
	}
}
