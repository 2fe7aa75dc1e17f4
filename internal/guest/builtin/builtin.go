// Package builtin is a Spawner of a few programs that are part of this binary:
// what the guest protocol's suite and the fake driver run instead of processes.
//
// It is not a shell and not an isolation: nothing here starts a host process or
// touches a file. Programs: echo, cat, sleep, exit, true, false, flood BYTES,
// stderr TEXT, env, pwd, fetch URL, listen (see Loopback), and /bin/sh -c with these separated
// by ';'.
package builtin

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// Spawner implements inside.Spawner. The zero value works and is safe for
// concurrent use.
type Spawner struct {
	Loopback *Loopback // the network of its programs; nil for none
}

var _ inside.Spawner = Spawner{}

// Spawn implements inside.Spawner. Groups are closed: there is no process to join
// them.
func (s Spawner) Spawn(spec wire.Start, groups []int) (inside.Process, error) {
	for _, fd := range groups {
		unix.Close(fd)
	}
	steps, err := parse(spec.Argv)
	if err != nil {
		return nil, err
	}
	p := &process{spec: spec, loopback: s.Loopback, done: make(chan struct{}), killed: make(chan struct{})}
	p.outR, p.outW = io.Pipe()
	p.errR, p.errW = io.Pipe()
	if spec.TTY {
		p.errW = p.outW
	}
	if spec.Stdin || spec.TTY {
		p.inR, p.inW = io.Pipe()
	}
	go p.run(steps)
	return p, nil
}

// parse turns an argv into the programs to run in order.
func parse(argv []string) ([][]string, error) {
	if (argv[0] == "/bin/sh" || argv[0] == "sh") && len(argv) == 3 && argv[1] == "-c" {
		var steps [][]string
		for part := range strings.SplitSeq(argv[2], ";") {
			if words := strings.Fields(part); len(words) > 0 {
				steps = append(steps, words)
			}
		}
		return steps, nil
	}
	if programs[argv[0]] == nil {
		return nil, &inside.SpawnError{Code: 127, Text: argv[0] + ": not found"}
	}
	return [][]string{argv}, nil
}

// process is one run of built-in programs.
type process struct {
	spec       wire.Start
	loopback   *Loopback
	inR        *io.PipeReader
	inW        *io.PipeWriter
	outR, errR *io.PipeReader
	outW, errW *io.PipeWriter

	once   sync.Once
	signal int
	killed chan struct{}
	exit   wire.Exit
	done   chan struct{}
}

// program runs with its arguments and answers its exit status.
type program func(p *process, args []string) int

var programs map[string]program

func init() {
	programs = map[string]program{
		"echo":   func(p *process, args []string) int { return p.print(p.outW, strings.Join(args, " ")+"\n") },
		"stderr": func(p *process, args []string) int { return p.print(p.errW, strings.Join(args, " ")+"\n") },
		"env":    func(p *process, _ []string) int { return p.print(p.outW, strings.Join(p.spec.Env, "\n")+"\n") },
		"pwd":    func(p *process, _ []string) int { return p.print(p.outW, p.spec.Cwd+"\n") },
		"true":   func(*process, []string) int { return 0 },
		"false":  func(*process, []string) int { return 1 },
		"cat":    cat,
		"sleep":  sleep,
		"exit":   func(_ *process, args []string) int { return number(args) & 0xff },
		"flood":  flood,
		"fetch":  fetch,
		"listen": listen,
	}
}

func (p *process) print(w io.Writer, text string) int {
	if _, err := io.WriteString(w, text); err != nil {
		return 1
	}
	return 0
}

func number(args []string) int {
	if len(args) == 0 {
		return 0
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return 2
	}
	return n
}

func cat(p *process, _ []string) int {
	if p.inR == nil {
		return 0
	}
	if _, err := io.Copy(p.outW, p.inR); err != nil {
		return 1
	}
	return 0
}

