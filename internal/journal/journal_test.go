package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func create(t testing.TB, opts Options) *Journal {
	t.Helper()
	j := Create(filepath.Join(t.TempDir(), "command"), opts)
	t.Cleanup(func() { j.Close() })
	return j
}

func reopen(t testing.TB, j *Journal) *Journal {
	t.Helper()
	j.Close()
	j, err := Open(j.dir, j.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func appendOK(t testing.TB, j *Journal, s sandboxd.Stream, data []byte) {
	t.Helper()
	if err := j.Append(s, j.Next(), data); err != nil {
		t.Fatal(err)
	}
}

func wantClass(t testing.TB, err error, class sandboxd.Class) {
	t.Helper()
	if err == nil || sandboxd.ClassOf(err) != class {
		t.Fatalf("error %v, want class %s", err, class)
	}
}

// read collects a stream to its end, checking that offsets have no hole.
func read(t testing.TB, s sandboxd.CommandStream, from int64) (data map[int64][]byte, gaps []sandboxd.Gap, ending *sandboxd.Ending) {
	t.Helper()
	defer s.Close()
	data = map[int64][]byte{}
	for {
		f, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return data, gaps, ending
		}
		if err != nil {
			t.Fatal(err)
		}
		if f.Offset != from {
			t.Fatalf("frame at %d, want %d", f.Offset, from)
		}
		switch {
		case f.Gap != nil:
			if f.Gap.From != from || f.Gap.To <= from {
				t.Fatalf("gap %+v at %d", *f.Gap, from)
			}
			gaps = append(gaps, *f.Gap)
			from = f.Gap.To
		case f.Ending != nil:
			ending = f.Ending
		default:
			if len(f.Data) == 0 || len(f.Data) > maxRecord {
				t.Fatalf("frame of %d bytes", len(f.Data))
			}
			data[from] = bytes.Clone(f.Data)
			from += int64(len(f.Data))
		}
	}
}

// readAll is everything there is, with a byte of 0 for each one in a gap.
func readAll(t testing.TB, j *Journal, from int64) ([]byte, []sandboxd.Gap) {
	t.Helper()
	s, err := j.Follow(sandboxd.FollowOptions{Offset: from})
	if err != nil {
		t.Fatal(err)
	}
	data, gaps, _ := read(t, s, from)
	all := make([]byte, j.Next()-from)
	for at, d := range data {
		copy(all[at-from:], d)
	}
	return all, gaps
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + (i*7+i/251)%250)
	}
	return b
}

func TestAppendAndFollow(t *testing.T) {
	j := create(t, Options{})
	appendOK(t, j, sandboxd.StreamStdout, []byte("one "))
	appendOK(t, j, sandboxd.StreamStdout, []byte("two "))
	appendOK(t, j, sandboxd.StreamStderr, []byte("three"))
	s, _ := j.Follow(sandboxd.FollowOptions{})
	f, err := s.Next(t.Context())
	if err != nil || string(f.Data) != "one two " || f.Stream != sandboxd.StreamStdout || f.Offset != 0 {
		t.Fatalf("%+v %v, want both records of stdout in one frame", f, err)
	}
	f, err = s.Next(t.Context())
	if err != nil || string(f.Data) != "three" || f.Stream != sandboxd.StreamStderr || f.Offset != 8 {
		t.Fatalf("%+v %v", f, err)
	}
	if _, err := s.Next(t.Context()); err != io.EOF {
		t.Fatalf("%v, want EOF", err)
	}
	for from := range j.Next() + 1 {
		got, _ := readAll(t, j, from)
		if want := "one two three"[from:]; string(got) != want {
			t.Fatalf("from %d: %q, want %q", from, got, want)
		}
	}
	_, err = j.Follow(sandboxd.FollowOptions{Offset: 14})
	wantClass(t, err, sandboxd.ClassRange)
	_, err = j.Follow(sandboxd.FollowOptions{Offset: -1})
	wantClass(t, err, sandboxd.ClassInvalid)
}

