package attack

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/test/server"
)

// canary is content that only files outside of a sandbox have, and part of their
// names.
const canary = "CANARY-5e1c9"

// outside is a directory of the machine with files that nothing may read or touch.
type outside struct {
	t      testing.TB
	dir    string
	more   []string // single files that are watched too
	before map[string]string
}

func newOutside(t testing.TB, more ...string) *outside {
	t.Helper()
	dir, err := os.MkdirTemp("", "outside-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// Open to everybody: what keeps a sandbox away must not be these modes.
	for _, sub := range []string{"", "sub", "n"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Unix(1_000_000_000, 0)
	for _, name := range []string{"canary", "f", "sub/canary", "n/canary", canary + "-name"} {
		full := filepath.Join(dir, name)
		if err := os.WriteFile(full, []byte(canary), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(full, 54321, 54321); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(full, old, old); err != nil {
			t.Fatal(err)
		}
	}
	o := &outside{t: t, dir: dir, more: more}
	o.before = o.look()
	return o
}

// look describes every entry: kind, mode, owner, times and content.
func (o *outside) look() map[string]string {
	o.t.Helper()
	seen := map[string]string{}
	describe := func(name string) error {
		info, err := os.Lstat(name)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		text := fmt.Sprint(info.Mode(), st.Uid, st.Gid, st.Size, st.Nlink, st.Mtim, st.Ctim)
		if info.Mode().IsRegular() {
			raw, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(raw)
			text += hex.EncodeToString(sum[:])
		}
		seen[name] = text
		return nil
	}
	err := filepath.WalkDir(o.dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return describe(name)
	})
	for _, name := range o.more {
		if err == nil {
			err = describe(name)
		}
	}
	if err != nil {
		o.t.Fatalf("the outside cannot be looked at: %v", err)
	}
	return seen
}

// unchanged fails the test when anything outside was touched.
func (o *outside) unchanged(after string) {
	o.t.Helper()
	now := o.look()
	for name, was := range o.before {
		if now[name] != was {
			o.t.Errorf("after %s: %s was %s and is %s", after, name, was, now[name])
		}
	}
	for name := range now {
		if o.before[name] == "" {
			o.t.Errorf("after %s: %s came into being", after, name)
		}
	}
	o.before = now
}

// act is one use of a route of the file API on a path.
type act struct {
	name    string
	request func(b *box, path string) request
}

func query(b *box, route, path, more string) string {
	return b.path(route) + "?path=" + url.QueryEscape(path) + more
}

// acts are all routes that take a path.
func acts() []act {
	simple := func(name, method, route, more, body string) act {
		return act{name, func(b *box, path string) request {
			r := request{method: method, path: query(b, route, path, more)}
			if method == http.MethodPut {
				r.body = strings.NewReader(body)
			}
			return r
		}}
	}
	rename := func(name string, body func(path string) map[string]string) act {
		return act{name, func(b *box, path string) request {
			raw, _ := json.Marshal(body(path)) // of strings: cannot fail
			return request{method: http.MethodPost, path: b.path("/files/rename"), body: bytes.NewReader(raw)}
		}}
	}
	inJSON := func(name, route, body string) act { // with the path for %q
		return act{name, func(b *box, path string) request {
			quoted, _ := json.Marshal(path)
			return request{method: http.MethodPost, path: b.path(route), body: strings.NewReader(strings.ReplaceAll(body, "%q", string(quoted)))}
		}}
	}
	return []act{
		simple("glob", "GET", "/files/glob", "&pattern=**", ""),
		simple("grep", "GET", "/files/grep", "&context=3&pattern="+canary[:6], ""),
		simple("zip out", "GET", "/files/zip", "", ""),
		simple("watch", "GET", "/files/watch", "", ""),
		inJSON("edit", "/files/edit", `{"path":%q,"old":"a","new":"bad","all":true}`),
		inJSON("edit of what is outside", "/files/edit", `{"path":%q,"old":"`+canary+`","new":"bad"}`),
		inJSON("read many", "/files/read", `{"items":[{"path":%q}]}`),
		inJSON("write many", "/files/write", `{"items":[{"path":%q,"text":"bad"}]}`),
		{"write by upload", func(b *box, path string) request {
			return request{method: "PUT", path: query(b, "/files/upload", path, "&upload=u"), body: strings.NewReader("bad"),
				header: map[string]string{"Content-Range": "bytes 0-2/3"}}
		}},
		simple("list", "GET", "/files", "", ""),
		simple("list deep", "GET", "/files", "&recursive=true", ""),
		simple("content", "GET", "/files/content", "", ""),
		{"content from byte 1", func(b *box, path string) request {
			return request{method: "GET", path: query(b, "/files/content", path, ""), header: map[string]string{"Range": "bytes=1-"}}
		}},
		simple("stat", "GET", "/files/stat", "", ""),
		simple("tree", "GET", "/files/tree", "", ""),
		simple("walk", "GET", "/files/walk", "", ""),
		simple("tar out", "GET", "/files/tar", "", ""),
		simple("write", "PUT", "/files", "", "bad"),
		simple("write synced and executable", "PUT", "/files", "&synced=true&executable=true", "bad"),
		simple("append", "PUT", "/files", "&append=true", "bad"),
		simple("tar in", "PUT", "/files/tar", "", string(smallTar())),
		simple("mkdir", "POST", "/files/mkdir", "", ""),
		rename("rename from", func(path string) map[string]string { return map[string]string{"from": path, "to": "taken"} }),
		rename("rename to", func(path string) map[string]string { return map[string]string{"from": "given", "to": path} }),
		simple("remove", "DELETE", "/files", "", ""),
	}
}

// try does it.
func (a act) try(b *box, path string) answer { return read(b.s.must(a.request(b, path))) }

// read shows what a zip holds as it is, and the one item of a batch as the whole.
func read(got answer) answer {
	switch got.header.Get("Content-Type") {
	case "application/zip":
		r, err := zip.NewReader(bytes.NewReader(got.body), int64(len(got.body)))
		if err != nil {
			return got // it was cut off
		}
		for _, f := range r.File {
			if body, err := f.Open(); err == nil {
				data, _ := io.ReadAll(body)
				got.body = append(append(got.body, f.Name...), data...)
			}
		}
	case "application/json":
		var batch struct {
			Items []struct{ Error struct{ Code sandboxd.Class } }
		}
		if json.Unmarshal(got.body, &batch) == nil && len(batch.Items) == 1 && batch.Items[0].Error.Code != "" {
			got.status = batch.Items[0].Error.Code.HTTPStatus()
		}
	}
	return got
}

// A new route of files is attacked, or it says here why not.
func TestEveryFileRouteIsAttacked(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	attacked := map[string]bool{
		"GET " + b.path("/files/upload"): true, // it opens nothing of that name
	}
	for _, a := range acts() {
		r := a.request(b, "a")
		path, _, _ := strings.Cut(r.path, "?")
		attacked[r.method+" "+path] = true
	}
	for _, r := range s.routes() {
		if line := r.method + " " + strings.ReplaceAll(r.path, "{id}", b.id); strings.Contains(r.path, "/files") && !attacked[line] {
			t.Errorf("%s %s is not among the attacks on files", r.method, r.path)
		}
	}
}

// smallTar has entries of the names that the outside has.
func smallTar() []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range []string{"canary", "f", "sub/canary"} {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 3})
		_, _ = io.WriteString(w, "bad")
	}
	_ = w.Close()
	return buf.Bytes()
}