func sleep(p *process, args []string) int {
	if len(args) == 0 {
		return p.usage("sleep: how long?")
	}
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(args[0], "s"), 64)
	if err != nil {
		return p.usage("sleep: not a number of seconds")
	}
	t := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.killed:
	}
	return 0
}

func (p *process) usage(text string) int {
	p.print(p.errW, text+"\n")
	return 2
}

// Pattern is the output of flood from an offset: every 8 bytes are their own
// offset, so that a lost or repeated byte shows.
func Pattern(offset int64, b []byte) {
	for i := range b {
		at := offset + int64(i)
		b[i] = byte((at &^ 7) >> (8 * (at & 7)))
	}
}

func flood(p *process, args []string) int {
	if len(args) == 0 {
		return p.usage("flood: how many bytes?")
	}
	total, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return p.usage("flood: not a number of bytes")
	}
	buf := make([]byte, 8<<10)
	for at := int64(0); at < total; {
		b := buf[:min(int64(len(buf)), total-at)]
		Pattern(at, b)
		n, err := p.outW.Write(b)
		at += int64(n)
		if err != nil {
			return 1
		}
	}
	return 0
}

// fetch prints what the proxy that HTTP_PROXY names answers, its head included.
func fetch(p *process, args []string) int {
	proxy := ""
	for _, v := range p.spec.Env {
		if value, ok := strings.CutPrefix(v, "HTTP_PROXY=http://"); ok {
			proxy = value
		}
	}
	_, number, err := net.SplitHostPort(proxy)
	if err != nil || len(args) == 0 || p.loopback == nil {
		return p.usage("fetch: there is no proxy")
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return p.usage("fetch: there is no proxy")
	}
	conn, err := p.loopback.Connect(uint16(port))
	if err != nil {
		return p.usage("fetch: " + err.Error())
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n", args[0]); err != nil {
		return 1
	}
	if _, err := io.Copy(p.outW, conn); err != nil {
		return 1
	}
	return 0
}

// run runs the steps in order, as a shell does: the last one's status counts,
// exit ends.
func (p *process) run(steps [][]string) {
	code := 0
	for _, step := range steps {
		program := programs[step[0]]
		if program == nil {
			p.print(p.errW, "sh: "+step[0]+": not found\n")
			code = 127
			continue
		}
		code = program(p, step[1:])
		if step[0] == "exit" || p.dead() {
			break
		}
	}
	p.exit.Code = code
	if p.dead() {
		p.exit = wire.Exit{Signal: p.signal}
	}
	p.outW.Close()
	p.errW.Close()
	if p.inR != nil {
		p.inR.Close()
	}
	close(p.done)
}

func (p *process) dead() bool {
	select {
	case <-p.killed:
		return true
	default:
		return false
	}
}

// Stdin implements inside.Process.
func (p *process) Stdin() io.WriteCloser {
	if p.inW == nil {
		return nil
	}
	return p.inW
}

// Outputs implements inside.Process.
func (p *process) Outputs() []inside.Output {
	outputs := []inside.Output{{Tag: wire.TagStdout, R: p.outR}}
	if !p.spec.TTY {
		outputs = append(outputs, inside.Output{Tag: wire.TagStderr, R: p.errR})
	}
	return outputs
}

// Signal implements inside.Process: what ends a program by default ends it.
func (p *process) Signal(sig int) error {
	switch syscall.Signal(sig) {
	case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		return nil
	}
	select {
	case <-p.done:
		return nil
	default:
	}
	p.once.Do(func() {
		p.signal = sig
		close(p.killed)
		// What blocks in a read or write is woken; what was written before is
		// kept: a pipe's reader takes it before it sees the end.
		killed := fmt.Errorf("ended by signal %d", sig)
		p.outW.CloseWithError(io.EOF)
		p.errW.CloseWithError(io.EOF)
		if p.inR != nil {
			p.inR.CloseWithError(killed)
		}
	})
	return nil
}

// Resize implements inside.Process.
func (p *process) Resize(cols, rows uint16) error { return nil }

// Wait implements inside.Process.
func (p *process) Wait() wire.Exit {
	<-p.done
	return p.exit
}
