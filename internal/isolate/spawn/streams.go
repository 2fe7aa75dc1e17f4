package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sandboxd/internal/guest/inside"
	"sandboxd/internal/guest/wire"
)

// open makes the child's three descriptors and our ends of them. The caller
// closes the child's, also after an error; 0 stands for none.
func (p *process) open(spec wire.Start) (child [3]int, err error) {
	if spec.TTY {
		return p.openTerminal(spec)
	}
	if spec.Stdin {
		r, w, err := pipe(1)
		if err != nil {
			return child, err
		}
		child[0], p.stdin = r, w
	} else if child[0], err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return child, err
	}
	for tag := 1; tag <= 2; tag++ {
		w, r, err := pipe(0)
		if err != nil {
			return child, err
		}
		child[tag] = w
		p.outputs = append(p.outputs, inside.Output{Tag: byte(tag), R: r})
	}
	return child, nil
}

// pipe answers the child's end and ours, which is end ours (0 read, 1 write) of
// the pipe and does not block a thread.
func pipe(ours int) (int, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return 0, nil, err
	}
	if err := unix.SetNonblock(fds[ours], true); err != nil {
		closeAll(fds[:])
		return 0, nil, err
	}
	return fds[1-ours], os.NewFile(uintptr(fds[ours]), "pipe"), nil
}

func (p *process) openTerminal(spec wire.Start) (child [3]int, err error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return child, fmt.Errorf("open a terminal: %w", err)
	}
	p.master = os.NewFile(uintptr(master), "terminal")
	t := &terminal{file: p.master, lineStart: true}
	p.stdin, p.outputs = t, []inside.Output{{Tag: 1, R: terminalOutput{p.master}}}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return child, fmt.Errorf("unlock the terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return child, fmt.Errorf("name of the terminal: %w", err)
	}
	// The size is there before the program can ask.
	if err := setSize(master, spec.Cols, spec.Rows); err != nil {
		return child, err
	}
	for i := range child {
		child[i], err = unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return child, fmt.Errorf("open the terminal's other side: %w", err)
		}
	}
	return child, nil
}

func setSize(fd int, cols, rows uint16) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows})
}

// terminal writes to a terminal. The end of input is a character there.
type terminal struct {
	file *os.File

	mu        sync.Mutex
	closed    bool
	lineStart bool // what was written last ended a line
}

const endOfFile = 4 // ^D

func (t *terminal) Write(b []byte) (int, error) {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return 0, os.ErrClosed
	}
	if len(b) > 0 {
		last := b[len(b)-1]
		t.lineStart = last == '\n' || last == '\r' || last == endOfFile
	}
	t.mu.Unlock()
	return t.file.Write(b)
}

// Close sends ^D: once where a line begins, otherwise twice, since the first
// only hands over the unfinished line. The terminal itself stays open for output.
func (t *terminal) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	end := []byte{endOfFile, endOfFile}
	if t.lineStart {
		end = end[:1]
	}
	_, err := t.file.Write(end)
	return err
}

// terminalOutput reads a terminal. EIO says that its other side is closed
// everywhere, which is the end and no error.
type terminalOutput struct{ file *os.File }

func (t terminalOutput) Read(b []byte) (int, error) {
	n, err := t.file.Read(b)
	if errors.Is(err, unix.EIO) {
		return n, io.EOF
	}
	return n, err
}

func (t terminalOutput) Close() error { return t.file.Close() }

// SyscallConn lets the server see whether there is something to read.
func (t terminalOutput) SyscallConn() (syscall.RawConn, error) { return t.file.SyscallConn() }
