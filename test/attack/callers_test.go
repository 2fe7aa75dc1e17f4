package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sandboxd"
)

// route is one operation of the server's own description of itself, with a body
// that is well-formed, so that nothing but the ids and the secret can be at fault.
type route struct{ method, path, body string }

func (s *target) routes() []route {
	s.t.Helper()
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(s.must(request{method: "GET", path: "/openapi.json", token: "-"}).body, &document); err != nil {
		s.t.Fatal(err)
	}
	bodies := map[string]string{
		"/v1/sandboxes": `{"key":"made-by-a-stranger"}`, "/v1/sandboxes/{id}/exec": `{"argv":["true"]}`, "/v1/sandboxes/{id}/commands": `{"argv":["true"]}`,
		"/v1/sandboxes/{id}/commands/{cid}/signal": `{"signal":"INT"}`, "/v1/sandboxes/{id}/commands/{cid}/resize": `{"cols":80,"rows":24}`,
		"/v1/sandboxes/{id}/files/rename": `{"from":"a","to":"b"}`, "/v1/sandboxes/{id}/files/edit": `{"path":"a","old":"a","new":"b"}`,
		"/v1/sandboxes/{id}/files/read": `{"items":[{"path":"a"}]}`, "/v1/sandboxes/{id}/files/write": `{"items":[{"path":"a","text":"b"}]}`,
		"/v1/sandboxes/{id}/commands/{cid}/stop": `{"grace_s":0}`, "/v1/sandboxes/{id}/holds": `{"for_s":1}`,
		"/v1/sandboxes/{id}/variables": `{"env":{}}`,
	}
	var all []route
	for path, operations := range document.Paths {
		for method := range operations {
			r := route{method: strings.ToUpper(method), path: path}
			if r.method == "POST" || r.method == "PUT" {
				r.body = bodies[path]
			}
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b route) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	if len(all) < 20 {
		s.t.Fatalf("the server describes %d routes", len(all))
	}
	return all
}

// upgrade asks for a WebSocket.
var upgrade = map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}

// at fills the ids in.
func (r route) at(id, command string) request {
	path := strings.NewReplacer("{id}", id, "{cid}", command, "{port}", "1").Replace(r.path)
	if strings.Contains(r.path, "/files") && r.body == "" {
		path += "?path=a"
	}
	in := request{method: r.method, path: path}
	if strings.HasSuffix(r.path, "/terminal") || strings.HasSuffix(r.path, "/connect") {
		in.header = upgrade
	}
	if r.body != "" || r.method == "PUT" {
		in.body = strings.NewReader(r.body)
	}
	return in
}

func TestStrangersGetNothing(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{Key: "mine"})
	b.ok("echo " + canary + " >a")
	command := b.begin(sandboxd.CommandSpec{ID: "long", Argv: []string{"sleep", "1000"}, Background: true})
	hostToken := s.Secret("host-token")
	routes := s.routes()
	for _, test := range []struct {
		name, addr, token string
		header            map[string]string
		want              int
	}{
		{"no secret", s.Addr, "-", nil, 401},
		{"a wrong secret", s.Addr, "sk_wrong", nil, 401},
		{"a prefix of the secret", s.Addr, s.Key[:len(s.Key)-1], nil, 401},
		{"the secret and more", s.Addr, s.Key + "x", nil, 401},
		{"the host token", s.Addr, hostToken, nil, 401},
		{"the host token in its own header", s.Addr, "-", map[string]string{"X-Sandbox-Token": hostToken}, 401},
		{"another scheme", s.Addr, "-", map[string]string{"Authorization": "Basic " + s.Key}, 401},
		{"a cookie", s.Addr, "-", map[string]string{"Cookie": "token=" + s.Key}, 401},
		{"the API key at the host's listener", s.Host, s.Key, nil, 401},
		{"no secret at the host's listener", s.Host, "-", nil, 401},
		{"a page of another origin", s.Addr, s.Key, map[string]string{"Origin": "http://evil.example"}, 403},
		{"a page of no origin", s.Addr, s.Key, map[string]string{"Origin": "null"}, 403},
		{"a name that was bound to this address", s.Addr, s.Key, map[string]string{"Host": "evil.example"}, 403},
	} {
		for _, r := range routes {
			in := r.at(b.id, command)
			in.addr, in.token, in.header = test.addr, test.token, test.header
			got := s.must(in)
			if got.status != test.want {
				t.Errorf("%s: %s %s: %d %.200s", test.name, r.method, r.path, got.status, got.body)
			}
			for _, secret := range []string{s.Key, hostToken, canary, b.id} {
				if bytes.Contains(got.body, []byte(secret)) {
					t.Errorf("%s: %s %s shows a secret: %s", test.name, r.method, r.path, got.body)
				}
			}
		}
	}
	if got := s.must(request{method: "GET", path: "/v1/sandboxes?token=" + s.Key, token: "-"}); got.status != 401 {
		t.Errorf("a secret in the address: %d", got.status)
	}
	if list, err := s.C.List(context.Background(), ""); err != nil || len(list) != 1 || list[0].State != sandboxd.StateRunning {
		t.Errorf("afterwards there are %+v, %v", list, err)
	}
	if cmd, err := s.C.GetCommand(context.Background(), b.id, command); err != nil || cmd.Ending != nil {
		t.Errorf("the command: %+v, %v", cmd, err)
	}
	b.stop(command)
}

