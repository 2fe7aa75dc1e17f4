package sessions

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd"
)

// dir is the host's directory of a session's files, where a test plays the sandbox.
func (r *rig) dir(id string) string {
	r.t.Helper()
	rec, err := r.store.GetSession(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	// A file that is written by the front door is found by its name.
	name := "where-" + sandboxd.NewID()
	files, err := r.Files(r.t.Context(), rec.SandboxID)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := files.Write(r.t.Context(), name, strings.NewReader(""), sandboxd.WriteOptions{Size: -1}); err != nil {
		r.t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(r.data, "workspaces", id, "workspace", name))
	if err != nil || len(found) != 1 {
		r.t.Fatalf("%v %v", found, err)
	}
	if err := os.Remove(found[0]); err != nil {
		r.t.Fatal(err)
	}
	return filepath.Dir(found[0])
}

func (r *rig) put(dir, name, content string) {
	r.t.Helper()
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chtimes(at, time.Unix(0, 0), time.Date(2026, 10, 20, 8, 0, 0, 0, time.UTC)); err != nil {
		r.t.Fatal(err)
	}
}

func TestArchive(t *testing.T) {
	r := newRig(t)
	r.open(m{"session_id": "a"})
	dir := r.dir("a")
	r.put(dir, "uploads/b.txt", "one\r\ntwo\nthree")
	r.put(dir, "uploads/a.txt", "")
	r.put(dir, "uploads/deep/er/x", "x")
	r.put(dir, "latin.txt", "Gr\xf6\xdfe")
	r.put(dir, "latin", "Gr\xf6\xdfe")
	r.put(dir, "binary", "\x00\x01\x02\x80\x81\xff\xfe\x00")
	r.put(dir, "bom.md", "\xef\xbb\xbfhello")
	r.put(dir, "report.PDF", "%PDF-1.7")
	r.put(dir, "good.pdf", "%PDF-1.7\nTitle: A report\n--- Page 1 ---\ntext")
	r.put(dir, "big", strings.Repeat("x", 101))
	r.policy.MaxReadBytes = 100
	for name, target := range map[string]string{"out": "/etc/passwd", "dangling": "nowhere", "in": "/workspace/uploads/b.txt", "up": "../..", "uploads/dirlink": ".."} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r.do("DELETE", "/sessions/a", serviceToken, nil) // closed, and its files are there

	for _, c := range []struct {
		route  string
		body   m
		status int
		want   string
	}{
		{"ls", m{"path": "uploads"}, 200, `[{"name":"deep","path":"uploads/deep","is_dir":true,"size":null,"modified_at":null},` +
			`{"name":"a.txt","path":"uploads/a.txt","is_dir":false,"size":0,"modified_at":"2026-10-20T08:00:00+00:00"},` +
			`{"name":"b.txt","path":"uploads/b.txt","is_dir":false,"size":14,"modified_at":"2026-10-20T08:00:00+00:00"}]`},
		{"ls", m{"path": "/workspace/uploads/deep/er"}, 200, `[{"name":"x","path":"uploads/deep/er/x","is_dir":false,"size":1,"modified_at":"2026-10-20T08:00:00+00:00"}]`},
		{"ls", m{"path": "none"}, 404, `{"detail":"No such directory: none"}`},
		{"ls", m{"path": "bom.md"}, 404, `{"detail":"No such directory: bom.md"}`},
		{"ls", m{"path": "../other"}, 400, `{"detail":"Path '../other' is outside the workspace"}`},
		{"ls", m{"path": "up"}, 400, `{"detail":"Path 'up' is outside the workspace"}`},
		{"ls", m{}, 422, ""},
		{"ls", m{"path": "//workspace//uploads//deep/er"}, 200, `[{"name":"x","path":"uploads/deep/er/x","is_dir":false,"size":1,"modified_at":"2026-10-20T08:00:00+00:00"}]`},
		{"read", m{"path": "/workspace/uploads/b.txt", "offset": 1, "limit": 1}, 200, `{"content":"two\n\n[... 1 more lines. Use offset=2 to read more.]"}`},
		{"read", m{"path": "uploads/b.txt"}, 200, `{"content":"one\ntwo\nthree"}`},
		{"read", m{"path": "in"}, 200, `{"content":"one\ntwo\nthree"}`},
		{"read", m{"path": "uploads/b.txt", "offset": 3}, 200, `{"content":"[End of file]"}`},
		{"read", m{"path": "uploads/a.txt"}, 200, `{"content":"[End of file]"}`},
		{"read", m{"path": "uploads/b.txt", "offset": -1}, 422, ""},
		{"read", m{"path": "uploads/b.txt", "limit": 0}, 422, ""},
		{"read", m{"path": "latin.txt"}, 200, `{"content":"Größe"}`},
		{"read", m{"path": "latin"}, 200, `{"content":"Größe"}`},
		{"read", m{"path": "bom.md"}, 200, `{"content":"hello"}`},
		{"read", m{"path": "binary"}, 400, `{"detail":"[Binary File]"}`},
		{"read", m{"path": "report.PDF"}, 400, `{"detail":"Failed to parse PDF: it is damaged"}`},
		{"read", m{"path": "good.pdf", "offset": 1}, 200, `{"content":"--- Page 1 ---\ntext"}`},
		{"read", m{"path": "big"}, 400, `{"detail":"File is 101 bytes, over the 100-byte read limit"}`},
		{"read", m{"path": "out"}, 400, `{"detail":"Path 'out' is outside the workspace"}`},
		{"read", m{"path": "dangling"}, 404, `{"detail":"No such file: dangling"}`},
		{"read", m{"path": "/etc/passwd"}, 404, `{"detail":"No such file: etc/passwd"}`},
		{"read", m{"path": "uploads"}, 404, `{"detail":"No such file: uploads"}`},
		{"read_bytes", m{"path": "binary"}, 200, `{"content_b64":"AAECgIH//gA="}`},
		{"read_bytes", m{"path": "uploads/../../a/workspace/binary"}, 400, `{"detail":"Path 'uploads/../../a/workspace/binary' is outside the workspace"}`},
		{"tree", m{"path": "uploads"}, 200, `{"entries":[{"name":"deep","path":"uploads/deep","is_dir":true,"size":null,"modified_at":null},` +
			`{"name":"a.txt","path":"uploads/a.txt","is_dir":false,"size":0,"modified_at":"2026-10-20T08:00:00+00:00"},` +
			`{"name":"b.txt","path":"uploads/b.txt","is_dir":false,"size":14,"modified_at":"2026-10-20T08:00:00+00:00"},` +
			`{"name":"er","path":"uploads/deep/er","is_dir":true,"size":null,"modified_at":null},` +
			`{"name":"x","path":"uploads/deep/er/x","is_dir":false,"size":1,"modified_at":"2026-10-20T08:00:00+00:00"}],"truncated":false,"incomplete":false,"max_depth":6,"max_entries":2000}`},
		{"tree", m{"path": "none"}, 404, `{"detail":"No such directory: none"}`},
		{"tree", m{"max_depth": 65}, 422, ""},
		{"tree", m{"max_entries": 0}, 422, ""},
	} {
		got := r.do("POST", "/workspaces/a/"+c.route, serviceToken, c.body)
		if got.status != c.status || c.want != "" && got.body != c.want+"\n" {
			t.Errorf("%s %v: %d %s", c.route, c.body, got.status, got.body)
		}
	}
	if got := r.do("POST", "/workspaces/none/ls", serviceToken, m{"path": "."}); got.status != 404 || got.detail(t) != "No workspace for session: none" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if recs, _ := r.store.ListSessions(t.Context()); len(recs) != 0 {
		t.Error("reading opened a session")
	}
}

func TestTreesAreBoundedAndSaySo(t *testing.T) {
	r := newRig(t)
	r.open(m{"session_id": "a"})
	dir := r.dir("a")
	r.put(dir, "1/2/3/4/5/6/7/deep", "x")
	for i := range 20 {
		r.put(dir, fmt.Sprintf("many/%02d", i), "x")
	}
	tree := func(body m) tree {
		t.Helper()
		var got tree
		r.do("POST", "/workspaces/a/tree", serviceToken, body).json(t, &got)
		return got
	}
	if got := tree(m{}); !got.Truncated || got.Incomplete || len(got.Entries) != 27 {
		t.Errorf("%d entries, %v %v", len(got.Entries), got.Truncated, got.Incomplete)
	}
	if got := tree(m{"max_depth": 1, "path": "many"}); got.Truncated || len(got.Entries) != 20 {
		t.Errorf("%d entries", len(got.Entries))
	}
	if got := tree(m{"max_entries": 10, "path": "many"}); !got.Truncated || len(got.Entries) != 10 {
		t.Errorf("%d entries", len(got.Entries))
	}
	if got := tree(m{"max_entries": 20, "path": "many"}); got.Truncated || len(got.Entries) != 20 {
		t.Errorf("%d entries, %v", len(got.Entries), got.Truncated)
	}
	got := r.do("POST", "/workspaces/trees", serviceToken, m{"sessions": []string{"a", "none"}, "path": "many", "max_entries": 1})
	var all struct{ Results []treeOf }
	got.json(t, &all)
	if len(all.Results) != 2 || all.Results[0].Tree == nil || len(all.Results[0].Tree.Entries) != 1 || *all.Results[1].Status != 404 || *all.Results[1].Error != "No workspace for session: none" {
		t.Errorf("%d %s", got.status, got.body)
	}
	for _, body := range []m{{"sessions": []string{}}, {"sessions": []string{"../x"}}, {"sessions": make([]string, 101)}, {}} {
		if got := r.do("POST", "/workspaces/trees", serviceToken, body); got.status != 422 {
			t.Errorf("%v: %d", body, got.status)
		}
	}
}

func TestNativeFiles(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	dir := r.dir("a")
	r.put(dir, "d/f", "content")
	r.put(dir, "unreadable", "x")
	r.put(dir, "big", strings.Repeat("x", 101))
	r.put(dir, "closed/f", "x")
	r.put(dir, "linked/f", "x")
	for name, mode := range map[string]os.FileMode{"unreadable": 0, "closed": 0o600} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	defer os.Chmod(filepath.Join(dir, "closed"), 0o700)
	for name, target := range map[string]string{"link": "d", "linked/l": "f"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r.policy.MaxReadBytes = 100
	for _, c := range []struct {
		op, path string
		status   int
		want     string // of the answer, or the kind of the error
	}{
		{"read", "/workspace/d/f", 200, "content"},
		{"read", "/workspace//d/f", 200, "content"},
		{"read", "/workspace/d", 400, isDirectory},
		{"read", "/workspace/none", 404, notFound},
		{"read", "/workspace/d/f/x", 400, notDirectory},
		{"read", "d/f", 400, badValue},
		{"read", "/workspace/a\x00b", 400, badValue},
		{"read", "/workspace/link/f", 409, ""},
		{"read", "/workspace/linked/l", 409, ""},
		{"read", "/workspace/d/../d/f", 409, ""},
		{"read", "/workspace/./d/f", 409, ""},
		{"read", "/workspacex", 409, ""},
		{"read", "/etc/passwd", 409, ""},
		{"read", "/workspace/unreadable", 409, ""},
		{"read", "/workspace/closed/f", 409, ""},
		{"read", "/workspace/big", 409, ""},
		{"stat", "/workspace/d/f", 200, `{"name":"f","path":"/workspace/d/f","is_dir":false,"size":7,"modified_at":null}` + "\n"},
		{"stat", "/workspace", 200, `{"name":"workspace","path":"/workspace","is_dir":true,"size":null,"modified_at":null}` + "\n"},
		{"stat", "/workspace/none", 404, notFound},
		{"stat", "/workspace/link", 409, ""},
		{"realpath", "/workspace/d/none/below", 200, `{"path":"/workspace/d/none/below"}` + "\n"},
		{"realpath", "/workspace/link/x", 409, ""},
		{"list", "/workspace/d", 200, `[{"name":"f","path":"/workspace/d/f","is_dir":false,"size":7,"modified_at":null}]` + "\n"},
		{"list", "/workspace/d/f", 400, notDirectory},
		{"list", "/workspace/none", 404, notFound},
		{"list", "/workspace/linked", 409, ""},
		{"mkdir", "/workspace/new/deep", 204, ""},
		{"mkdir", "/workspace/new/deep", 204, ""},
		{"mkdir", "/workspace/d/f", 400, exists},
		{"mkdir", "/workspace/d/f/x", 400, notDirectory},
		{"remove", "/workspace/new", 204, ""},
		{"remove", "/workspace/new", 404, notFound},
		{"remove", "/workspace", 400, badValue},
		{"remove", "/workspace/link", 409, ""},
	} {
		got := r.do("POST", "/sessions/a/files/"+c.op, token, m{"path": c.path})
		var failed struct {
			Detail struct{ Error, Message string }
		}
		if got.status != c.status || c.status < 300 && got.body != c.want {
			t.Errorf("%s %s: %d %s", c.op, c.path, got.status, got.body)
		} else if c.want != "" && c.status >= 400 {
			if got.json(t, &failed); failed.Detail.Error != c.want || failed.Detail.Message == "" {
				t.Errorf("%s %s: %s", c.op, c.path, got.body)
			}
		}
	}
	write := func(path, content string, want int) {
		t.Helper()
		if got := r.do("POST", "/sessions/a/files/write?path="+path, token, content); got.status != want {
			t.Errorf("write %s: %d %s", path, got.status, got.body)
		}
	}
	write("/workspace/n/e/w", "\x00\xff", 204)
	if data, err := os.ReadFile(filepath.Join(dir, "n/e/w")); err != nil || string(data) != "\x00\xff" {
		t.Errorf("%q %v", data, err)
	}
	write("/workspace/d", "x", 400)
	write("/workspace/d/f/x", "x", 400)
	write("/workspace/link", "x", 409)
	write("/workspace/unreadable", "x", 409)
	write("/tmp/x", "x", 409)
	write("/workspace/large", strings.Repeat("x", 101), 409)
	if got := r.do("POST", "/sessions/a/files/write", token, "x"); got.status != 422 {
		t.Errorf("without a path: %d", got.status)
	}
	// Who sends all of a large file before looking hears that, too.
	conn, err := net.Dial("tcp", r.srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	large := strings.Repeat("x", 24<<20)
	fmt.Fprintf(conn, "POST /sessions/a/files/write?path=/workspace/large HTTP/1.1\r\nHost: x\r\nX-Sandbox-Token: %s\r\nContent-Length: %d\r\n\r\n", token, len(large))
	if _, err := io.WriteString(conn, large); err != nil {
		t.Error(err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != 409 {
		t.Errorf("%+v, %v", res, err)
	}
	var l eventList
	r.do("GET", "/sessions/a/events", token, nil).json(t, &l)
	if e := l.Events[0]; e.Op != "read" || e.Target != "/workspace/d/f" || !e.OK {
		t.Errorf("%+v", e)
	}
	if e := l.Events[len(l.Events)-1]; e.Op != "write" || e.OK || e.Detail != "via the sandbox" {
		t.Errorf("%+v", e)
	}
}

// TestFirstGenerationFiles is of what lies in the workspace; the rest needs a shell, which
// the fake driver has none of.
func TestFirstGenerationFiles(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	dir := r.dir("a")
	r.policy.MaxReadBytes = 1000
	r.put(dir, "big", strings.Repeat("x", 1001))
	r.put(dir, "bin", "\x00\x01\x80\x81\xff\xfe")
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, c := range []struct {
		route string
		body  m
		want  string
	}{
		{"write", m{"path": "sub/f.txt", "content_b64": b64("one two one\nlast")}, `{"path":"/workspace/sub/f.txt","error":null}`},
		{"write", m{"path": "sub", "content_b64": b64("x")}, `{"path":null,"error":"Failed to write file: a directory is there"}`},
		{"write", m{"path": "sub/f.txt/x", "content_b64": b64("x")}, `{"path":null,"error":"Failed to write file: a name on the way is not a directory"}`},
		{"read", m{"path": "sub/f.txt"}, `{"content":"one two one\nlast"}`},
		{"read", m{"path": "/workspace/sub/f.txt", "offset": 1}, `{"content":"last"}`},
		{"read", m{"path": "sub/f.txt", "offset": 2}, `{"content":"[End of file]"}`},
		{"read", m{"path": "sub/f.txt", "limit": 1}, `{"content":"one two one\n\n[... 1 more lines. Use offset=1 to read more.]"}`},
		{"read", m{"path": "none"}, `{"content":"Error: File 'none' not found"}`},
		{"read", m{"path": "sub"}, `{"content":"Error: File 'sub' not found"}`},
		{"read", m{"path": "bin"}, `{"content":"[Error: [Binary File]]"}`},
		{"read", m{"path": "big"}, `{"content":"[Error: File is 1001 bytes, over the 1000-byte read limit. Read a slice with execute() instead, e.g. \"sed -n '1,200p' <path>\".]"}`},
		{"read_bytes", m{"path": "bin"}, `{"content_b64":"` + b64("\x00\x01\x80\x81\xff\xfe") + `"}`},
		{"read_bytes", m{"path": "none"}, `{"content_b64":""}`},
		{"read_bytes", m{"path": "big"}, `{"content_b64":""}`},
		{"edit", m{"path": "sub/f.txt", "old_string": "one", "new_string": "1"}, `{"path":null,"error":"String 'one' found 2 times. Use replace_all=True to replace all, or provide more context.","occurrences":null}`},
		{"edit", m{"path": "sub/f.txt", "old_string": "one", "new_string": "1", "replace_all": true}, `{"path":"/workspace/sub/f.txt","error":null,"occurrences":2}`},
		{"edit", m{"path": "sub/f.txt", "old_string": "one", "new_string": "1"}, `{"path":null,"error":"String 'one' not found in file","occurrences":null}`},
		{"edit", m{"path": "sub/f.txt", "old_string": "", "new_string": strings.Repeat("x", 1<<20), "replace_all": true}, `{"path":null,"error":"File is 13631500 bytes, over the 1000-byte read limit","occurrences":null}`},
		{"edit", m{"path": "none", "old_string": "a", "new_string": "b"}, `{"path":null,"error":"File 'none' not found","occurrences":null}`},
		{"read", m{"path": "sub/f.txt"}, `{"content":"1 two 1\nlast"}`},
		{"exists", m{"path": "sub/f.txt"}, `{"exists":true}`},
		{"exists", m{"path": "sub"}, `{"exists":false}`},
		{"exists", m{"path": "none"}, `{"exists":false}`},
		{"ls", m{"path": "none"}, `[]`},
		{"ls", m{"path": "sub/f.txt"}, `[]`},
		{"exec", m{"command": "echo a ; stderr b ; exit 3", "timeout_seconds": nil}, ""},
	} {
		got := r.do("POST", "/sessions/a/"+c.route, token, c.body)
		if got.status != 200 || c.want != "" && got.body != c.want+"\n" {
			t.Errorf("%s %v: %d %s", c.route, c.body, got.status, got.body)
		}
		if c.route == "exec" && (!strings.Contains(got.body, `"exit_code":3`) || !strings.Contains(got.body, `a\n`) || !strings.Contains(got.body, `"truncated":false`)) {
			t.Errorf("%s", got.body)
		}
	}
	var rows []entry
	r.do("POST", "/sessions/a/ls", token, m{"path": "."}).json(t, &rows)
	if len(rows) != 3 || rows[0].Path != "./sub" || !rows[0].IsDir || rows[1].Name != "big" || *rows[1].Size != 1001 {
		t.Errorf("%+v", rows)
	}
	if got := r.do("POST", "/sessions/a/write", token, m{"path": "x", "content_b64": "!!"}); got.status != 400 || !strings.HasPrefix(got.detail(t), "content_b64 is not valid base64: ") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := r.do("POST", "/sessions/a/exec", token, m{"command": "flood 200000"}); !strings.Contains(got.body, `"truncated":true`) {
		t.Errorf("%d %.100s", got.status, got.body)
	}
	if got := r.do("POST", "/sessions/a/exec", token, m{"command": "sleep 60", "timeout_seconds": 1}); !strings.Contains(got.body, `"exit_code":124`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	r.mu.Lock()
	r.policy.CommandTimeoutS = 1e-9 // over before it began
	r.mu.Unlock()
	for _, op := range []string{"read", "read_bytes", "write", "edit", "exists", "ls", "glob", "grep"} {
		body := m{"path": "x", "content_b64": "", "old_string": "a", "new_string": "b", "pattern": "x"}
		if got := r.do("POST", "/sessions/a/"+op, token, body); got.status != 504 || got.detail(t) != "Operation exceeded the 1e-09s service ceiling" {
			t.Errorf("%s: %d %s", op, got.status, got.body)
		}
	}
}
