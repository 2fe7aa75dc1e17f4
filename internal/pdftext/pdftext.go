// Package pdftext reads the text of PDF files that nobody has looked at. The format is
// large and its parsers are often wrong, so none of it is parsed in the process that asks:
// Extract runs this program again, as nobody where it may, without a network, for a bounded
// time and in bounded memory.
package pdftext

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// Argument makes a program parse: its main must call Main when it is the first one.
const Argument = "pdf-text"

const (
	longest   = 12 * time.Second
	nobody    = 65534
	maxText   = 16 << 20
	maxSaid   = 300
	atOnce    = 2
	tooLarge  = "its text is too large"
	noText    = "No extractable text found in PDF"
	noPages   = "PDF contains no pages"
	tooMuch   = "it takes too much time or memory"
	encrypted = "it is encrypted"
)

// turns bounds how many files are parsed at the same time.
var turns = make(chan struct{}, atOnce)

// Extract answers what a PDF says of itself and the text of its pages, each behind a line
// with its number. A file without text, or that cannot be parsed, is ClassInvalid, whose
// message says why; everything else is a fault of this machine.
func Extract(ctx context.Context, data []byte) (string, error) {
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	text, err := parse(ctx, data, true)
	if errors.Is(err, unix.EPERM) {
		text, err = parse(ctx, data, false) // this process may become nobody else
	}
	return text, err
}

func parse(ctx context.Context, data []byte, apart bool) (string, error) {
	// The link leads to this very program, also for a user who may not look where it lies.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Argument)
	cmd.Env, cmd.Dir = []string{"GOMAXPROCS=1"}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if apart && os.Geteuid() == 0 {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWIPC
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	text, said := &bounded{most: maxText}, &bounded{most: 4096}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), text, said
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case text.full:
		return "", fault(tooLarge)
	case err == nil:
		return text.taken.String(), nil
	case ctx.Err() != nil && ctx.Err() != context.DeadlineExceeded:
		return "", ctx.Err()
	case errors.As(err, &ended) && ended.ExitCode() == refusal:
		return "", fault(strings.TrimSpace(said.taken.String()))
	case errors.As(err, &ended):
		return "", fault(tooMuch) // a limit ended it
	}
	return "", fmt.Errorf("run the parser: %w", err)
}

func fault(why string) error {
	return sandboxd.Errorf(sandboxd.ClassInvalid, "%.*s", maxSaid, strings.ToValidUTF8(why, "?"))
}

// bounded takes so many bytes and refuses the rest.
type bounded struct {
	taken bytes.Buffer
	most  int
	full  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.taken.Len()+len(p) > b.most {
		b.full = true
		return 0, errors.New("too much")
	}
	return b.taken.Write(p)
}