func TestIDsNameNothingElse(t *testing.T) {
	s := serve(t)
	a, b := s.open(sandboxd.OpenRequest{Key: "a"}), s.open(sandboxd.OpenRequest{Key: "b"})
	theirs := b.begin(sandboxd.CommandSpec{ID: "theirs", Argv: []string{"sleep", "1000"}, Background: true})
	shapes := []string{"..", ".", "%2e%2e", "%2e", "..%2f..", "..%2f" + b.id, "%2e%2e%2f%2e%2e%2ftoken", b.id + "%2f..%2f" + b.id, "%2f", "%5c..%5c", "%00",
		b.id + "%00", b.id + "%20", b.id + "%0a", strings.ToUpper(b.id), b.id[:19], b.id + "a", "*", "%2a", "a", "b", "-" + b.id[1:], "'%20or%201=1", "%ff%fe",
		strings.Repeat("a", 20), strings.Repeat("a", 5000), "%252e%252e"}
	refused := func(what string, in request, want ...int) {
		t.Helper()
		got := s.must(in)
		if !slices.Contains(want, got.status) {
			t.Errorf("%s: %s %.120s: %d %.200s, want %v", what, in.method, in.path, got.status, got.body, want)
		}
	}
	for _, r := range s.routes() {
		if !strings.Contains(r.path, "{id}") {
			continue
		}
		for _, shape := range shapes {
			refused("sandbox", r.at(shape, theirs), 400, 404)
		}
		refused("a sandbox that never was", r.at(sandboxd.NewID(), theirs), 404)
		if strings.Contains(r.path, "{cid}") {
			for _, shape := range shapes {
				refused("command", r.at(a.id, shape), 400, 404)
			}
			refused("another sandbox's command", r.at(a.id, theirs), 404)
			refused("both in the place of one", r.at(a.id, "..%2f..%2f"+b.id+"%2fcommands%2f"+theirs), 400, 404)
		}
	}
	refused("another sandbox's command in a terminal", request{method: "GET", path: a.path("/terminal?command_id=" + theirs), header: upgrade}, 404)
	open := func(body string) answer {
		return s.must(request{method: "POST", path: "/v1/sandboxes", body: strings.NewReader(body)})
	}
	for _, key := range []string{"..", ".", "../b", "a/b", "/etc", "-rf", "a b", "a\n", "a\x00", "é", strings.Repeat("k", 65), "a%2fb", "trash/.."} {
		raw, err := json.Marshal(map[string]string{"key": key})
		if err != nil {
			t.Fatal(err)
		}
		if got := open(string(raw)); got.status != 400 {
			t.Errorf("key %q: %d %s", key, got.status, got.body)
		}
	}
	for _, body := range []string{`{"key":"x","uid":0}`, `{"key":"x","id":"` + b.id + `"}`, `{"key":"x","mounts":["/"]}`, `{"key":"x","privileged":true}`,
		`{"key":"x","KEY":"y"}`, `{"key":"x","key":"..","runtime":"../.."}`, `{"key":"x","runtime":"/"}`, `{"key":"x","driver":"fake"}`, `{"key":"x","limits":{"memory_bytes":-1}}`,
		`{"key":"x","limits":{"pids":1e30}}`, `{"key":"x","env":{"A=B":"c"}}`, `{"key":"x","env":{"A":"b\u0000c"}}`, `{"key":"x","labels":{"sandboxd.owner":"me"}}`,
		`{"key":"x","labels":{"a/b":"me"}}`, `{"key":"x","labels":{"a":"line\r\nX-Injected: 1"}}`, `[]`, `null`, `"x"`, `{"key":`, `{}{}`, strings.Repeat(`[`, 100000)} {
		if got := open(body); got.status != 400 {
			t.Errorf("open with %.80q: %d %s", body, got.status, got.body)
		}
	}
	// Nothing was imported, whatever it is called.
	if got := open(`{"key":"x","image":"/"}`); got.status != 404 {
		t.Errorf("an image: %d %s", got.status, got.body)
	}
	for _, body := range []string{`{"argv":["true"],"command_id":".."}`, `{"argv":["true"],"command_id":"../x"}`, `{"argv":["true"],"command_id":"a/b"}`, `{"argv":["true"],"command_id":"-x"}`,
		`{"argv":["a\u0000b"]}`, `{"shell":"a\u0000b"}`, `{"argv":["true"],"cwd":"\u0000"}`, `{"argv":["true"],"env":{"A":"\u0000"}}`, `{"argv":["true"],"shell":"true"}`, `{}`,
		`{"argv":[""]}`, `{"argv":["true"],"uid":0}`, `{"argv":["true"],"timeout_s":-1}`, `{"argv":["true"],"timeout_s":1e300}`, `{"argv":["true"],"wait":"never"}`,
		`{"argv":["true"],"tty":{"cols":0,"rows":0}}`, `{"argv":["true"],"limits":{"pids":-5}}`} {
		if got := s.must(request{method: "POST", path: a.path("/exec"), body: strings.NewReader(body)}); got.status != 400 {
			t.Errorf("exec of %s: %d %s", body, got.status, got.body)
		}
	}
	if got := a.run(sandboxd.CommandSpec{Argv: []string{"pwd"}, Cwd: "../../.."}); got.ending.Cause == sandboxd.CauseExit && got.stdout != "/\n" && !strings.HasPrefix(got.stdout, "/workspace") {
		t.Errorf("a directory above the workspace is %q", got.stdout)
	}
	if list, err := s.C.List(context.Background(), ""); err != nil || len(list) != 2 {
		t.Errorf("there are %+v, %v", list, err)
	}
	b.stop(theirs)
}

