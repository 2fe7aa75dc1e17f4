package workspace

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
	"sandboxd/internal/workspace/pattern"
)

const (
	globEntries = 10_000
	grepMatches = 1000
	grepBytes   = 256 << 20
	searchTime  = sandboxd.SearchTime / 3
)

// errSkip from the function of a walk leaves out what is below the entry.
var errSkip = errors.New("not entered")

// bounded is what a caller asked for, within what there may be.
func bounded[N int | int64 | time.Duration](asked, otherwise, most N) N {
	if asked <= 0 {
		return otherwise
	}
	return min(asked, most)
}

// search walks the files of one search while it has the turn.
type search struct {
	turn
	w          *Workspace
	skipHidden bool
	held       bool
	truncated  bool
}

func (w *Workspace) search(ctx context.Context, skipHidden bool, limit time.Duration) *search {
	until := time.Now().Add(bounded(limit, searchTime, sandboxd.SearchTime))
	return &search{turn: turn{ctx: ctx, who: w.key(), until: until}, w: w, skipHidden: skipHidden}
}

func (s *search) begin() error {
	err := s.take()
	s.held = err == nil
	return err
}

func (s *search) end() {
	if s.held {
		s.give()
	}
}

// pause lets others work. It is errFull when the time of the search is up.
func (s *search) pause() error {
	over, err := s.step()
	if err != nil {
		s.held = false
		return err
	}
	if over {
		return s.full()
	}
	return nil
}

// full ends a search that met a bound.
func (s *search) full() error {
	s.truncated = true
	return errFull
}

// walk visits what the search may see below an open directory.
func (s *search) walk(fd int, fn func(*visit) error) (incomplete bool, err error) {
	incomplete, err = s.w.walk(s.ctx, fd, "", 1, func(v *visit) error {
		if err := s.pause(); err != nil {
			return err
		}
		if s.skipHidden && strings.HasPrefix(v.name, ".") {
			return errSkip
		}
		return fn(v)
	})
	if err == errFull {
		err = nil
	}
	return incomplete, err
}

// Glob implements sandboxd.Files.
func (w *Workspace) Glob(ctx context.Context, path string, opts sandboxd.GlobOptions) (sandboxd.Listing, error) {
	out := sandboxd.Listing{Entries: []sandboxd.FileInfo{}}
	p, err := pattern.Compile("pattern", opts.Pattern)
	if err != nil {
		return out, err
	}
	top, rel, err := w.openDir(ctx, path)
	if err != nil {
		return out, err
	}
	defer unix.Close(top)
	s := w.search(ctx, opts.SkipHidden, opts.MaxTime)
	if err := s.begin(); err != nil {
		return out, err
	}
	defer s.end()
	most := bounded(opts.MaxEntries, globEntries, sandboxd.GlobEntries)
	prefix, left := under(rel), listBytes
	out.Incomplete, err = s.walk(top, func(v *visit) error {
		if p.Match(v.path) {
			info := v.info(prefix)
			if left -= len(info.Path) + len(info.Target); left < 0 || len(out.Entries) == most {
				return s.full()
			}
			out.Entries = append(out.Entries, info)
		}
		if !p.Below(v.path) {
			return errSkip
		}
		return nil
	})
	out.Truncated = s.truncated
	return out, err
}

// Grep implements sandboxd.Files.
func (w *Workspace) Grep(ctx context.Context, path string, opts sandboxd.GrepOptions) (sandboxd.GrepResult, error) {
	g := &grep{opts: opts, out: sandboxd.GrepResult{Matches: []sandboxd.Match{}}}
	if err := g.compile(); err != nil {
		return g.out, err
	}
	rel, err := beneath.Clean(path)
	if err != nil {
		return g.out, err
	}
	root, err := w.root(ctx)
	if err != nil {
		return g.out, err
	}
	defer root.Close()
	fd, st, err := root.Open(rel, unix.O_RDONLY)
	if err != nil {
		return g.out, err
	}
	defer unix.Close(fd)
	g.search = w.search(ctx, opts.SkipHidden, opts.MaxTime)
	if err := g.begin(); err != nil {
		return g.out, err
	}
	defer g.end()
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		err = g.file(fd, rel)
		if err == errFull {
			err = nil
		}
	} else {
		prefix := under(rel)
		g.out.Incomplete, err = g.walk(fd, func(v *visit) error { return g.visit(v, prefix) })
	}
	g.out.Incomplete = g.out.Incomplete || g.unread
	g.out.Truncated = g.truncated
	return g.out, err
}