func TestAppendSkipsWhatIsStored(t *testing.T) {
	j := create(t, Options{})
	appendOK(t, j, sandboxd.StreamStdout, []byte("abcdef"))
	for _, c := range []struct {
		offset int64
		data   string
	}{{0, "abc"}, {0, "abcdef"}, {4, "efgh"}, {2, "cdefghij"}} {
		if err := j.Append(sandboxd.StreamStdout, c.offset, []byte(c.data)); err != nil {
			t.Fatal(err)
		}
	}
	wantClass(t, j.Append(sandboxd.StreamStdout, 11, []byte("x")), sandboxd.ClassInternal)
	wantClass(t, j.Append("other", 10, []byte("x")), sandboxd.ClassInternal)
	if got, _ := readAll(t, reopen(t, j), 0); string(got) != "abcdefghij" {
		t.Fatalf("%q", got)
	}
}

func TestReopenWithoutOutput(t *testing.T) {
	j := create(t, Options{})
	if j := reopen(t, j); j.Next() != 0 || j.Ending() != nil {
		t.Fatal("an empty journal is not empty after reopen")
	}
}

func TestFinish(t *testing.T) {
	for _, output := range []string{"", "some output"} {
		j := create(t, Options{})
		appendOK(t, j, sandboxd.StreamStdout, []byte(output))
		code := 3
		first := sandboxd.Ending{Cause: sandboxd.CauseExit, ExitCode: &code, At: time.Unix(1, 0).UTC()}
		if err := j.Finish(first); err != nil {
			t.Fatal(err)
		}
		if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseUnknown}); err != nil {
			t.Fatal(err)
		}
		wantClass(t, j.Append(sandboxd.StreamStdout, j.Next(), []byte("late")), sandboxd.ClassConflict)
		for range 2 {
			s, _ := j.Follow(sandboxd.FollowOptions{Follow: true, Offset: j.Next()})
			_, _, ending := read(t, s, j.Next())
			if ending == nil || ending.Cause != sandboxd.CauseExit || *ending.ExitCode != 3 {
				t.Fatalf("ending %+v", ending)
			}
			if got, _ := readAll(t, j, 0); string(got) != output {
				t.Fatalf("%q", got)
			}
			if output != "" { // without any, the ending is the store's to keep
				j = reopen(t, j)
			}
		}
	}
}

func TestFinishCutsLongTexts(t *testing.T) {
	j := create(t, Options{})
	appendOK(t, j, sandboxd.StreamStdout, []byte("x"))
	if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseStartFailed, Message: strings.Repeat("x", maxEnding)}); err != nil {
		t.Fatal(err)
	}
	if e := reopen(t, j).Ending(); e == nil || e.Cause != sandboxd.CauseStartFailed {
		t.Fatalf("ending %+v", e)
	}
}

func TestCloseEndsFollowers(t *testing.T) {
	j := create(t, Options{})
	appendOK(t, j, sandboxd.StreamStdout, []byte("x"))
	s, _ := j.Follow(sandboxd.FollowOptions{Offset: 1, Follow: true})
	result := make(chan error)
	go func() { _, err := s.Next(context.Background()); result <- err }()
	j.Close()
	wantClass(t, <-result, sandboxd.ClassUnavailable)
	_, err := j.Follow(sandboxd.FollowOptions{})
	wantClass(t, err, sandboxd.ClassUnavailable)
	wantClass(t, j.Append(sandboxd.StreamStdout, 1, []byte("x")), sandboxd.ClassUnavailable)
}

func TestCloseLeavesFollowersOfAFinishedJournal(t *testing.T) {
	j := create(t, Options{})
	appendOK(t, j, sandboxd.StreamStdout, []byte("x"))
	s, _ := j.Follow(sandboxd.FollowOptions{Follow: true})
	if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit}); err != nil {
		t.Fatal(err)
	}
	j.Close()
	data, _, ending := read(t, s, 0)
	if string(data[0]) != "x" || ending == nil {
		t.Fatalf("%q %v", data[0], ending)
	}
}

