package script

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// forwarding is a `sandboxd port` that runs.
type forwarding struct {
	cmd    *exec.Cmd
	addr   string
	errors *bufio.Reader
}

func forwardPort(t *testing.T, env []string, args ...string) *forwarding {
	t.Helper()
	f := &forwarding{cmd: exec.Command(server.Program("sandboxd"), append([]string{"port"}, args...)...)}
	f.cmd.Env = env
	stdout, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := f.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	f.errors = bufio.NewReader(stderr)
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.cmd.Process.Kill() })
	guard := time.AfterFunc(20*time.Second, func() { _ = f.cmd.Process.Kill() })
	defer guard.Stop()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	addr, _, ok := strings.Cut(line, " is port ")
	if err != nil || !ok || !strings.HasPrefix(addr, "127.0.0.1:") {
		t.Fatalf("it said %q, %v", line, err)
	}
	f.addr = addr
	return f
}

// ends waits for it and answers its exit code.
func (f *forwarding) ends(t *testing.T) int {
	t.Helper()
	guard := time.AfterFunc(20*time.Second, func() { _ = f.cmd.Process.Kill() })
	defer guard.Stop()
	_ = f.cmd.Wait()
	return f.cmd.ProcessState.ExitCode()
}

// TestPort is a web server in a sandbox without a network, seen with curl on this
// machine: a page, a big file, a hundred requests, a port that nothing listens on,
// Ctrl-C, and the end of the server under an open connection.
func TestPort(t *testing.T) {
	captest.Root(t)
	data := t.TempDir()
	s, err := start(data, "--driver", "process")
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			if err := s.End(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	})
	binary := server.Program("sandboxd")
	env := environ(data, s.URL)
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	run(binary, "create", "demo")
	run(binary, "exec", "demo", "--shell", "echo 'hello from inside' >index.html; head -c 20000000 /dev/urandom >big; sha256sum big | cut -c1-64 >sum")
	run(binary, "exec", "-d", "--id", "web", "demo", "--", "python3", "-m", "http.server", "8000", "--bind", "127.0.0.1")
	web := forwardPort(t, env, "demo", "8000", "0")
	url := "http://" + web.addr + "/"
	server.Until(t, "the page is there", 20*time.Second, func() bool {
		out, err := exec.Command("curl", "-sS", "--max-time", "10", url).CombinedOutput()
		return err == nil && string(out) == "hello from inside\n"
	})
	if got := run("sh", "-c", "curl -sS --max-time 60 "+url+"big | sha256sum | cut -c1-64"); got != run("curl", "-sS", url+"sum") {
		t.Errorf("the big file arrives as %s", got)
	}
	if got := run("sh", "-c", "seq 100 | xargs -P 20 -I{} curl -sS --max-time 60 "+url+" | grep -c hello"); got != "100\n" {
		t.Errorf("of a hundred requests %s were answered", got)
	}
	list := run(binary, "port", "demo")
	if lines := strings.Split(list, "\n"); len(lines) != 3 || !strings.HasPrefix(strings.Join(strings.Fields(lines[1]), " "), "8000 127.0.0.1 ") || !strings.HasSuffix(strings.Join(strings.Fields(lines[1]), " "), " python3 web") {
		t.Errorf("the list:\n%s", list)
	}

	// A port that nothing listens on is said so, and the forward goes on.
	none := forwardPort(t, env, "demo", "4321", "0")
	if out, err := exec.Command("curl", "-sS", "--max-time", "10", "http://"+none.addr+"/").CombinedOutput(); err == nil {
		t.Errorf("nothing answered %s", out)
	}
	if line, err := none.errors.ReadString('\n'); err != nil || !strings.Contains(line, "nothing answers on port 4321") {
		t.Errorf("it said %q, %v", line, err)
	}
	_ = none.cmd.Process.Signal(syscall.SIGINT)
	if code := none.ends(t); code != 0 {
		t.Errorf("Ctrl-C is exit %d", code)
	}
	// One that is taken here is said so.
	if out, err := exec.Command("env", append(env, binary, "port", "demo", "8000", portOf(t, web.addr))...).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "hint: choose another port") {
		t.Errorf("a port that is taken: %v: %s", err, out)
	}

	// The end of the server is no clean end of what it carried.
	run(binary, "exec", "-d", "--id", "slow", "demo", "--", "python3", "-c", slowServer)
	slow := forwardPort(t, env, "demo", "8001", "0")
	var res *http.Response
	server.Until(t, "the slow server answers", 20*time.Second, func() bool {
		got, err := http.Get("http://" + slow.addr + "/")
		if err == nil {
			res = got
		}
		return err == nil
	})
	defer res.Body.Close()
	began := time.Now()
	if err := s.End(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	stopped = true
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the server took %v to end", took)
	}
	if rest, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the answer looks whole: %q", rest)
	}
	_ = slow.cmd.Process.Signal(syscall.SIGTERM)
	slow.ends(t)

	// Its sandboxes are there again, and so is the port.
	if s, err = start(data, "--driver", "process"); err != nil {
		t.Fatal(err)
	}
	stopped = false
	env = environ(data, s.URL)
	again := forwardPort(t, env, "demo", "8000", "0")
	if got := run("curl", "-sS", "--max-time", "10", "http://"+again.addr+"/"); got != "hello from inside\n" {
		t.Errorf("after the restart: %q", got)
	}
}

// slowServer begins an answer without a length and never ends it.
const slowServer = `
import socket, time
s = socket.create_server(('127.0.0.1', 8001))
while True:
    c, _ = s.accept()
    c.recv(65536)
    c.sendall(b'HTTP/1.0 200 OK\r\n\r\nhalf of')
    keep = c
    time.sleep(1000)
`

func portOf(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