// The keepers of secrets are files that nobody else of the machine can read.
func TestFilesOfTheServerAreClosed(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{Key: "mine", Env: map[string]string{"A": "b"}})
	b.ok("echo x")
	for _, name := range []string{"token", "host-token"} {
		info, err := os.Stat(filepath.Join(s.Data, name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s has mode %v, %v", name, info.Mode(), err)
		}
		if secret := s.Secret(name); len(secret) < 32 {
			t.Errorf("%s has %d characters", name, len(secret))
		}
	}
	if info, err := os.Stat(s.Data); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory has mode %v, %v", info.Mode(), err)
	}
	// One door is not all: below it, too, whoever is not root stops at the next. The
	// init is no secret, and sandboxes run it.
	err := filepath.WalkDir(s.Data, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case name == filepath.Join(s.Data, "bin"):
			return filepath.SkipDir
		case entry.IsDir() && info.Mode().Perm()&0o077 == 0:
			if name != s.Data {
				return filepath.SkipDir
			}
		case entry.Type()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o077 != 0:
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSecretsStaySecret(t *testing.T) {
	s := serve(t)
	ctx := context.Background()
	const ofEnv, ofVariable, ofCommandEnv, ofStdin, ofFile, ofLabel, ofArgument = "CANARY-env-81c", "CANARY-var-c44", "CANARY-cenv-27d", "CANARY-stdin-4fe", "CANARY-file-93b", "CANARY-label-60a", "CANARY-arg-5b5"
	secrets := []string{ofEnv, ofVariable, ofCommandEnv, ofStdin, ofFile, s.Key, s.Secret("host-token")}
	shown := func(where string, text []byte, of ...string) {
		t.Helper()
		for _, secret := range of {
			if i := bytes.Index(text, []byte(secret)); i >= 0 {
				t.Errorf("%s shows %s: %q", where, secret, text[max(0, i-80):min(len(text), i+80)])
			}
		}
	}
	failing := func(what string, in request) {
		t.Helper()
		got := s.must(in)
		if got.status < 400 {
			t.Errorf("%s did not fail: %d %s", what, got.status, got.body)
		}
		shown("the error of "+what, got.body, append([]string{ofLabel, ofArgument}, secrets...)...)
	}
	b := s.open(sandboxd.OpenRequest{Key: "secrets", Env: map[string]string{"SECRET": ofEnv}, Labels: map[string]string{"label": ofLabel}})
	if got := b.run(sandboxd.CommandSpec{Shell: "cat >file; echo $SECRET $OWN | wc -c", Env: map[string]string{"OWN": ofCommandEnv}, Stdin: []byte(ofStdin)}); got.stdout != strconv.Itoa(len(ofEnv)+len(ofCommandEnv)+2)+"\n" {
		t.Errorf("the command did not have its environment: %+v", got)
	}
	if _, err := b.files.Write(ctx, "file", strings.NewReader(ofFile), sandboxd.WriteOptions{Size: -1}); err != nil {
		t.Fatal(err)
	}
	if err := s.C.SetVariables(ctx, b.id, map[string]string{"SECRET": ofVariable}); err != nil {
		t.Fatal(err)
	}
	b.ok("test $SECRET = CANARY-var-c4$((2+2)) && echo other >other")
	held := b.begin(sandboxd.CommandSpec{ID: "held", Argv: []string{"sleep", "1000"}, Env: map[string]string{"OWN": ofCommandEnv}, Stdin: []byte(ofStdin), Background: true})

	post := func(path, body string) request {
		return request{method: "POST", path: path, body: strings.NewReader(body)}
	}
	failing("the same id for another command", post(b.path("/commands"), `{"command_id":"held","argv":["`+ofArgument+`"],"env":{"A":"`+ofCommandEnv+`"}}`))
	failing("a bad variable", post(b.path("/exec"), `{"argv":["true"],"env":{"A":"`+ofCommandEnv+`\u0000"}}`))
	failing("a bad argument", post(b.path("/exec"), `{"argv":["`+ofArgument+`\u0000"]}`))
	failing("an unknown field", post(b.path("/exec"), `{"argv":["true"],"password":"`+ofArgument+`"}`))
	failing("a field of a wrong kind", post(b.path("/exec"), `{"argv":"`+ofArgument+`"}`))
	failing("broken JSON", post(b.path("/exec"), `{"argv":["`+ofArgument+`"`))
	failing("a bad stdin", post(b.path("/exec"), `{"argv":["true"],"stdin":"`+ofArgument+`!"}`))
	failing("a bad label", post("/v1/sandboxes", `{"key":"y","labels":{"a":"`+ofLabel+`\n"}}`))
	failing("a bad variable of a sandbox", post("/v1/sandboxes", `{"key":"y","env":{"A":"`+ofEnv+`\u0000"}}`))
	failing("a bad variable of the set", request{method: "PUT", path: b.path("/variables"), body: strings.NewReader(`{"env":{"A":"` + ofVariable + `\u0000"}}`)})
	failing("a set of a wrong kind", request{method: "PUT", path: b.path("/variables"), body: strings.NewReader(`{"env":["` + ofVariable + `"]}`)})
	failing("a bad runtime", post("/v1/sandboxes", `{"key":"y","runtime":"`+ofArgument+`"}`))
	failing("a bad driver", post("/v1/sandboxes", `{"key":"y","driver":"`+ofArgument+`"}`))
	failing("a bad key", post("/v1/sandboxes", `{"key":"`+ofArgument+`/x"}`))
	failing("a bad limit", post("/v1/sandboxes", `{"key":"y","limits":{"memory_bytes":"`+ofArgument+`"}}`))
	failing("a bad path", request{method: "PUT", path: query(b, "/files", ofArgument+"/../../x", ""), body: strings.NewReader(ofFile)})
	failing("a condition", request{method: "PUT", path: query(b, "/files", "file", ""), body: strings.NewReader(ofFile), header: map[string]string{"If-Match": `"` + ofArgument + `"`}})
	failing("a file as a directory", request{method: "PUT", path: query(b, "/files", "file/"+ofArgument, ""), body: strings.NewReader(ofFile)})
	failing("an archive", request{method: "PUT", path: query(b, "/files/tar", "x", ""), body: strings.NewReader(strings.Repeat(ofFile, 1000))})
	failing("a wrong secret", request{method: "GET", path: "/v1/sandboxes", token: ofArgument})
	failing("the host token", request{method: "GET", path: "/v1/sandboxes", token: s.Secret("host-token")})
	failing("input after the end", post(b.path("/commands/held/stdin?eof=maybe"+ofArgument), ofStdin))
	failing("a signal", post(b.path("/commands/held/signal"), `{"signal":"`+ofArgument+`"}`))

	for _, path := range []string{"/v1/sandboxes", b.path(""), b.path("/commands"), b.path("/commands/held"), b.path("/variables"), "/v1/runtimes", "/openapi.json", "/healthz"} {
		shown(path, s.must(request{method: "GET", path: path}).body, secrets...)
	}
	// Variables are in no file of the sandbox, and so in none of its archives.
	var archive bytes.Buffer
	if err := b.files.TarOut(ctx, "", &archive); err != nil || !bytes.Contains(archive.Bytes(), []byte(ofFile)) {
		t.Errorf("archive: %v, %d bytes", err, archive.Len())
	}
	shown("the archive", archive.Bytes(), ofEnv, ofVariable, ofCommandEnv)
	files := func(when, dir string, of ...string) {
		t.Helper()
		looked := 0
		err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || filepath.Dir(name) == s.Data {
				return err
			}
			raw, err := os.ReadFile(name)
			shown(when+" "+name, raw, of...)
			looked++
			return err
		})
		if err != nil || looked == 0 {
			t.Errorf("%s: %d files, %v", when, looked, err)
		}
	}
	files("a sandbox's", filepath.Join(s.Data, "workspaces"), ofEnv, ofVariable, ofCommandEnv)
	arguments := func(when string) {
		names, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if raw, err := os.ReadFile(name); err == nil { // else it ended meanwhile
				shown(when+": "+name, raw, secrets...)
			}
		}
		for _, name := range []string{"environ", "cmdline"} {
			raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.PID()), name))
			if err != nil {
				t.Error(err)
			}
			shown(when+": the server's "+name, raw, secrets...)
		}
	}
	arguments("running")
	s.Kill()
	s.Start()
	arguments("after a restart")
	failing("a start of the same id", post(b.path("/commands"), `{"command_id":"held","argv":["`+ofArgument+`"]}`))
	b.stop(held)
	if err := s.C.Delete(ctx, b.id); err != nil {
		t.Fatal(err)
	}
	failing("a deleted sandbox", post(b.path("/exec"), `{"argv":["`+ofArgument+`"]}`))
	shown("the server's log", []byte(s.Log.String()), append([]string{ofLabel, ofArgument}, secrets...)...)

	// Nothing has kept them beyond the end of the server, which folds the write-ahead
	// log of its database.
	s.Emptied()
	s.End()
	files("after the delete", s.Data, secrets...)
	s.Start()
}

func TestAnswersCarryNoForeignHeader(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	name := "a\r\nX-Injected: yes"
	if _, err := b.files.Write(context.Background(), name, strings.NewReader("<script>alert(1)</script>"), sandboxd.WriteOptions{Size: -1}); err != nil {
		t.Fatal(err)
	}
	got := s.must(request{method: "GET", path: query(b, "/files/content", name, ""), header: map[string]string{"X-Request-Id": "a b"}})
	if got.header.Get("X-Injected") != "" || got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("the answer has the headers %v", got.header)
	}
	if id := got.header.Get("X-Request-Id"); !regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`).MatchString(id) {
		t.Errorf("the request has the id %q", id)
	}
	if got := s.must(request{method: http.MethodOptions, path: b.path(""), header: map[string]string{"Origin": "http://evil.example", "Access-Control-Request-Method": "DELETE"}, token: "-"}); got.status < 400 || got.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a page may ask: %d %v", got.status, got.header)
	}
}