func TestFollowerGivesUpWithItsContext(t *testing.T) {
	j := create(t, Options{})
	s, _ := j.Follow(sandboxd.FollowOptions{Follow: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	appendOK(t, j, sandboxd.StreamStdout, []byte("x"))
	if f, err := s.Next(t.Context()); err != nil || string(f.Data) != "x" {
		t.Fatalf("%q %v: a cancelled wait must not end the stream", f.Data, err)
	}
	s.Close()
	if _, err := s.Next(t.Context()); err != io.EOF {
		t.Fatal(err)
	}
}

func TestRetentionKeepsHeadAndTail(t *testing.T) {
	j := create(t, Options{Limit: 64 << 10, SegmentBytes: 8 << 10})
	all := pattern(1 << 20)
	for at := 0; at < len(all); at += 1000 {
		appendOK(t, j, sandboxd.StreamStdout, all[at:min(at+1000, len(all))])
	}
	for range 2 {
		var disk int64
		entries, _ := os.ReadDir(j.dir)
		for _, e := range entries {
			info, _ := e.Info()
			disk += info.Size()
		}
		if disk > 64<<10 || disk < 48<<10 {
			t.Fatalf("%d bytes on disk under a limit of %d", disk, 64<<10)
		}
		got, gaps := readAll(t, j, 0)
		if len(gaps) != 1 || gaps[0].To-gaps[0].From != j.Dropped() {
			t.Fatalf("gaps %v, dropped %d", gaps, j.Dropped())
		}
		want := slices.Clone(all)
		clear(want[gaps[0].From:gaps[0].To])
		if !bytes.Equal(got, want) {
			t.Fatal("what is kept differs from what was written")
		}
		if gaps[0].From < 7000 {
			t.Fatalf("the head ends at %d", gaps[0].From)
		}
		// A reader that begins inside the gap.
		inside := (gaps[0].From + gaps[0].To) / 2
		if _, in := readAll(t, j, inside); len(in) != 1 || in[0] != (sandboxd.Gap{From: inside, To: gaps[0].To}) {
			t.Fatalf("gaps from inside: %v", in)
		}
		dropped := j.Dropped()
		if j = reopen(t, j); j.Dropped() != dropped || j.Next() != int64(len(all)) {
			t.Fatalf("after reopen: dropped %d of %d, want %d", j.Dropped(), j.Next(), dropped)
		}
	}
}

func TestFollowersWhileAppending(t *testing.T) {
	for _, limit := range []int64{0, 256 << 10} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			j := create(t, Options{Limit: limit, SegmentBytes: 64 << 10})
			all := pattern(8 << 20)
			var wg sync.WaitGroup
			for i := range 8 {
				from := int64(i) * 1000
				first := min(from, j.Next())
				s, err := j.Follow(sandboxd.FollowOptions{Offset: first, Follow: true})
				if err != nil {
					t.Fatal(err)
				}
				wg.Go(func() {
					data, gaps, ending := read(t, s, first)
					if ending == nil {
						t.Error("no ending")
					}
					if limit == 0 && len(gaps) > 0 {
						t.Errorf("gaps %v without a limit", gaps)
					}
					var n int64
					for at, d := range data {
						if !bytes.Equal(d, all[at:at+int64(len(d))]) {
							t.Errorf("bytes at %d differ", at)
						}
						n += int64(len(d))
					}
					for _, g := range gaps {
						n += g.To - g.From
					}
					if n != int64(len(all))-first {
						t.Errorf("%d bytes and gaps, want %d", n, int64(len(all))-first)
					}
				})
			}
			for at, size := 0, 1; at < len(all); at, size = at+size, size%90000*3+1 {
				size = min(size, len(all)-at)
				appendOK(t, j, sandboxd.StreamStdout, all[at:at+size])
			}
			if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit}); err != nil {
				t.Error(err)
			}
			wg.Wait()
		})
	}
}

func TestLargeOutputWithAReaderThatStopped(t *testing.T) {
	j := create(t, Options{})
	line := bytes.Repeat([]byte("x"), 64<<10)
	appendOK(t, j, sandboxd.StreamStdout, line)
	stopped, _ := j.Follow(sandboxd.FollowOptions{Follow: true})
	if _, err := stopped.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for j.Next() < 200<<20 {
		appendOK(t, j, sandboxd.StreamStdout, line)
	}
	if after := heap(); after > before+1<<20 {
		t.Errorf("heap grew from %d to %d bytes", before, after)
	}
	if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit}); err != nil {
		t.Fatal(err)
	}
	// It wakes up: the gap, then the tail, then the ending.
	var bytesSeen, missing int64
	for {
		f, err := stopped.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if f.Ending != nil {
			break
		}
		if f.Gap != nil {
			missing += f.Gap.To - f.Gap.From
		}
		bytesSeen += int64(len(f.Data))
	}
	stopped.Close()
	if missing != j.Dropped() || bytesSeen < 60<<20 || missing+bytesSeen+maxRecord != j.Next() {
		t.Errorf("saw %d bytes and %d missing of %d, dropped %d", bytesSeen, missing, j.Next(), j.Dropped())
	}
}