func TestLinksLeadNowhere(t *testing.T) {
	long(t)
	s := serve(t)
	neighbour := s.open(sandboxd.OpenRequest{Key: "neighbour"})
	neighbour.ok("mkdir sub n && for f in canary f sub/canary n/canary; do echo " + canary + " >$f; done; chmod -R 777 .")
	b := s.open(sandboxd.OpenRequest{Key: "attacker"})
	out := newOutside(t, filepath.Join(s.Data, "token"), filepath.Join(s.Data, "host-token"),
		filepath.Join(s.Data, "workspaces", "neighbour", "workspace", "canary"),
		filepath.Join(s.Data, "workspaces", "attacker", "meta.json"))
	up := strings.Repeat("../", 40)
	dirs := map[string]string{ // link to a directory outside
		"absolute": out.dir, "relative": up + out.dir[1:], "by-proc-self": "/proc/self/root" + out.dir,
		"by-proc-1": "/proc/1/root" + out.dir, "by-thread": "/proc/thread-self/root" + out.dir, "by-cwd": "/proc/self/cwd/" + up + out.dir[1:],
		"neighbour": "../../neighbour/workspace", "neighbour-absolute": filepath.Join(s.Data, "workspaces", "neighbour", "workspace"),
		"by-workspace": "/workspace/../" + up + out.dir[1:], "by-link": "sub/up/up/up/" + up + out.dir[1:], "host-side": "..",
	}
	plant := "mkdir -p sub/deep && ln -sfn .. sub/up && ln -sfn loop-b loop-a && ln -sfn loop-a loop-b && ln -sfn self self\n" +
		"ln -sfn /nowhere/at/all dangling && ln -sfn " + out.dir + "/new dangling-outside && ln -sfn /proc/self/fd/3 by-descriptor\n" +
		"ln -sfn " + s.Data + "/token token && ln -sfn ../meta.json meta && rm -rf taken given && echo x >given\n"
	for name, target := range dirs {
		plant += "ln -sfn " + target + " " + name + " && ln -sfn " + target + "/canary " + name + "-file\n"
	}
	var paths []string // all of them lead out
	for name := range dirs {
		paths = append(paths, name+"/canary", name+"/new", name+"/sub/canary", name+"/"+canary+"-name", name+"/sub/../canary", "sub/up/"+name+"/canary", name+"/canary/")
		if name != "host-side" {
			paths = append(paths, name, name+"-file", name+"/")
		}
	}
	paths = append(paths, "loop-a/x", "loop-a", "self/self/self", "dangling", "dangling/x", "dangling-outside", "by-descriptor", "token", "meta",
		"../meta.json", "../../neighbour/workspace/canary", "sub/up/../meta.json", "sub/up/../../neighbour/workspace/canary", "/etc/passwd",
		"/workspace/../etc/passwd", "/proc/self/root"+out.dir+"/canary", "//etc/passwd", "/workspace/sub/up/../../../"+up+out.dir[1:]+"/canary", "host-side/meta.json",
		"host-side/home/new")
	// A path that names a link itself stays inside, and so does one that ".." leads
	// back before any link is followed: it is taken as written.
	staysInside := func(path string) bool {
		return !strings.Contains(strings.TrimSuffix(path, "/"), "/") || path == "sub/up/../meta.json"
	}
	secrets := []string{canary, s.Key, s.Secret("host-token"), "created_at"}
	b.ok(plant)
	tried := 0
	for _, a := range acts() {
		// What changes a link itself is allowed, so they come again.
		changes := strings.HasPrefix(a.name, "write") || strings.HasPrefix(a.name, "edit") || a.name == "append" || strings.HasPrefix(a.name, "rename") || a.name == "remove" || a.name == "mkdir" || a.name == "tar in"
		for _, path := range paths {
			tried++
			got := a.try(b, path)
			for _, secret := range secrets {
				// The link's own name and target hold nothing of these.
				if bytes.Contains(got.body, []byte(secret)) && !bytes.Contains(got.body, []byte(`"error"`)) {
					t.Errorf("%s of %q shows what is outside: %d %.200s", a.name, path, got.status, got.body)
				}
			}
			if got.status >= 500 {
				t.Errorf("%s of %q: %d %s", a.name, path, got.status, got.body)
			}
			if got.status < 300 && !staysInside(path) {
				t.Errorf("%s of %q, which leads out: %d %.200s", a.name, path, got.status, got.body)
			}
			if got.status < 300 && path != "sub/up/../meta.json" && (strings.HasPrefix(a.name, "content") || strings.HasPrefix(a.name, "list") || a.name == "tree") {
				t.Errorf("%s of the link %q: %d %.200s", a.name, path, got.status, got.body)
			}
			if changes && got.status < 300 {
				b.ok(plant)
			}
		}
		out.unchanged(a.name)
	}
	if got := neighbour.ok("cat canary; ls"); !strings.HasPrefix(got, canary) || strings.Contains(got, "new") {
		t.Errorf("the neighbour has %q", got)
	}
	t.Logf("%d attempts", tried)
	// All of it goes with the sandbox, and nothing else does.
	if err := s.C.Delete(context.Background(), b.id); err != nil {
		t.Fatal(err)
	}
	server.Until(t, "the attacker's workspace is gone", 10*time.Second, func() bool {
		_, err := os.Lstat(filepath.Join(s.Data, "workspaces", "attacker"))
		return os.IsNotExist(err)
	})
	out.more = out.more[:3]
	delete(out.before, filepath.Join(s.Data, "workspaces", "attacker", "meta.json"))
	out.unchanged("the delete of the sandbox")
}

