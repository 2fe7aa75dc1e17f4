// Package selftest finds out by trying whether sandboxes hold on this machine: it
// opens some, runs the prober in them, and judges what it got, by mechanism. It
// does so through a sandboxd.Host only and knows no driver; who starts and kills
// the host is its caller. It is not a monitor: it runs once, and is noisy.
package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/follow"
)

// ProberName is the prober's name in a workspace.
const ProberName = "prober"

// Config is what a selftest works with. Host and Prober are needed.
type Config struct {
	Host   sandboxd.Host // nobody else's sandboxes are touched; those of the selftest are deleted
	Driver string        // by which to open sandboxes; empty for the host's first
	Prober []byte        // the program of internal/isolate/prober, static
	// Image and OCIRuntime are of containers: Image empty means that sandboxes are none.
	Image, OCIRuntime string
	// OwnKernel says that the OCI runtime has another kernel answer in the machine's place.
	OwnKernel bool
	Level     []sandboxd.LevelLine
	// OneUser says that the host has one user for all sandboxes, its own, because it
	// is not root's: what that costs is weak and no failure.
	OneUser bool
	Server  Server // nil leaves out durability, as of a driver whose environments end with the host
	// Version is the program's.
	Version string
}

// Patience bounds the wait for one command, all of which take far less.
const Patience = 30 * time.Second

// Run tries everything and answers what it found. The error says that ctx ended;
// what goes wrong otherwise is a line of the report.
func Run(ctx context.Context, cfg Config) (Report, error) {
	r := Report{Version: cfg.Version, Driver: cfg.Driver, OCIRuntime: cfg.OCIRuntime, Machine: machine(), Lines: level(cfg.Level)}
	t := &trial{Config: cfg}
	defer t.close(context.WithoutCancel(ctx))
	for _, part := range []struct {
		section string
		do      func(context.Context) ([]Line, error)
	}{
		{"boundary", t.boundary}, {"network", t.network}, {"neighbours", t.neighbours}, {"resources", t.resources}, {"durability", t.durability},
	} {
		lines, err := part.do(ctx)
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		r.Lines = append(r.Lines, lines...)
		if err != nil {
			r.Lines = append(r.Lines, Line{Section: part.section, Mechanism: "sandbox", Tried: "to go through this part", Got: err.Error(), Verdict: Fail,
				Why: "what could not be tried is not known to hold"})
		}
	}
	r.Green = len(r.Failed()) == 0
	return r, nil
}

// machine is the kernel and the processor, without the machine's name.
func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return runtime.GOARCH
	}
	return fmt.Sprintf("Linux %s %s", unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
}

// trial is one run.
type trial struct {
	Config
	opened []*box
	first  *box // of the boundary, and a neighbour later
}

// box is a sandbox of the selftest, with the prober in it.
type box struct {
	host sandboxd.Host
	sb   sandboxd.Sandbox
}

func (t *trial) open(ctx context.Context, limits sandboxd.Limits) (*box, error) {
	b, err := open(ctx, t.Host, t.Config, limits)
	if b != nil {
		t.opened = append(t.opened, b)
	}
	return b, err
}

// open answers a box also with an error when there is something to delete.
func open(ctx context.Context, host sandboxd.Host, cfg Config, limits sandboxd.Limits) (*box, error) {
	sb, _, err := host.Open(ctx, sandboxd.OpenRequest{Driver: cfg.Driver, Image: cfg.Image, OCIRuntime: cfg.OCIRuntime, Limits: limits})
	if err != nil {
		return nil, fmt.Errorf("open a sandbox: %w", err)
	}
	b := &box{host, sb}
	files, err := host.Files(ctx, sb.ID)
	if err != nil {
		return b, err
	}
	if _, err := files.Write(ctx, ProberName, bytes.NewReader(cfg.Prober), sandboxd.WriteOptions{Executable: true, Size: int64(len(cfg.Prober))}); err != nil {
		return b, fmt.Errorf("write the prober: %w", err)
	}
	return b, nil
}

func (t *trial) close(ctx context.Context) {
	for _, b := range t.opened {
		b.close(ctx)
	}
}

// close stops first: after that, whatever happens, no process is left.
func (b *box) close(ctx context.Context) {
	_, _ = b.host.Stop(ctx, b.sb.ID)
	_ = b.host.Delete(ctx, b.sb.ID)
}

// output is what a command left.
type output struct {
	stdout, stderr string
	ending         sandboxd.Ending
}

func (o output) String() string {
	text := fmt.Sprintf("it ended with %s", o.ending.Cause)
	if o.ending.ExitCode != nil {
		text += fmt.Sprintf(" %d", *o.ending.ExitCode)
	}
	if said := strings.TrimSpace(o.stderr + " " + o.ending.Message); said != "" {
		text += ": " + said[:min(len(said), 300)]
	}
	return text
}

// prober is a command that runs the prober.
func prober(args ...string) sandboxd.CommandSpec {
	timeout := sandboxd.InSeconds(Patience)
	return sandboxd.CommandSpec{Argv: append([]string{sandboxd.WorkDir + "/" + ProberName}, args...), TimeoutS: &timeout}
}

// run runs the prober to its end.
func (b *box) run(ctx context.Context, args ...string) (output, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*Patience)
	defer cancel()
	cmd, _, err := b.host.StartCommand(ctx, b.sb.ID, prober(args...))
	if err != nil {
		return output{}, err
	}
	return b.follow(ctx, cmd.ID)
}

// follow reads a command's output to its ending.
func (b *box) follow(ctx context.Context, command string) (output, error) {
	var out output
	var err error
	out.ending, err = follow.Output(ctx, b.host, follow.Command{Sandbox: b.sb.ID, ID: command}, func(f sandboxd.Frame) error {
		if f.Stream == sandboxd.StreamStderr {
			out.stderr += string(f.Data)
		} else {
			out.stdout += string(f.Data)
		}
		return nil
	})
	return out, err
}

// ask runs the prober and answers the object that it printed.
func (b *box) ask(ctx context.Context, args ...string) (map[string]string, error) {
	out, err := b.run(ctx, args...)
	if err != nil {
		return nil, err
	}
	var found map[string]string
	if err := json.Unmarshal([]byte(out.stdout), &found); err != nil {
		return nil, fmt.Errorf("the prober did not answer: %v", out)
	}
	return found, nil
}

// begin starts the prober in the background and answers its first line.
func (b *box) begin(ctx context.Context, args ...string) (command string, said string, err error) {
	spec := prober(args...)
	spec.Background = true
	spec.TimeoutS = nil
	cmd, _, err := b.host.StartCommand(ctx, b.sb.ID, spec)
	if err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	enough := errors.New("a line")
	ending, err := follow.Output(ctx, b.host, follow.Command{Sandbox: b.sb.ID, ID: cmd.ID}, func(f sandboxd.Frame) error {
		said += string(f.Data)
		if strings.Contains(said, "\n") {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		return "", "", fmt.Errorf("the prober did not begin: %v %s %w", output{stderr: said, ending: ending}, said, err)
	}
	return cmd.ID, said, nil
}

// alive says whether a command that was begun still runs.
func (b *box) alive(ctx context.Context, command string) error {
	cmd, err := b.host.GetCommand(ctx, b.sb.ID, command)
	if err == nil && cmd.Ending != nil {
		err = fmt.Errorf("it ended: %s %s", cmd.Ending.Cause, cmd.Ending.Message)
	}
	return err
}
