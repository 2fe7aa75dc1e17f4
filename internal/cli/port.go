package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/signal"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/relay"
)

type portCmd struct {
	Server  server `embed:""`
	JSON    bool   `name:"json" help:"Without a port: answer as JSON."`
	Sandbox string `arg:"" help:"Id or key."`
	Port    string `arg:"" optional:"" help:"Port inside; without one, those that listen are listed."`
	Local   string `arg:"" optional:"" name:"localport" help:"Port on 127.0.0.1 here, the same by default; 0 takes a free one."`
}

// Help says what the arguments do not.
func (c *portCmd) Help() string {
	return "Connections to 127.0.0.1 here reach the port inside, until Ctrl-C. The sandbox needs no network for it."
}

func (c *portCmd) Run(ctx context.Context, p Process) error {
	port, local, err := c.ports()
	if err != nil {
		return err
	}
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	if port == 0 {
		return c.list(ctx, p, host, sb.ID)
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(local))))
	if err != nil {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "cannot listen here: %v", err).
			WithHint("choose another port, as: sandboxd port %s %d 0", c.Sandbox, port)
	}
	if _, err := fmt.Fprintf(p.Stdout, "%s is port %d of %s\n", l.Addr(), port, sb.Key); err != nil {
		l.Close()
		return err
	}
	f := forward{host: host, sandbox: sb.ID, port: port, open: map[net.Conn]bool{}, stderr: p.Stderr}
	return f.serve(ctx, l)
}

// ports are the port inside, 0 for the list, and the one to listen on.
func (c *portCmd) ports() (inside, local uint16, err error) {
	if c.Port == "" {
		return 0, 0, nil
	}
	const example = "as: sandboxd port SANDBOX 8000 0"
	if c.JSON {
		return 0, 0, usageError{"--json goes with the list of ports", example}
	}
	n, err := strconv.ParseUint(c.Port, 10, 16)
	if err != nil || n == 0 {
		return 0, 0, usageError{shown(c.Port) + " is no port", example}
	}
	if c.Local == "" {
		return uint16(n), uint16(n), nil
	}
	l, err := strconv.ParseUint(c.Local, 10, 16)
	if err != nil {
		return 0, 0, usageError{shown(c.Local) + " is no port", example}
	}
	return uint16(n), uint16(l), nil
}

func (c *portCmd) list(ctx context.Context, p Process, host *client.Client, id string) error {
	list, err := host.ListPorts(ctx, id)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(p.Stdout, list)
	}
	rows := [][]string{{"PORT", "ADDRESS", "PID", "PROCESS", "COMMAND"}}
	for _, port := range list.Ports {
		pid := ""
		if port.PID != 0 {
			pid = strconv.Itoa(port.PID)
		}
		rows = append(rows, []string{strconv.Itoa(int(port.Port)), port.Address, pid, port.Process, port.CommandID})
	}
	if list.Incomplete {
		complain(p.Stderr, "the list is not complete", "")
	}
	return table(p.Stdout, rows)
}

// forward carries connections of one local port into a sandbox.
type forward struct {
	host    *client.Client
	sandbox string
	port    uint16

	mu     sync.Mutex
	open   map[net.Conn]bool // nil at the end
	stderr io.Writer
}

// serve takes connections until ctx ends, and then closes them.
func (f *forward) serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var carried sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil {
			l.Close()
			f.closeAll()
			carried.Wait()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		carried.Go(func() { f.carry(ctx, conn.(*net.TCPConn)) })
	}
}

func (f *forward) carry(ctx context.Context, conn *net.TCPConn) {
	defer conn.Close()
	if !f.add(conn) {
		return
	}
	defer f.remove(conn)
	inside, err := f.host.DialPort(ctx, f.sandbox, f.port)
	if err != nil {
		if ctx.Err() == nil {
			f.say(err)
		}
		_ = conn.SetLinger(0) // refused, as the port itself would
		return
	}
	relay.Join(conn, inside)
}

func (f *forward) add(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		return false
	}
	f.open[conn] = true
	return true
}

func (f *forward) remove(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, conn)
}

func (f *forward) closeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.open {
		conn.Close()
	}
	f.open = nil
}

// say tells why a connection was not made; the next may be.
func (f *forward) say(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	report(f.stderr, explain(err))
}