func TestAFlippingSandboxNeverReachesOutside(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	out := newOutside(t)
	each := time.Second
	if testing.Short() {
		each = 100 * time.Millisecond
	}
	flipper := b.begin(sandboxd.CommandSpec{Argv: []string{"./intruder", "flip", out.dir}, Background: true})
	b.says(flipper, "flipping")
	paths := []string{"d/canary", "d/f", "g", "d", "top/n/../../d/canary", "d/sub/canary", "top/n/canary", "glink", "dlink/canary",
		"sub/up/d/f", "d/new", "top/n/new", ".", "moved/canary"}
	tried, passed := 0, 0
	for _, a := range acts() {
		began := time.Now()
		for i := 0; time.Since(began) < each; i++ {
			if strings.HasPrefix(a.name, "rename") && i%8 == 0 {
				s.must(request{method: "PUT", path: query(b, "/files", "given", ""), body: strings.NewReader("x")})
			}
			path := paths[i%len(paths)]
			if path == "." && a.name == "remove" {
				continue // it may empty the workspace, and with it the flipper's world
			}
			got := a.try(b, path)
			tried++
			if got.status < 300 {
				passed++
			}
			// The tar and the listings show links with their targets, which are not
			// names or contents of the outside.
			if bytes.Contains(got.body, []byte(canary)) {
				t.Fatalf("%s of %q shows what is outside: %d %.300s", a.name, path, got.status, got.body)
			}
			if got.status >= 500 && got.status != 503 {
				t.Errorf("%s of %q: %d %s", a.name, path, got.status, got.body)
			}
		}
		out.unchanged(a.name)
	}
	t.Logf("%d requests, %d of them succeeded", tried, passed)
	if cmd, err := s.C.GetCommand(context.Background(), b.id, flipper); err != nil || cmd.Ending != nil {
		t.Errorf("the flipper did not flip to the end: %+v, %v", cmd, err)
	}
	if passed == 0 || passed == tried {
		t.Error("the routes and the flipper never met")
	}
	// The delete meets the flipper too.
	if err := s.C.Delete(context.Background(), b.id); err != nil {
		t.Fatal(err)
	}
	s.Emptied()
	out.unchanged("the delete of the sandbox")
}

