package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sandboxd"
	"sandboxd/client"
)

// detachKey is Ctrl-], as telnet has it: no shell needs it.
const detachKey = 0x1d

// endOfInput is what a terminal sends for the end of a file.
const endOfInput = 0x04

// terminal says what to attach to.
type terminal struct {
	host    *client.Client
	sandbox string
	command string // "" starts a login shell
	stdin   bool   // send it even if it is neither a terminal nor piped
}

// attach joins our terminal to one in a sandbox until its command ends or the
// person detaches; the latter is an ending without a fault.
func attach(ctx context.Context, p Process, t terminal) (sandboxd.Ending, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	size, known := terminalSize(p)
	opts := client.TerminalOptions{Command: t.command}
	if known || t.command == "" {
		opts.Size = size
	}
	remote, err := t.host.Terminal(ctx, t.sandbox, opts)
	if err != nil {
		return sandboxd.Ending{}, err
	}
	defer remote.Close()
	ours, isTerm := p.Stdin.(*os.File)
	isTerm = isTerm && term.IsTerminal(int(ours.Fd()))
	if isTerm {
		old, err := term.MakeRaw(int(ours.Fd()))
		if err != nil {
			return sandboxd.Ending{}, sandboxd.Wrap(sandboxd.ClassUnavailable, err, "the terminal cannot be made raw")
		}
		defer func() { _ = term.Restore(int(ours.Fd()), old) }()
	}
	go resizes(ctx, p, remote)
	detached := make(chan struct{})
	if isTerm || t.stdin || piped(p.Stdin) {
		go typeInto(remote, p.Stdin, func() { close(detached); cancel() })
	}
	_, err = io.Copy(p.Stdout, reader{remote})
	select {
	case <-detached:
		fmt.Fprintf(p.Stderr, "\r\ndetached; attach again with: sandboxd shell %s --attach %s\r\n", t.sandbox, remote.CommandID())
		zero := 0
		return sandboxd.Ending{Cause: sandboxd.CauseExit, ExitCode: &zero}, nil
	default:
	}
	if err != nil {
		return sandboxd.Ending{}, err
	}
	if ending := remote.Ending(); ending != nil {
		return *ending, nil
	}
	return sandboxd.Ending{}, sandboxd.Errorf(sandboxd.ClassUnavailable, "the terminal closed without an ending")
}

// reader hides every other method, so that io.Copy reads piece by piece.
type reader struct{ io.Reader }

// typeInto sends what is typed, until the end or the detach key.
func typeInto(remote io.Writer, r io.Reader, detach func()) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		data := buf[:n]
		at := bytes.IndexByte(data, detachKey)
		if at >= 0 {
			data = data[:at]
		}
		if _, werr := remote.Write(data); werr != nil {
			return
		}
		switch {
		case at >= 0:
			detach()
			return
		case errors.Is(err, io.EOF):
			_, _ = remote.Write([]byte{endOfInput})
			return
		case err != nil:
			return
		}
	}
}

func resizes(ctx context.Context, p Process, remote *client.Terminal) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	defer signal.Stop(changed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if size, ok := terminalSize(p); ok && remote.Resize(size) != nil {
				return
			}
		}
	}
}

// terminalSize is the size of ours, or the usual one.
func terminalSize(p Process) (size sandboxd.TTY, known bool) {
	for _, s := range []any{p.Stdout, p.Stdin, p.Stderr} {
		if f, ok := s.(*os.File); ok {
			if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
				return sandboxd.TTY{Cols: uint16(w), Rows: uint16(h)}, true
			}
		}
	}
	return sandboxd.TTY{Cols: 80, Rows: 24}, false
}
