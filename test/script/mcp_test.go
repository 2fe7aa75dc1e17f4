package script

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// TestAgent is what an agent does with one line of configuration: it starts
// `sandboxd mcp` as a child process.
func TestAgent(t *testing.T) {
	captest.Root(t)
	data := t.TempDir()
	s, err := start(data, "--driver", "process")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.End(syscall.SIGINT); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command(server.Program("sandboxd"), "mcp")
	cmd.Env = environ(data, s.URL)
	c, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(c.InitializeResult().Instructions, "/workspace") {
		t.Error("no briefing")
	}
	call := func(tool string, args map[string]any) *mcp.CallToolResult {
		t.Helper()
		result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil || result.IsError {
			t.Fatalf("%s: %v, %+v", tool, err, result)
		}
		return result
	}
	text := func(r *mcp.CallToolResult) string { return r.Content[0].(*mcp.TextContent).Text }
	call("open", nil)
	call("write", map[string]any{"path": "hello.py", "content": "print('hello from', __file__)\n"})
	if got := text(call("run", map[string]any{"command": "python3 hello.py; pwd"})); !strings.Contains(got, "hello from /workspace/hello.py\n/workspace") &&
		!strings.Contains(got, "hello from hello.py\n/workspace") {
		t.Errorf("run: %s", got)
	}
	if got := text(call("read", map[string]any{"path": "hello.py"})); got != "print('hello from', __file__)\n" {
		t.Errorf("read: %q", got)
	}
	if got := text(call("ls", nil)); !strings.Contains(got, "hello.py (30 bytes)") {
		t.Errorf("ls: %s", got)
	}
	call("remove", map[string]any{"path": "hello.py"})
	if err := c.Close(); err != nil {
		t.Errorf("the child did not end well: %v", err)
	}
	ps := exec.Command(server.Program("sandboxd"), "ps", "--json")
	ps.Env = environ(data, s.URL)
	if out, err := ps.CombinedOutput(); err != nil || string(out) != "[]\n" {
		t.Errorf("after the session: %s, %v", out, err)
	}
}