// What a sandbox can plant in its workspace keeps no route busy and breaks none.
func TestPlantedThingsBlockNothing(t *testing.T) {
	long(t)
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	b.ok("mkfifo fifo && ./intruder socket sock && truncate -s 1T sparse && (mkdir crowd && cd crowd && ../intruder many 40000) && " +
		"mkdir pit && (cd pit && ../intruder deep 3000) && mkdir closed && echo x >closed/f && chmod 000 closed && echo secret >mute && chmod 000 mute && " +
		"echo linked >one && ln one two && ln -s /dev/zero zero && ln -s /proc/self/mem mem")
	before := s.RSS()
	quick := func(what string, limit time.Duration, in request) answer {
		t.Helper()
		began := time.Now()
		got := s.must(in)
		if took := time.Since(began); took > limit {
			t.Errorf("%s took %v", what, took)
		}
		if got.status >= 500 {
			t.Errorf("%s: %d %.200s", what, got.status, got.body)
		}
		return got
	}
	for _, name := range []string{"fifo", "sock", "zero", "mem"} {
		for _, a := range acts() {
			if a.name == "remove" || strings.HasPrefix(a.name, "rename") || strings.HasPrefix(a.name, "write") || a.name == "tar out" || a.name == "walk" {
				continue
			}
			got := read(quick(a.name+" of "+name, 2*time.Second, a.request(b, name)))
			if a.name != "stat" && got.status < 300 {
				t.Errorf("%s of %s: %d %.200s", a.name, name, got.status, got.body)
			}
		}
	}
	if got := quick("the end of a huge file", time.Second, request{method: "GET", path: query(b, "/files/content", "sparse", ""),
		header: map[string]string{"Range": "bytes=-5"}}); got.status != 206 || string(got.body) != "\x00\x00\x00\x00\x00" {
		t.Errorf("the end of a huge file: %d %q", got.status, got.body)
	}
	if got := quick("a crowd", 5*time.Second, request{method: "GET", path: query(b, "/files", "crowd", "&max=50000")}); bytes.Count(got.body, []byte(`"path":"`)) < 40000 {
		t.Errorf("a crowd: %d and %d bytes", got.status, len(got.body))
	}
	for _, route := range []string{"/files/tree", "/files"} {
		quick(route, 5*time.Second, request{method: "GET", path: query(b, route, "", "&recursive=true")[:len(query(b, route, "", ""))]})
	}
	if got := quick("the walk", 10*time.Second, request{method: "GET", path: query(b, "/files/walk", "", "")}); !bytes.Contains(got.body, []byte(`"end"`)) {
		t.Errorf("the walk: %d, the last bytes %q", got.status, server.Tail(string(got.body)))
	}
	for _, search := range []string{"/files/grep?pattern=secret", "/files/grep?pattern=x&context=20", "/files/glob?pattern=**/f"} {
		if got := quick("a search", 10*time.Second, request{method: "GET", path: b.path(search)}); got.status != 200 {
			t.Errorf("%s: %d %s", search, got.status, got.body)
		}
	}
	if got := quick("a watch", 10*time.Second, request{method: "GET", path: b.path("/files/watch")}); got.status != 413 {
		t.Errorf("a watch of 3,000 levels: %d %.200s", got.status, got.body)
	}
	if got := quick("the usage", 10*time.Second, request{method: "GET", path: b.path("/usage")}); got.status != 200 {
		t.Errorf("the usage: %d %s", got.status, got.body)
	}
	for _, name := range []string{"mute", "closed/f", "two"} {
		quick("content of "+name, time.Second, request{method: "GET", path: query(b, "/files/content", name, "")})
	}
	// An archive of the whole has more bytes than anybody reads: the reader leaves.
	tarred, err := s.send(request{method: "GET", path: query(b, "/files/tar", "", "")})
	if err != nil || tarred.status >= 500 {
		t.Errorf("the tar: %d, %v", tarred.status, err)
	}
	if grown := s.RSS() - before; grown > 256<<20 {
		t.Errorf("the server grew by %d MiB", grown>>20)
	}
	for _, name := range []string{"pit", "crowd", "closed", "fifo", "sock", "sparse"} {
		if got := quick("remove of "+name, 10*time.Second, request{method: "DELETE", path: query(b, "/files", name, "")}); got.status != 204 {
			t.Errorf("remove of %s: %d %s", name, got.status, got.body)
		}
	}
	if got := b.ok("ls"); strings.Contains(got, "pit") || !strings.Contains(got, "one") {
		t.Errorf("left is %q", got)
	}
}

