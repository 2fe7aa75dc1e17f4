package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd/internal/captest"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/test/server"
)

// service is the compose file as one who follows docs/host.md has it, on the engine of
// the tests.
type service struct {
	t     *testing.T
	files []string // compose files
	env   []string
	url   string
}

const serviceToken = "0123456789abcdef0123456789abcdef"

func (s service) compose(args ...string) (string, error) {
	name, before := "docker", []string{"compose"}
	if _, err := exec.LookPath("docker-compose"); err == nil {
		name, before = "docker-compose", nil
	}
	for _, f := range s.files {
		before = append(before, "-f", f)
	}
	cmd := exec.Command(name, append(append(before, "--profile", "sandbox"), args...)...)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s service) must(args ...string) string {
	s.t.Helper()
	out, err := s.compose(args...)
	if err != nil {
		s.t.Fatalf("compose %q: %v\n%s", args, err, out)
	}
	return out
}

// ask sends a request with the service token and answers the body of a 200.
func (s service) ask(method, path, body string) (string, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("X-Sandbox-Token", serviceToken)
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return string(text), err
}

func (s service) run(argv ...string) string {
	s.t.Helper()
	body, _ := json.Marshal(map[string]any{"argv": argv, "run_id": fmt.Sprintf("%032x", time.Now().UnixNano())})
	text, err := s.ask("POST", "/sessions/a/run", string(body))
	var answer struct{ Stdout string }
	if err == nil {
		err = json.Unmarshal([]byte(text), &answer)
	}
	if err != nil {
		s.t.Fatalf("run %q: %v\n%s", argv, err, s.must("logs", "--no-color"))
	}
	return answer.Stdout
}

// ready waits until the host answers.
func (s service) ready() {
	s.t.Helper()
	server.Until(s.t, "the host is ready", time.Minute, func() bool {
		_, err := s.ask("GET", "/readyz", "")
		return err == nil
	})
}

// inCompose prepares the service: image, settings, and that all is gone in the end.
func inCompose(t *testing.T, more string) service {
	t.Helper()
	if testing.Short() {
		captest.Need(t, "patience", false, "not in the short run: make test")
	}
	e := dockertest.Find(t, "runc")
	_, v1 := exec.LookPath("docker-compose")
	v2 := exec.Command("docker", "compose", "version").Run()
	captest.Need(t, "compose", v1 == nil || v2 == nil, "neither docker-compose nor the plugin is installed")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	dir := t.TempDir() // without a data directory, as a machine that has never had a host
	// What the file itself does not leave open: a runtime whose image is here.
	override := filepath.Join(dir, "override.yml")
	text := "services:\n  sandboxd:\n    environment:\n      SANDBOXD_RUNTIMES: '{\"base\":\"" + dockertest.Image + "\"}'\n" + more
	if err := os.WriteFile(override, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := strings.TrimPrefix(e.Host, "unix://")
	s := service{t: t, url: "http://" + address, files: []string{filepath.Join(server.Repository(), "docker-compose.yml"), override},
		env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "DOCKER_HOST=" + e.Host, "COMPOSE_PROJECT_NAME=sandboxd-test", "SANDBOXD_TOKEN=" + serviceToken,
			"SANDBOXD_DATA=" + filepath.Join(dir, "data"), "SANDBOXD_HOST_ADDRESS=" + address, "DOCKER_SOCKET=" + socket}}
	build := exec.Command(filepath.Join(server.Repository(), "scripts/image.sh"))
	build.Env = append(s.env, "SANDBOXD="+server.Program("sandboxd"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("image: %v\n%s", err, out)
	}
	image := "sandboxd:" + strings.TrimSpace(read(t, "VERSION"))
	t.Cleanup(func() {
		_, _ = s.ask("DELETE", "/sessions/a?purge=true", "") // there may be none
		// A delete is accepted first, and the host that is to finish it leaves next.
		server.Until(t, "its sandboxes are gone", 30*time.Second, func() bool {
			left, err := filepath.Glob(filepath.Join(dir, "data", "trash", "*"))
			return err == nil && len(left) == 0
		})
		out, err := s.compose("down", "--timeout", "20")
		if rm, rerr := exec.Command("docker", "-H", e.Host, "image", "rm", "-f", image).CombinedOutput(); err != nil || rerr != nil {
			t.Errorf("down: %v %v\n%s%s", err, rerr, out, rm)
		}
	})
	return s
}

// A new user follows docs/host.md: the host comes up in its container, opens sessions
// beside it, and finds them again after a restart.
func TestComposeServes(t *testing.T) {
	s := inCompose(t, "")
	s.must("up", "-d", "sandboxd")
	s.ready()
	if _, err := s.ask("POST", "/sessions", `{"session_id":"a","tenant":"t"}`); err != nil {
		t.Fatalf("%v\n%s", err, s.must("logs", "--no-color"))
	}
	if out := s.run("/bin/sh", "-c", "id -un; pwd; echo kept >f"); out != "sandbox\n/workspace\n" {
		t.Errorf("run: %q", out)
	}
	s.must("restart", "sandboxd")
	s.ready()
	if out := s.run("cat", "f"); out != "kept\n" {
		t.Errorf("after a restart: %q", out)
	}
}

// A path that only the host's container sees is told before anything runs.
func TestComposeWithAPathOfItsOwn(t *testing.T) {
	s := inCompose(t, "      SANDBOXD_DATA: /elsewhere\n    tmpfs: [/elsewhere]\n    restart: \"no\"\n")
	s.must("up", "-d", "sandboxd")
	var logs bytes.Buffer
	server.Until(t, "the host gives up", time.Minute, func() bool {
		logs.Reset()
		logs.WriteString(s.must("logs", "--no-color"))
		return strings.Contains(logs.String(), "mounts denied")
	})
	if _, err := s.ask("GET", "/healthz", ""); err == nil {
		t.Error("it serves")
	}
}
