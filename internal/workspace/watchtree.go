package workspace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/workspace/beneath"
)

const (
	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_EXCL_UNLINK
	watchTop  = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	// watchRest is the pause between two reads, in which the kernel joins what
	// repeats itself.
	watchRest  = 10 * time.Millisecond
	watchBytes = 64 << 10
)

// watchTree is an inotify instance with one watch for each directory of a tree.
// It is for one goroutine; only file may be closed by another.
type watchTree struct {
	w     *Workspace
	top   beneath.Dir
	file  *os.File
	conn  syscall.RawConn
	mark  func(path string)
	dirs  map[int]string // by watch, paths below top; "" is top itself
	nums  map[string]int
	subs  map[string]map[string]bool // by path, the paths directly below it that lead to a watch
	above int                        // watch of the directory that holds the workspace
	lost  bool                       // something happened that no event tells
	turn  turn
	held  bool // the turn
	buf   []byte
}

// newWatchTree takes over the descriptor of the top.
func newWatchTree(w *Workspace, top beneath.Dir, mark func(string)) (*watchTree, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		top.Close()
		return nil, noWatches(err)
	}
	t := &watchTree{w: w, top: top, file: os.NewFile(uintptr(fd), "inotify"), mark: mark, dirs: map[int]string{}, nums: map[string]int{},
		subs: map[string]map[string]bool{}, above: -1, buf: make([]byte, watchBytes)}
	if t.conn, err = t.file.SyscallConn(); err != nil {
		_ = t.file.Close()
		t.close()
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "the watcher cannot be made")
	}
	return t, nil
}

// close lets go of what the tree counts; its file is closed already.
func (t *watchTree) close() {
	t.top.Close()
	watching.watches.Add(-int64(len(t.dirs)))
	t.dirs, t.nums, t.subs = nil, nil, nil
}

// noWatches gives a failure of inotify its class.
func noWatches(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
		return sandboxd.Wrap(sandboxd.ClassCapacity, err, "the machine has no watches left").
			WithHint("raise fs.inotify.max_user_watches or max_user_instances, or watch a smaller directory")
	}
	return beneath.Error(err)
}

// watch adds a watch for an open directory. A closed file is os.ErrClosed.
func (t *watchTree) watch(dir int, mask uint32) (num int, err error) {
	if cerr := t.conn.Control(func(fd uintptr) { num, err = beneath.AddWatch(int(fd), dir, mask) }); cerr != nil {
		return 0, os.ErrClosed
	}
	if err != nil {
		return 0, noWatches(err)
	}
	return num, nil
}

// watchAbove adds the watch that sees how the workspace is moved away to be
// deleted.
func (t *watchTree) watchAbove() error {
	above, err := beneath.OpenTrusted(filepath.Dir(t.w.dir))
	if err != nil {
		return err
	}
	defer above.Close()
	t.above, err = t.watch(int(above), watchTop)
	return err
}

// work runs fn while the tree has a turn of its own; everything that may take long
// is done so.
func (t *watchTree) work(ctx context.Context, fn func() error) error {
	t.turn = turn{ctx: ctx, who: t.w.key()}
	if err := t.turn.take(); err != nil {
		return err
	}
	t.held = true
	err := fn()
	if t.held {
		t.turn.give()
	}
	return err
}

// pause lets others work.
func (t *watchTree) pause() error {
	_, err := t.turn.step()
	t.held = err == nil
	return err
}

// scan watches a directory and all below. What is in it is marked when it may be
// news: it was there before its watch.
func (t *watchTree) scan(path string, news bool) error {
	at := path
	if at == "" {
		at = "."
	}
	fd, st, err := t.top.OpenStrict(at, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		t.missing(err)
		return nil
	}
	defer unix.Close(fd)
	if _, name := beneath.Split(path); t.w.hidden(name, st.Uid) {
		return nil // on its way out
	}
	return t.dir(fd, path, news)
}

// missing notes a directory that was not opened: gone again, or there and not
// watched.
func (t *watchTree) missing(err error) {
	if class := sandboxd.ClassOf(err); class == sandboxd.ClassBusy || class == sandboxd.ClassInternal {
		t.lost = true
	}
}

