package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"sandboxd"
)

const (
	// long is what a transfer takes before anything is said of it.
	long = time.Second
	// redraw is how often a line on a terminal is drawn again.
	redraw = 200 * time.Millisecond
	// bar is its width.
	bar = 20
)

// meter says on stderr how far a long transfer is: on a terminal by a line that is
// drawn again and again, and anywhere by one line when it is over. A short transfer
// says nothing.
type meter struct {
	out      io.Writer
	terminal bool
	width    int // of the terminal
	what     string
	began    time.Time
	done     atomic.Int64
	total    atomic.Int64 // below 1 while it is not known
	stop     chan struct{}
	stopped  sync.WaitGroup
	drawn    bool // after stopped
}

// measure begins to measure. what is as "copying x"; total below 1 is not known. The
// caller ends it.
func measure(p Process, what string, total int64) *meter {
	m := &meter{out: p.Stderr, what: what}
	if f, ok := p.Stderr.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			m.terminal, m.width = true, width
		}
	}
	return m.begin(total)
}

func (m *meter) begin(total int64) *meter {
	m.total.Store(total)
	m.began, m.stop = time.Now(), make(chan struct{})
	if m.terminal {
		m.stopped.Go(m.draw)
	}
	return m
}

func (m *meter) draw() {
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-tick.C:
			if time.Since(m.began) >= long {
				m.drawn = true
				fmt.Fprintf(m.out, "\r%s\x1b[K", cut(m.line(), m.width-1))
			}
		}
	}
}

// end says the last line, unless the transfer failed: then the error is said.
func (m *meter) end(err error) {
	if m == nil {
		return
	}
	close(m.stop)
	m.stopped.Wait()
	if m.drawn {
		fmt.Fprint(m.out, "\r\x1b[K")
	}
	if err == nil && time.Since(m.began) >= long {
		fmt.Fprintf(m.out, "%s: %s in %s, %s\n", m.what, size(m.done.Load()), time.Since(m.began).Round(100*time.Millisecond), m.rate())
	}
}

func (m *meter) rate() string {
	return size(int64(float64(m.done.Load())/max(time.Since(m.began).Seconds(), 0.001))) + "/s"
}

// line is as "copying x  [#####.....]  25%  1.0 MiB of 4.0 MiB  512.0 KiB/s".
func (m *meter) line() string {
	done, total := m.done.Load(), m.total.Load()
	if total < 1 {
		return fmt.Sprintf("%s  %s  %s", m.what, size(done), m.rate())
	}
	part := min(float64(done)/float64(total), 1)
	full := int(part * bar)
	return fmt.Sprintf("%s  [%s%s]  %d%%  %s of %s  %s", m.what, strings.Repeat("#", full), strings.Repeat(".", bar-full),
		int(part*100), size(done), size(total), m.rate())
}

// cut shortens a line to what a terminal shows in one.
func cut(line string, width int) string {
	if runes := []rune(line); width > 0 && len(runes) > width {
		return string(runes[:width])
	}
	return line
}

// reader counts what is read. A meter that is nil counts nothing and says nothing.
func (m *meter) reader(r io.Reader) io.Reader {
	if m == nil {
		return r
	}
	return counted{m, r}
}

type counted struct {
	m *meter
	r io.Reader
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.m.done.Add(int64(n))
	return n, err
}

// pull takes what a host tells of a pull.
func (m *meter) pull(p sandboxd.PullProgress) {
	m.done.Store(p.Done)
	m.total.Store(p.Total)
}
