package cli

import (
	"cmp"
	"context"
	"io"
	"maps"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/follow"
)

// commandFlags describe one command; exec and run share them.
type commandFlags struct {
	Interactive bool              `short:"i" help:"Send stdin, also when it is a terminal."`
	TTY         bool              `name:"tty" short:"t" help:"Give the command a terminal."`
	Env         map[string]string `short:"e" mapsep:"none" placeholder:"K=V" help:"Set a variable; repeatable."`
	Cwd         string            `placeholder:"DIR" help:"Directory, relative to the workspace."`
	Timeout     float64           `default:"300" placeholder:"SECONDS" help:"Total time, ${default} by default; 0 means none. Ends with 124."`
	Silence     float64           `name:"no-output-timeout" placeholder:"SECONDS" help:"Longest time without output."`
	Shell       string            `placeholder:"LINE" help:"A line for /bin/sh instead of arguments."`
	Argv        []string          `arg:"" optional:"" passthrough:"partial" help:"The command and its arguments."`
}

func (f commandFlags) spec() (sandboxd.CommandSpec, error) {
	argv := f.Argv
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if (len(argv) == 0) == (f.Shell == "") {
		return sandboxd.CommandSpec{}, usageError{"give either a command after -- or --shell", "as: -- python3 -c 'print(1)'"}
	}
	timeout := sandboxd.Seconds(f.Timeout)
	return sandboxd.CommandSpec{ID: sandboxd.NewID(), Argv: argv, Shell: f.Shell, Env: f.Env, Cwd: f.Cwd,
		TimeoutS: &timeout, NoOutputTimeoutS: sandboxd.Seconds(f.Silence)}, nil
}

type execCmd struct {
	Server     server    `embed:""`
	Background bool      `short:"d" help:"Print the command's id and do not wait."`
	ID         string    `placeholder:"ID" help:"Id of the command; a second start of it attaches."`
	Memory     bytesFlag `placeholder:"SIZE" help:"Memory of this command, as 512M."`
	JSON       bool      `name:"json" help:"With -d: answer as JSON."`
	Sandbox    string    `arg:"" help:"Id or key."`
	commandFlags
}

func (c *execCmd) Run(ctx context.Context, p Process) error {
	spec, err := c.spec()
	if err != nil {
		return err
	}
	if c.ID != "" {
		spec.ID = c.ID
	}
	spec.Limits.MemoryBytes = int64(c.Memory)
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	if c.Background {
		spec.Background = true
		cmd, _, err := host.StartCommand(ctx, sb.ID, spec)
		if err != nil {
			return err
		}
		if c.JSON {
			return writeJSON(p.Stdout, cmd)
		}
		_, err = io.WriteString(p.Stdout, cmd.ID+"\n")
		return err
	}
	return foreground(ctx, p, session{host: host, sandbox: sb.ID, spec: spec, stdin: c.Interactive, tty: c.TTY})
}

type shellCmd struct {
	Server  server `embed:""`
	Attach  string `placeholder:"COMMAND" help:"Attach to this terminal instead of a new shell; sandboxd ps SANDBOX lists them."`
	Sandbox string `arg:"" help:"Id or key."`
}

// Help says what the flags do not.
func (c *shellCmd) Help() string {
	return "Ctrl-] detaches: the shell goes on and can be attached to again."
}

func (c *shellCmd) Run(ctx context.Context, p Process) error {
	host, sb, err := c.Server.find(ctx, p, c.Sandbox)
	if err != nil {
		return err
	}
	ending, err := attach(ctx, p, terminal{host: host, sandbox: sb.ID, command: c.Attach, stdin: true})
	return outcome(p, ending, err)
}

// session is a command in the foreground.
type session struct {
	host    *client.Client
	sandbox string
	spec    sandboxd.CommandSpec
	stdin   bool // send it even if it is a terminal
	tty     bool
}

// orphanAfter ends a foreground command whose client died, in seconds;
// detachedAfter one that has a terminal to come back to.
const (
	orphanAfter   = 60
	detachedAfter = 3600
)

// foreground starts a command, carries its streams and signals, and returns its
// exit status as an exitStatus.
func foreground(ctx context.Context, p Process, s session) error {
	ending, err := s.run(ctx, p)
	return outcome(p, ending, err)
}

