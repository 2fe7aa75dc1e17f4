package script

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// console is a person at a terminal who runs the server.Program("sandboxd").
type console struct {
	t     *testing.T
	pty   *os.File
	cmd   *exec.Cmd
	shown chan []byte
	seen  bytes.Buffer
}

func openConsole(t *testing.T, env []string, args ...string) *console {
	t.Helper()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	c := &console{t: t, pty: pty, shown: make(chan []byte, 1000)}
	c.resize(100, 30)
	c.cmd = exec.Command(server.Program("sandboxd"), args...)
	c.cmd.Env = env
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = tty, tty, tty
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.shown)
		for {
			buf := make([]byte, 4096)
			n, err := pty.Read(buf)
			if err != nil {
				return
			}
			c.shown <- buf[:n]
		}
	}()
	t.Cleanup(func() { _ = c.cmd.Process.Kill(); pty.Close() })
	return c
}

func (c *console) resize(cols, rows uint16) {
	c.t.Helper()
	if err := unix.IoctlSetWinsize(int(c.pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *console) typed(text string) {
	c.t.Helper()
	if _, err := c.pty.WriteString(text); err != nil {
		c.t.Fatal(err)
	}
}

// expect waits until the screen has shown the pattern and forgets up to it.
func (c *console) expect(pattern string) []string {
	c.t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(15 * time.Second)
	for {
		if at := re.FindSubmatchIndex(c.seen.Bytes()); at != nil {
			var found []string
			for _, part := range re.FindSubmatch(c.seen.Bytes()) {
				found = append(found, string(part))
			}
			c.seen.Next(at[1])
			return found
		}
		select {
		case data, ok := <-c.shown:
			if !ok {
				c.t.Fatalf("ended without %q: %q", pattern, c.seen.String())
			}
			c.seen.Write(data)
		case <-deadline:
			c.t.Fatalf("no %q in %q", pattern, c.seen.String())
		}
	}
}

// ends waits for the program's exit code.
func (c *console) ends() int {
	c.t.Helper()
	done := make(chan struct{})
	go func() { _ = c.cmd.Wait(); close(done) }()
	select {
	case <-done:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(15 * time.Second):
		c.t.Fatalf("still running: %q", c.seen.String())
		return 0
	}
}

// TestTerminal is a person in a shell: type, resize, interrupt, detach, attach,
// leave with a status.
func TestTerminal(t *testing.T) {
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
	env := environ(data, s.URL)
	create := exec.Command(server.Program("sandboxd"), "create", "demo")
	create.Env = env
	if out, err := create.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	c := openConsole(t, env, "shell", "demo")
	c.typed("echo a$((40+2)); stty size\n")
	c.expect(`a42\r\n30 100\r\n`)
	c.resize(120, 40)
	c.typed("until [ \"$(stty size)\" = '40 120' ]; do :; done; echo re''sized\n")
	c.expect(`resized`)
	c.typed("sh -c \"echo sta''rted; exec sleep 1000\"\n")
	c.expect(`started`)
	c.typed("\x03")
	c.typed("echo inter''rupted; mark=kept\n")
	c.expect(`interrupted`)
	c.typed("\x1d")
	again := c.expect(`detached; attach again with: sandboxd (shell) ([a-z2-7]{20}) (--attach) (\S+)`)
	if code := c.ends(); code != 0 {
		t.Errorf("detaching is exit %d", code)
	}

	c = openConsole(t, env, again[1:]...)
	c.typed("echo mark is $mark\n")
	c.expect(`mark is kept`)
	c.typed("exit 6\n")
	if code := c.ends(); code != 6 {
		t.Errorf("exit %d, want 6", code)
	}
}

// TestInterrupt is Ctrl-C on a command without a terminal of its own: it gets the
// signal, and its exit status counts.
func TestInterrupt(t *testing.T) {
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
	c := openConsole(t, environ(data, s.URL), "run", "--shell", "trap 'echo caught; exit 4' INT; echo ready; sleep 1000 & wait")
	c.expect(`ready`)
	c.typed("\x03")
	c.expect(`caught`)
	if code := c.ends(); code != 4 {
		t.Errorf("exit %d, want 4", code)
	}
}
