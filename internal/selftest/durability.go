package selftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"sandboxd"
	"sandboxd/internal/follow"
)

// Server is a host in a process of its own, on one data directory, which can be
// killed and started again.
type Server interface {
	// Start starts the process and answers its host when it is up.
	Start(ctx context.Context) (sandboxd.Host, error)
	// Kill ends the process by SIGKILL and returns when it has ended.
	Kill() error
}

// The command that runs while the host is away counts so far, and is a good way
// on when the host goes.
const countTo, countSeen = 300, 20

// durability kills the host and looks what the next one finds.
func (t *trial) durability(ctx context.Context) ([]Line, error) {
	if t.Server == nil {
		return nil, nil
	}
	host, err := t.Server.Start(ctx)
	if err != nil {
		return nil, err
	}
	b, err := open(ctx, host, t.Config, sandboxd.Limits{})
	if b != nil {
		defer func() { b.close(context.WithoutCancel(ctx)) }()
	}
	if err != nil {
		return nil, err
	}
	d := durability{box: b, content: []byte("kept " + sandboxd.NewID())}
	if err := d.prepare(ctx); err != nil {
		return nil, err
	}
	if err := t.Server.Kill(); err != nil {
		return nil, fmt.Errorf("kill the host: %w", err)
	}
	if b.host, err = t.Server.Start(ctx); err != nil {
		return nil, fmt.Errorf("start the host again: %w", err)
	}
	return []Line{d.adopted(ctx), d.file(ctx), d.resumed(ctx)}, nil
}

// durability is what was there when the host was killed.
type durability struct {
	*box
	content []byte
	command string
	seen    string // of its output
}

const keptFile = "kept/file"

func (d *durability) prepare(ctx context.Context) error {
	files, err := d.host.Files(ctx, d.sb.ID)
	if err != nil {
		return err
	}
	if _, err := files.Write(ctx, keptFile, bytes.NewReader(d.content), sandboxd.WriteOptions{Synced: true, Size: int64(len(d.content))}); err != nil {
		return err
	}
	spec := prober("count", strconv.Itoa(countTo))
	spec.Background = true
	cmd, _, err := d.host.StartCommand(ctx, d.sb.ID, spec)
	if err != nil {
		return err
	}
	d.command = cmd.ID
	enough := errors.New("enough")
	_, err = follow.Output(ctx, d.host, follow.Command{Sandbox: d.sb.ID, ID: cmd.ID}, func(f sandboxd.Frame) error {
		if d.seen += string(f.Data); strings.Count(d.seen, "\n") >= countSeen {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		return fmt.Errorf("the prober does not count: %q, %w", d.seen, err)
	}
	return nil
}

func (d *durability) line(mechanism, tried, why string) Line {
	return Line{Section: "durability", Mechanism: mechanism, Tried: tried + " after kill -9 of the host", Why: why, Verdict: Fail}
}

func (d *durability) adopted(ctx context.Context) Line {
	l := d.line("adoption", "whether the sandbox runs", "a crash of the server must not cost anybody's work")
	sb, err := d.host.Get(ctx, d.sb.ID)
	switch {
	case err != nil:
		l.Got = err.Error()
	case sb.State != sandboxd.StateRunning || sb.Generation != d.sb.Generation:
		l.Got = fmt.Sprintf("it is %s, in generation %d after %d", sb.State, sb.Generation, d.sb.Generation)
	default:
		l.Got, l.Verdict = "the same environment runs", OK
	}
	return l
}

func (d *durability) file(ctx context.Context) Line {
	l := d.line("files", "to read a file that was written with synced", "what was acknowledged is there")
	files, err := d.host.Files(ctx, d.sb.ID)
	if err != nil {
		l.Got = err.Error()
		return l
	}
	f, err := files.Open(ctx, keptFile)
	if err != nil {
		l.Got = err.Error()
		return l
	}
	defer f.Close()
	got, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil || !bytes.Equal(got, d.content) {
		l.Got = fmt.Sprintf("it holds %q, %v", got, err)
		return l
	}
	l.Got, l.Verdict = "every byte is there", OK
	return l
}

// resumed reads on where the first host's follower was.
func (d *durability) resumed(ctx context.Context) Line {
	l := d.line("journal", "to read on in the output of a command that went on", "output is kept in order, each byte once")
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	said := d.seen
	ending, err := follow.Output(ctx, d.host, follow.Command{Sandbox: d.sb.ID, ID: d.command, Offset: int64(len(d.seen))}, func(f sandboxd.Frame) error {
		said += string(f.Data)
		return nil
	})
	var want strings.Builder
	for i := range countTo {
		fmt.Fprintln(&want, i+1)
	}
	switch {
	case err != nil:
		l.Got = err.Error()
	case said != want.String():
		l.Got = fmt.Sprintf("%d lines of %d, and not those that were written", strings.Count(said, "\n"), countTo)
	case ending.Cause != sandboxd.CauseExit || ending.ExitCode == nil || *ending.ExitCode != 0:
		l.Got = output{ending: ending}.String()
	default:
		l.Got, l.Verdict = fmt.Sprintf("all %d lines, and its ending", countTo), OK
	}
	return l
}
