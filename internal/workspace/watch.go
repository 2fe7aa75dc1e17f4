package workspace

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

const (
	// Watchers and directories cost the machine memory of which it has a budget for
	// each user: 128 inotify instances by default.
	maxWatchers  = 8 // of a workspace
	allWatchers  = 64
	allWatches   = 100_000
	maxPending   = 4096 // paths that wait for the reader; with more it is a resync
	watchMoment  = 50 * time.Millisecond
	rebuildAfter = time.Second // between two scans of one tree
)

// watching counts what all workspaces of this process watch.
var watching struct{ watchers, watches atomic.Int64 }

var errWatchGone = sandboxd.Errorf(sandboxd.ClassGone, "what was watched is not there any more")

// watcher is sandboxd.Watcher over inotify. One goroutine reads the kernel's
// events and keeps the tree of watches; Next looks at what they named.
type watcher struct {
	w      *Workspace
	prefix string // of the reported paths
	tree   *watchTree
	stop   context.CancelFunc
	ended  chan struct{} // the goroutine is over
	ready  chan struct{} // something is pending
	over   chan struct{} // err is set

	mu      sync.Mutex
	pending []string // in the order of their first change
	known   map[string]bool
	resync  bool
	err     error

	closing sync.Once
}

// Watch implements sandboxd.Files. A watcher of the workspace itself ends as soon
// as its sandbox is deleted, and so does every other one.
func (w *Workspace) Watch(ctx context.Context, path string) (sandboxd.Watcher, error) {
	fd, rel, err := w.openDir(ctx, path)
	if err != nil {
		return nil, err
	}
	ours, all := w.watchers.Add(1), watching.watchers.Add(1)
	if ours > maxWatchers || all > allWatchers {
		w.watchers.Add(-1)
		watching.watchers.Add(-1)
		_ = unix.Close(fd)
		return nil, sandboxd.Errorf(sandboxd.ClassCapacity, "too many watchers are open: %d of one workspace, %d in all, are the most", maxWatchers, allWatchers).
			WithHint("close one, or watch one directory above")
	}
	run, stop := context.WithCancel(context.Background())
	r := &watcher{w: w, prefix: under(rel), stop: stop, ended: make(chan struct{}), ready: make(chan struct{}, 1),
		over: make(chan struct{}), known: map[string]bool{}}
	r.tree, err = newWatchTree(w, beneath.Dir(fd), r.mark)
	if err == nil {
		err = r.tree.work(ctx, func() error { return r.tree.scan("", false) })
	}
	if err == nil {
		err = r.tree.watchAbove()
	}
	if err != nil {
		close(r.ended)
		_ = r.Close()
		return nil, err
	}
	go r.run(run)
	return r, nil
}

// mark notes that something happened to a path below the watched directory.
func (r *watcher) mark(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resync || r.known[path] {
		return
	}
	if len(r.pending) == maxPending {
		r.lost()
		return
	}
	r.pending = append(r.pending, path)
	r.known[path] = true
	r.wake()
}

// lost makes one resync of all that is pending.
func (r *watcher) lost() {
	r.resync, r.pending = true, nil
	clear(r.known)
	r.wake()
}

func (r *watcher) wake() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// fail ends the watcher.
func (r *watcher) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
		close(r.over)
	}
}

// run reads events until the watcher is closed or what it watches is gone.
func (r *watcher) run(ctx context.Context) {
	defer close(r.ended)
	var rebuilt, rebuild time.Time
	for {
		if r.tree.lost && rebuild.IsZero() {
			// At most once a second, because a sandbox can overflow the queue at will.
			rebuild = time.Now()
			if next := rebuilt.Add(rebuildAfter); next.After(rebuild) {
				rebuild = next
			}
		}
		_ = r.tree.file.SetReadDeadline(rebuild)
		err := r.tree.read(ctx)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			rebuild, rebuilt = time.Time{}, time.Now()
			if err = r.tree.work(ctx, r.tree.rebuild); err == nil {
				r.mu.Lock()
				r.lost()
				r.mu.Unlock()
			}
		}
		if err != nil {
			if errors.Is(err, os.ErrClosed) || ctx.Err() != nil {
				err = errWatchGone
			}
			r.fail(err)
			return
		}
	}
}

// Next implements sandboxd.Watcher.
func (r *watcher) Next(ctx context.Context) ([]sandboxd.WatchEvent, error) {
	for {
		select {
		case <-r.ready:
			moment := time.NewTimer(watchMoment)
			select {
			case <-moment.C:
			case <-r.over:
			case <-ctx.Done():
			}
			moment.Stop()
		case <-r.over:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		r.mu.Lock()
		paths, resync, err := r.pending, r.resync, r.err
		r.pending, r.resync = nil, false
		clear(r.known)
		r.mu.Unlock()
		if resync {
			return []sandboxd.WatchEvent{{Kind: sandboxd.ChangeResync}}, nil
		}
		if len(paths) > 0 {
			events, gone := r.look(ctx, paths)
			if gone != nil {
				err = gone
			}
			if len(events) > 0 {
				return events, nil
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// look says what is at the paths now.
func (r *watcher) look(ctx context.Context, paths []string) ([]sandboxd.WatchEvent, error) {
	ctx = context.WithoutCancel(ctx) // what was pending is told, or lost
	root, err := r.w.root(ctx)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	events := make([]sandboxd.WatchEvent, 0, len(paths))
	t := turn{ctx: ctx, who: r.w.key()}
	if err := t.take(); err != nil {
		return nil, err
	}
	defer t.give()
	for _, path := range paths {
		if _, err := t.step(); err != nil {
			return nil, err // never, as ctx does not end
		}
		full := r.prefix + path
		dir, name := beneath.Split(full)
		info, err := stat(root, full)
		switch sandboxd.ClassOf(err) {
		case sandboxd.ClassNotFound, sandboxd.ClassInvalid, sandboxd.ClassForbidden:
			if !strings.HasPrefix(name, tempPrefix) {
				events = append(events, sandboxd.WatchEvent{Kind: sandboxd.ChangeRemoved, Info: sandboxd.FileInfo{Path: full}})
			}
			continue
		}
		if err != nil {
			info = sandboxd.FileInfo{Path: full, Type: sandboxd.TypeOther} // it changes under our hands
		} else if strings.HasPrefix(name, tempPrefix) && r.w.hiddenIn(root, dir, name) {
			continue
		}
		events = append(events, sandboxd.WatchEvent{Kind: sandboxd.ChangeChanged, Info: info})
	}
	return events, nil
}

// hiddenIn is hidden for an entry of which the owner is not known yet.
func (w *Workspace) hiddenIn(root beneath.Dir, dir, name string) bool {
	fd, _, err := root.Open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	st, err := beneath.Dir(fd).Stat(name)
	return err != nil || w.hidden(name, st.Uid)
}

// Close implements sandboxd.Watcher.
func (r *watcher) Close() error {
	r.closing.Do(func() {
		r.stop()
		if r.tree != nil {
			_ = r.tree.file.Close()
			<-r.ended
			r.tree.close()
		}
		r.w.watchers.Add(-1)
		watching.watchers.Add(-1)
		r.fail(errWatchGone)
	})
	return nil
}