func TestOneLargeAppend(t *testing.T) {
	j := create(t, Options{Limit: 1 << 30, SegmentBytes: 64 << 20})
	all := pattern(40 << 20)
	appendOK(t, j, sandboxd.StreamStdout, all)
	if got, gaps := readAll(t, reopen(t, j), 0); len(gaps) > 0 || !bytes.Equal(got, all) {
		t.Fatalf("gaps %v, or bytes differ", gaps)
	}
}

func openFiles(t testing.TB, dir string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, dir) {
			n++
		}
	}
	return n
}

func TestIdleJournalHoldsNoDescriptor(t *testing.T) {
	j := create(t, Options{})
	appendOK(t, j, sandboxd.StreamStdout, []byte("x"))
	s, _ := j.Follow(sandboxd.FollowOptions{Follow: true})
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := openFiles(t, j.dir); n != 2 {
		t.Fatalf("%d descriptors of a busy journal, want one to write and one to read", n)
	}
	got := make(chan sandboxd.Frame)
	go func() { f, _ := s.Next(context.Background()); got <- f }()
	deadline, tick := time.After(10*idleAfter), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for openFiles(t, j.dir) > 0 {
		select {
		case <-deadline:
			t.Fatalf("%d descriptors of an idle journal", openFiles(t, j.dir))
		case <-tick.C:
		}
	}
	appendOK(t, j, sandboxd.StreamStdout, []byte("y"))
	if f := <-got; string(f.Data) != "y" || f.Offset != 1 {
		t.Fatalf("%+v", f)
	}
	s.Close()
	if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit}); err != nil {
		t.Fatal(err)
	}
	if n := openFiles(t, j.dir); n != 0 {
		t.Fatalf("%d descriptors after the end", n)
	}
}

func TestFullDisk(t *testing.T) {
	captest.Root(t)
	mount := t.TempDir()
	err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=256k,mode=0700")
	captest.Need(t, "mount", err == nil, fmt.Sprint(err))
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(mount, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	j := Create(filepath.Join(mount, "command"), Options{})
	defer j.Close()
	all := pattern(1 << 20)
	const step = 10_000
	for err == nil {
		at := int(j.Next())
		err = j.Append(sandboxd.StreamStdout, j.Next(), all[at:at+step])
	}
	wantClass(t, err, sandboxd.ClassNoSpace)
	full := j.Next()
	if got, _ := readAll(t, j, 0); !bytes.Equal(got, all[:full]) {
		t.Fatal("the full journal differs")
	}
	wantClass(t, j.Append(sandboxd.StreamStdout, full, all[full:full+step]), sandboxd.ClassNoSpace)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(sandboxd.StreamStdout, full, all[full:full+step]); err != nil {
		t.Fatal(err)
	}
	// Full again, with an ending larger than what may be free of a page.
	if err := os.WriteFile(ballast, make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	first := sandboxd.Ending{Cause: sandboxd.CauseDisk, Message: strings.Repeat("m", 20_000)}
	wantClass(t, j.Finish(first), sandboxd.ClassNoSpace)
	s, _ := j.Follow(sandboxd.FollowOptions{Follow: true})
	if data, _, ending := read(t, s, 0); ending == nil || ending.Cause != first.Cause {
		t.Fatalf("%d frames and ending %v: a follower would wait for ever", len(data), ending)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseUnknown}); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, j)
	if got, _ := readAll(t, j, 0); !bytes.Equal(got, all[:full+step]) || j.Ending() == nil || j.Ending().Cause != sandboxd.CauseDisk {
		t.Fatal("after the retry the journal differs")
	}
	j.Close()
}

func TestSilentCommandCostsNoFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "command")
	j := Create(dir, Options{})
	f, err := j.Follow(sandboxd.FollowOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	code := 0
	if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit, ExitCode: &code}); err != nil {
		t.Fatal(err)
	}
	frame, err := f.Next(t.Context())
	if err != nil || frame.Ending == nil || frame.Ending.Cause != sandboxd.CauseExit {
		t.Errorf("frame %+v, %v; want the ending", frame, err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a journal without output is on the disk: %v", err)
	}
	wantClass(t, j.Append(sandboxd.StreamStdout, 0, []byte("late")), sandboxd.ClassConflict)
}