// outcome turns an ending into the exit status of the program, and says what an
// exit status does not.
func outcome(p Process, ending sandboxd.Ending, err error) error {
	if err != nil {
		return err
	}
	if ending.Cause != sandboxd.CauseExit && ending.Cause != sandboxd.CauseSignal && ending.Cause != sandboxd.CauseStopped {
		text := "the command ended: " + string(ending.Cause)
		if ending.Limit != "" {
			text += " (" + ending.Limit + ")"
		}
		if ending.Message != "" {
			text += ": " + ending.Message
		}
		complain(p.Stderr, text, ending.Remedy)
	}
	switch {
	case ending.ExitCode == nil:
		return exitStatus(1)
	case *ending.ExitCode == 0:
		return nil
	}
	return exitStatus(*ending.ExitCode)
}

func (s session) run(ctx context.Context, p Process) (sandboxd.Ending, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.tty {
		return s.runTerminal(ctx, p)
	}
	s.spec.OrphanAfterS = orphanAfter
	s.spec.StdinOpen = s.stdin || piped(p.Stdin)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	cmd, _, err := s.host.StartCommand(ctx, s.sandbox, s.spec)
	if err != nil {
		return sandboxd.Ending{}, err
	}
	s.spec.ID = cmd.ID
	go s.signals(ctx, signals)
	if s.spec.StdinOpen {
		go s.sendStdin(ctx, p)
	}
	return follow.Output(ctx, s.host, follow.Command{Sandbox: s.sandbox, ID: cmd.ID}, printer{p.Stdout, p.Stderr}.put)
}

// runTerminal starts the command with a terminal like ours and attaches to it.
func (s session) runTerminal(ctx context.Context, p Process) (sandboxd.Ending, error) {
	size, _ := terminalSize(p)
	s.spec.TTY, s.spec.OrphanAfterS = &size, detachedAfter
	env := map[string]string{"TERM": cmp.Or(p.Getenv("TERM"), "xterm-256color")}
	maps.Copy(env, s.spec.Env)
	s.spec.Env = env
	cmd, _, err := s.host.StartCommand(ctx, s.sandbox, s.spec)
	if err != nil {
		return sandboxd.Ending{}, err
	}
	return attach(ctx, p, terminal{host: s.host, sandbox: s.sandbox, command: cmd.ID, stdin: s.stdin})
}

// signals passes ours on. Interrupts go to the command's group; whoever
// interrupts a third time means the whole tree.
func (s session) signals(ctx context.Context, in <-chan os.Signal) {
	interrupts := 0
	for {
		select {
		case <-ctx.Done():
			return
		case sig := <-in:
			switch sig {
			case unix.SIGINT:
				if interrupts++; interrupts < 3 {
					_ = s.host.SignalCommand(ctx, s.sandbox, s.spec.ID, "INT")
					continue
				}
				_, _ = s.host.StopCommand(ctx, s.sandbox, s.spec.ID, 1)
			case unix.SIGQUIT:
				_ = s.host.SignalCommand(ctx, s.sandbox, s.spec.ID, "QUIT")
			default:
				_, _ = s.host.StopCommand(ctx, s.sandbox, s.spec.ID, 5)
			}
		}
	}
}

// sendStdin carries stdin until it ends or nobody wants it. What a command does
// not take it need not: a conflict is no error, as for a closed pipe. A broken
// way is one, because the command would wait for the rest.
func (s session) sendStdin(ctx context.Context, p Process) {
	buf := make([]byte, 32<<10)
	for {
		n, rerr := p.Stdin.Read(buf)
		err := s.host.WriteStdin(ctx, s.sandbox, s.spec.ID, buf[:n], rerr != nil)
		if sandboxd.ClassOf(err) == sandboxd.ClassUnavailable && ctx.Err() == nil {
			complain(p.Stderr, "the rest of stdin cannot be sent: "+err.Error(), "")
			_, _ = s.host.StopCommand(ctx, s.sandbox, s.spec.ID, 1)
		}
		if err != nil || rerr != nil {
			return
		}
	}
}

// printer puts output where it belongs.
type printer struct{ stdout, stderr io.Writer }

func (p printer) put(frame sandboxd.Frame) error {
	if frame.Gap != nil {
		complain(p.stderr, size(frame.Gap.To-frame.Gap.From)+" of output are no longer kept", "")
		return nil
	}
	w := p.stdout
	if frame.Stream == sandboxd.StreamStderr {
		w = p.stderr
	}
	_, err := w.Write(frame.Data)
	return err
}

// piped says whether stdin holds something to send: a pipe, a file or a socket,
// no terminal and not /dev/null.
func piped(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return r != nil
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice == 0
}