func TestHostileArchives(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{Key: "unpack"})
	out := newOutside(t)
	b.ok("ln -s " + out.dir + " planted && ln -s " + out.dir + "/canary planted-file && mkfifo pipe")
	entry := func(name string, kind byte, target string) *tar.Header {
		h := &tar.Header{Name: name, Typeflag: kind, Linkname: target, Mode: 0o644, Format: tar.FormatGNU}
		if kind == tar.TypeReg {
			h.Size = 3
		}
		return h
	}
	archive := func(headers ...*tar.Header) []byte {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, h := range headers {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				if _, err := w.Write(bytes.Repeat([]byte("b"), int(h.Size))); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	big := entry("big", tar.TypeReg, "")
	big.Size = 1 << 20
	var crowd []*tar.Header
	for i := range 200 {
		crowd = append(crowd, entry(fmt.Sprintf("crowd/%d", i), tar.TypeDir, ""))
	}
	lying := archive(big)
	for _, test := range []struct {
		name, more string
		body       []byte
		want       []int
	}{
		{"dot-dot", "", archive(entry("../x", tar.TypeReg, "")), []int{400}},
		{"dot-dot inside", "", archive(entry("a/../../x", tar.TypeReg, "")), []int{400}},
		{"absolute", "", archive(entry(out.dir+"/x", tar.TypeReg, "")), []int{400}},
		{"through a planted link", "", archive(entry("planted/canary", tar.TypeReg, "")), []int{400, 403}},
		{"new, through a planted link", "", archive(entry("planted/new", tar.TypeReg, "")), []int{400, 403}},
		{"directory through a planted link", "", archive(entry("planted/dir/", tar.TypeDir, "")), []int{400, 403}},
		{"through its own link", "", archive(entry("l", tar.TypeSymlink, out.dir), entry("l/canary", tar.TypeReg, "")), []int{400, 403}},
		{"through its own relative link", "", archive(entry("m", tar.TypeSymlink, "../../.."), entry("m/x", tar.TypeReg, "")), []int{400, 403}},
		{"hard link out", "", archive(entry("h", tar.TypeLink, out.dir+"/canary")), []int{400, 403}},
		{"hard link through a link", "", archive(entry("h", tar.TypeLink, "planted/canary")), []int{400, 403}},
		{"hard link to a planted link", "", archive(entry("h2", tar.TypeLink, "planted-file")), []int{200, 400, 403}},
		{"device", "", archive(&tar.Header{Name: "dev", Typeflag: tar.TypeBlock, Devmajor: 254, Mode: 0o666}), []int{400}},
		{"character device", "", archive(&tar.Header{Name: "dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666}), []int{400}},
		{"fifo", "", archive(entry("fifo", tar.TypeFifo, "")), []int{400}},
		{"onto a fifo", "", archive(entry("pipe", tar.TypeReg, "")), []int{200, 400, 409}},
		{"long name", "", archive(entry(strings.Repeat("n", 256), tar.TypeReg, "")), []int{400}},
		{"too many", "&max_entries=100", archive(crowd...), []int{400, 413}},
		{"too large", "&max_bytes=1000", archive(big), []int{400, 413}},
		{"cut short", "", lying[:len(lying)/2], []int{400}},
		{"garbage", "", bytes.Repeat([]byte("garbage "), 1000), []int{400}},
		{"into a planted link", "", smallTar(), []int{400, 403}},
	} {
		at := "in"
		if test.name == "into a planted link" {
			at = "planted"
		}
		if strings.Contains(test.name, "planted") || strings.Contains(test.name, "hard link") || strings.Contains(test.name, "onto") {
			if at == "in" {
				at = "."
			}
		}
		got := s.must(request{method: "PUT", path: query(b, "/files/tar", at, test.more), body: bytes.NewReader(test.body)})
		fits := false
		for _, want := range test.want {
			fits = fits || got.status == want
		}
		if !fits {
			t.Errorf("%s: %d %s, want %v", test.name, got.status, got.body, test.want)
		}
		out.unchanged(test.name)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Data, "workspaces", "unpack", "*")); len(left) != 3 {
		t.Errorf("beside the workspace there is %v", left)
	}
	if left := b.ok("find . -name '.*' -not -name . ; find . -type b -o -type c; cat in/big 2>/dev/null | wc -c"); left != "0\n" {
		t.Errorf("left in the workspace: %q", left)
	}

	// Modes and owners of an archive give nothing.
	raw, err := os.ReadFile(server.Program("intruder"))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: "root-tool", Mode: 0o6755, Uid: 0, Gid: 0, Size: int64(len(raw)), Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if got := s.must(request{method: "PUT", path: query(b, "/files/tar", ".", ""), body: &buf}); got.status != 200 {
		t.Fatalf("set-uid: %d %s", got.status, got.body)
	}
	if got := b.ok("stat -c '%a %U' root-tool; test $(./root-tool ids | cut -d' ' -f2) = $(id -u) && echo same"); got != "755 sandbox\nsame\n" {
		t.Errorf("a set-uid program of an archive: %q", got)
	}
	// An archive out has links as links and never what they lead to.
	got := s.must(request{method: "GET", path: query(b, "/files/tar", ".", "")})
	if got.status != 200 || bytes.Contains(got.body, []byte(canary)) {
		t.Errorf("tar out: %d, and it has what is outside", got.status)
	}
}

func TestHardLinks(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	// A file of the machine that the sandbox sees cannot be linked into the
	// workspace, where the file API would write it as root.
	got := b.shell("for f in /usr/bin/env /etc/passwd /etc/hosts /proc/self/status; do ln $f ./h && echo linked $f; done; ln -L /proc/1/exe ./h && echo linked init; true")
	if strings.Contains(got.stdout, "linked") {
		t.Errorf("hard links into the workspace: %s", got.stdout)
	}
	b.ok("echo home >$HOME/f; ln $HOME/f /workspace/h 2>/dev/null || cp $HOME/f h; ln h h2; chmod 600 h")
	for _, name := range []string{"h", "h2"} {
		if got := s.must(request{method: "PUT", path: query(b, "/files", name, ""), body: strings.NewReader("new")}); got.status != 200 {
			t.Errorf("write of %s: %d %s", name, got.status, got.body)
		}
	}
	if got := b.ok("cat $HOME/f h h2"); got != "home\nnewnew" {
		t.Errorf("a write through a hard link reaches other names: %q", got)
	}
}

func TestHostileNames(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	put := func(rawQuery string) answer {
		t.Helper()
		return s.must(request{method: "PUT", path: b.path("/files?path=" + rawQuery), body: strings.NewReader("body of " + rawQuery)})
	}
	for _, name := range []string{strings.Repeat("n", 255), strings.Repeat("\xff", 255), "\xff\xfe\x80", "new\nline", "-rf", "--help", "%2e%2e", "%00", "\\..\\x",
		" ", "tab\there", "\x1b[2J", "e\u0301", "\u00e9", "CON", "*", "$(id)", "`id`", "a;b", "..x", "...", "x..", "\u202egnp.exe"} {
		escaped := url.QueryEscape(name)
		if got := put(escaped); got.status != 200 {
			t.Errorf("write of %q: %d %s", name, got.status, got.body)
			continue
		}
		got := s.must(request{method: "GET", path: b.path("/files/content?path=" + escaped)})
		if string(got.body) != "body of "+escaped {
			t.Errorf("content of %q: %d %q", name, got.status, got.body)
		}
		found, err := b.files.Stat(context.Background(), name)
		if err != nil || found.Path != name {
			t.Errorf("stat of %q: %q, %v", name, found.Path, err)
		}
		if err := b.files.Rename(context.Background(), name, "elsewhere"); err != nil {
			t.Errorf("rename of %q: %v", name, err)
		}
		if err := b.files.Rename(context.Background(), "elsewhere", name); err != nil {
			t.Errorf("rename to %q: %v", name, err)
		}
		// The sandbox has the same bytes.
		if inside := b.run(sandboxd.CommandSpec{Argv: []string{"sh", "-c", "find . -maxdepth 1 -print0 | tr '\\0' '\\n' | od -An -tx1 -v | tr -d ' \\n'"}}); !strings.Contains(inside.stdout, hex.EncodeToString([]byte("./"+name+"\n"))) {
			t.Errorf("inside there is no %q", name)
		}
		if got := s.must(request{method: "DELETE", path: b.path("/files?path=" + escaped)}); got.status != 204 {
			t.Errorf("remove of %q: %d %s", name, got.status, got.body)
		}
	}
	for name, escaped := range map[string]string{
		"256 bytes": strings.Repeat("n", 256), "NUL": "a%00b", "NUL first": "%00", "dot-dot": "..", "escaped dot-dot": "%2e%2e", "dot-dot below": "a/../../b",
		"dot-dot at the end": "a/../..", "other root": "%2fetc%2fpasswd", "near the workspace": "/workspacex/a", "long path": strings.Repeat("a/", 4000) + "a",
		"the workspace": ".", "nothing": "", "broken escape": "%zz",
	} {
		for _, method := range []string{"PUT", "GET"} {
			route := b.path("/files?path=" + escaped)
			if method == "GET" {
				route = b.path("/files/content?path=" + escaped)
			}
			in := request{method: method, path: route}
			if method == "PUT" {
				in.body = strings.NewReader("x")
			}
			got := s.must(in)
			if got.status != 400 && !(name == "the workspace" && got.status == 409) {
				t.Errorf("%s of %s: %d %s", method, name, got.status, got.body)
			}
			if len(escaped) > 3 && bytes.Contains(got.body, []byte(escaped)) {
				t.Errorf("%s of %s repeats the name: %s", method, name, got.body)
			}
		}
	}
}