func (t *watchTree) dir(fd int, path string, news bool) error {
	if strings.Count(path, "/") >= walkDepth {
		return sandboxd.Errorf(sandboxd.ClassTooLarge, "the directory has more than %d levels", walkDepth)
	}
	if len(path) >= beneath.PathMax {
		return sandboxd.Errorf(sandboxd.ClassTooLarge, "the directory has paths longer than %d bytes", beneath.PathMax)
	}
	mask, prefix := uint32(watchMask|watchTop), ""
	if path != "" {
		mask, prefix = watchMask, path+"/"
	}
	num, err := t.watch(fd, mask)
	if err != nil {
		return err
	}
	if err := t.know(num, path); err != nil {
		return err
	}
	_, err = t.w.each(t.turn.ctx, fd, func(name string, st *unix.Stat_t) error {
		if err := t.pause(); err != nil {
			return err
		}
		if news {
			t.mark(prefix + name)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		sub, _, err := beneath.Dir(fd).OpenStrict(name, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			t.missing(err)
			return nil
		}
		defer unix.Close(sub)
		return t.dir(sub, prefix+name, news)
	})
	return err
}

// know notes the path of a watch. A directory that was moved keeps its watch.
func (t *watchTree) know(num int, path string) error {
	if was, ok := t.dirs[num]; ok {
		if t.nums[was] == num {
			t.unname(was)
		}
	} else {
		if len(t.dirs) == sandboxd.WatchDirs {
			return sandboxd.Errorf(sandboxd.ClassTooLarge, "there are more than %d directories", sandboxd.WatchDirs).
				WithHint("watch a directory below, or compare walks")
		}
		if watching.watches.Add(1) > allWatches {
			watching.watches.Add(-1)
			return sandboxd.Errorf(sandboxd.ClassCapacity, "all watchers of this host together cover %d directories", allWatches).
				WithHint("close one, or watch a smaller directory")
		}
	}
	t.dirs[num], t.nums[path] = path, num
	for path != "" {
		up := above(path)
		if t.subs[up] == nil {
			t.subs[up] = map[string]bool{}
		} else if t.subs[up][path] {
			break
		}
		t.subs[up][path] = true
		path = up
	}
	return nil
}

// unname forgets that a path is watched, and each above that leads to no other.
func (t *watchTree) unname(path string) {
	delete(t.nums, path)
	for path != "" && len(t.subs[path]) == 0 {
		if _, watched := t.nums[path]; watched {
			break
		}
		up := above(path)
		delete(t.subs[up], path)
		if len(t.subs[up]) == 0 {
			delete(t.subs, up)
		}
		path = up
	}
}

// above is the directory that holds a path below top.
func above(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// forget drops the watches of a directory and of all below. It looks at no other: a
// sandbox that moves directories about makes one call of each move.
func (t *watchTree) forget(path string) {
	for sub := range t.subs[path] {
		t.forget(sub)
	}
	if num, ok := t.nums[path]; ok {
		_ = t.conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(num)) })
		t.drop(num, path)
	}
}

func (t *watchTree) drop(num int, path string) {
	if t.nums[path] == num {
		t.unname(path)
	}
	if _, ok := t.dirs[num]; ok {
		delete(t.dirs, num)
		watching.watches.Add(-1)
	}
}

// rebuild watches everything anew, after events were lost.
func (t *watchTree) rebuild() error {
	t.forget("")
	t.lost = false
	return t.scan("", false)
}

// read waits for events and takes in what there is. ClassGone when what is
// watched is.
func (t *watchTree) read(ctx context.Context) error {
	n, err := t.file.Read(t.buf)
	if err != nil {
		return err
	}
	err = t.work(ctx, func() error {
		for rest := t.buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			num := int(int32(binary.NativeEndian.Uint32(rest)))
			mask := binary.NativeEndian.Uint32(rest[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(rest[12:]))
			name, _, _ := bytes.Cut(rest[unix.SizeofInotifyEvent:size], []byte{0})
			rest = rest[size:]
			if err := t.event(num, mask, string(name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	rest := time.NewTimer(watchRest)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	}
	return nil
}

func (t *watchTree) event(num int, mask uint32, name string) error {
	dir, ok := t.dirs[num]
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		t.lost = true
		return nil
	case num == t.above && mask&unix.IN_IGNORED == 0, ok && dir == "" && mask&(watchTop|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		return errWatchGone
	case mask&unix.IN_IGNORED != 0:
		if ok {
			t.drop(num, dir)
		}
		return nil
	case !ok || name == "":
		return nil // of a watch that was dropped, or of a directory itself: its parent tells
	}
	path := name
	if dir != "" {
		path = dir + "/" + name
	}
	t.mark(path)
	if mask&unix.IN_ISDIR == 0 {
		return nil
	}
	if mask&unix.IN_MOVED_FROM != 0 {
		t.forget(path)
	}
	// Also after a move away: two directories may have been exchanged.
	if mask&(unix.IN_CREATE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO) != 0 {
		if err := t.scan(path, true); err != nil {
			return err
		}
	}
	return t.pause()
}
