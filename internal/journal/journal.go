package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
)

// Defaults and floors of Options.
const (
	DefaultLimit        = 64 << 20
	DefaultSegmentBytes = 1 << 20
	minSegmentBytes     = 4 << 10
	// idleAfter is how long a descriptor stays open without use.
	idleAfter = 2 * time.Second
	// maxBatch is how many records one writev(2) takes: two buffers each, and the
	// kernel takes 1024.
	maxBatch = 256
)

// Options size a journal. The zero value means the defaults.
type Options struct {
	// Limit is how many bytes it may take on disk, record headers included.
	// Below four of the smallest segments (16 KiB) it keeps two segments.
	Limit int64
	// SegmentBytes is the size of a segment and so of the steps in which old
	// output goes; at most a quarter of Limit, at least 4 KiB.
	SegmentBytes int64
}

func (o Options) sized() Options {
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	o.SegmentBytes = max(min(o.SegmentBytes, o.Limit/4), minSegmentBytes)
	return o
}

// segment is one file: the offset of its first byte, its end, and its size.
// Bytes of the file beyond size are no part of the journal.
type segment struct {
	start, end int64
	size       int64
}

func (s segment) name() string { return fmt.Sprintf("%016x.seg", s.start) }

// Journal is one command's output. Its methods are safe for concurrent use. An
// idle one holds no descriptor and no buffer.
type Journal struct {
	dir  string
	opts Options

	// write serialises writers and is held over disk I/O; mu is not.
	write   sync.Mutex
	file    *os.File // the last segment, open for writing; nil when idle
	stored  bool     // the ending is written
	unmade  bool     // dir is not there yet
	lastUse time.Time
	idle    *time.Timer
	headers [][headerSize]byte // reused by Append
	iovs    [][]byte           // reused by Append

	// mu guards what followers see. Writers hold write too when they change it.
	mu       sync.Mutex
	segments []segment
	next     int64
	total    int64 // bytes of all segments on disk
	dropped  int64
	ending   *sandboxd.Ending
	closed   bool
	wake     chan struct{} // closed at the next change; nil when nobody waits
}

// Create begins a journal in dir, which nothing else may use. The directory is
// made with the first output: a command that says nothing costs no file, and its
// ending is the store's alone to keep.
func Create(dir string, opts Options) *Journal {
	return &Journal{dir: dir, opts: opts.sized(), unmade: true}
}

// Append stores data, whose first byte has the given offset. What is stored
// already (offset before Next) is skipped. When it returns without error the
// data survives kill -9 of the process. A hole is ClassInternal, a finished
// journal ClassConflict, a closed one ClassUnavailable. ClassNoSpace leaves
// nothing half-written: what counts is Next, and the same call may be repeated.
func (j *Journal) Append(stream sandboxd.Stream, offset int64, data []byte) error {
	kind, ok := kindOf(stream)
	if !ok {
		return sandboxd.Errorf(sandboxd.ClassInternal, "no such stream: %q", stream)
	}
	j.write.Lock()
	defer j.write.Unlock()
	if err := j.writable(); err != nil {
		return err
	}
	// Only writers change next, so it may be read without mu here.
	if offset > j.next || offset < 0 {
		return sandboxd.Errorf(sandboxd.ClassInternal, "journal has %d bytes, output at %d leaves a hole", j.next, offset)
	}
	if skip := j.next - offset; skip >= int64(len(data)) {
		return nil
	} else if skip > 0 {
		data = data[skip:]
	}
	now := time.Now()
	for len(data) > 0 {
		n, err := j.appendBatch(kind, now, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// appendBatch writes as much of data as the segment takes, up to maxBatch
// records, with one write.
func (j *Journal) appendBatch(kind byte, now time.Time, data []byte) (int, error) {
	room := int64(0)
	if len(j.segments) > 0 {
		room = j.opts.SegmentBytes - j.segments[len(j.segments)-1].size
	}
	most := min(maxRecord, int(j.opts.SegmentBytes)-headerSize)
	if first := int64(headerSize + min(len(data), most)); room < first {
		if err := j.rotate(); err != nil {
			return 0, err
		}
		room = j.opts.SegmentBytes
	}
	headers, taken, bytes := j.headers[:0], 0, int64(0)
	for taken < len(data) && len(headers) < maxBatch {
		n := min(len(data)-taken, most)
		if bytes+int64(headerSize+n) > room {
			break
		}
		headers = append(headers, [headerSize]byte{})
		taken += n
		bytes += int64(headerSize + n)
	}
	iovs, at := j.iovs[:0], 0
	for i := range headers {
		n := min(taken-at, most)
		rec := record{kind: kind, offset: j.next + int64(at), data: data[at : at+n]}
		putHeader(&headers[i], now, rec)
		iovs = append(iovs, headers[i][:], rec.data)
		at += n
	}
	j.headers, j.iovs = headers, iovs
	err := j.put(iovs, bytes, now)
	clear(iovs) // the caller's data must not stay reachable
	if err != nil {
		return 0, err
	}
	j.publish(func() {
		last := &j.segments[len(j.segments)-1]
		last.size += bytes
		last.end += int64(taken)
		j.total += bytes
		j.next += int64(taken)
	})
	return taken, nil
}

// put writes iovs, of the given length together, behind the last segment's
// records. On failure the file is cut back.
func (j *Journal) put(iovs [][]byte, length int64, now time.Time) error {
	if err := j.openLast(now); err != nil {
		return err
	}
	size := j.segments[len(j.segments)-1].size
	n, err := unix.Pwritev(int(j.file.Fd()), iovs, size)
	if err == nil && int64(n) < length {
		err = syscall.ENOSPC // a regular file takes less only when the disk is full
	}
	if err != nil {
		// If this fails too, the next write goes over the rest and recovery cuts it.
		_ = j.file.Truncate(size)
		return diskError(err, "cannot store output")
	}
	return nil
}

// openLast opens the last segment for writing.
func (j *Journal) openLast(now time.Time) error {
	j.lastUse = now
	if j.file != nil {
		return nil
	}
	f, err := os.OpenFile(j.path(j.segments[len(j.segments)-1]), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return diskError(err, "cannot open the journal")
	}
	j.hold(f)
	return nil
}

// hold makes f the file that is written, and arms the timer that closes it.
func (j *Journal) hold(f *os.File) {
	if j.file != nil {
		j.file.Close()
	}
	j.file = f
	if j.idle == nil {
		j.idle = time.AfterFunc(idleAfter, j.releaseIdle)
	} else {
		j.idle.Reset(idleAfter)
	}
}

// releaseIdle closes the file of a journal nobody wrote to for a while.
func (j *Journal) releaseIdle() {
	j.write.Lock()
	defer j.write.Unlock()
	if j.file == nil {
		return
	}
	if unused := time.Since(j.lastUse); unused < idleAfter {
		j.idle.Reset(idleAfter - unused)
		return
	}
	j.release()
}

func (j *Journal) release() {
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
	if j.idle != nil {
		j.idle.Stop()
	}
	j.headers, j.iovs = nil, nil
}

// rotate begins a segment, after making room for it under the limit.
func (j *Journal) rotate() error {
	for len(j.segments) > 2 && j.total+j.opts.SegmentBytes > j.opts.Limit {
		gone := j.segments[1]
		// Followers must miss the segment in the list before they miss the file.
		j.publish(func() {
			j.segments = append(j.segments[:1:1], j.segments[2:]...)
			j.total -= gone.size
			j.dropped += gone.end - gone.start
		})
		if err := os.Remove(j.path(gone)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return diskError(err, "cannot drop old output")
		}
	}
	if j.unmade {
		if err := os.MkdirAll(j.dir, 0o700); err != nil {
			return diskError(err, "cannot make the journal")
		}
		j.unmade = false
	}
	fresh := segment{start: j.next, end: j.next}
	f, err := os.OpenFile(j.path(fresh), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return diskError(err, "cannot store output")
	}
	j.hold(f)
	j.publish(func() { j.segments = append(j.segments, fresh) })
	return nil
}

// Finish stores the ending as the last record, if there was output. Followers see
// it as soon as it is written. Like the output before it, it survives the end of
// every process; not a power cut, after which the store's ending, if there is one,
// speaks. The first ending wins: later calls change nothing. Append fails from then on. When the
// ending cannot be stored (ClassNoSpace), followers are told it all the same,
// because nothing else will come; a later call tries to store it again.
func (j *Journal) Finish(ending sandboxd.Ending) error {
	j.write.Lock()
	defer j.write.Unlock()
	if j.ending == nil {
		if err := j.writable(); err != nil {
			return err
		}
	} else if j.stored {
		return nil
	} else {
		ending = *j.ending
	}
	if j.unmade {
		j.publish(func() { j.ending = &ending })
		j.stored = true
		return nil
	}
	err := j.storeEnding(ending)
	if err == nil {
		j.stored = true
	}
	j.release()
	return err
}

// storeEnding writes the ending's record and publishes the ending in any case.
func (j *Journal) storeEnding(ending sandboxd.Ending) (err error) {
	var length int64
	defer func() {
		j.publish(func() {
			if err == nil {
				j.segments[len(j.segments)-1].size += length
				j.total += length
			}
			j.ending = &ending
		})
	}()
	data, err := encodeEnding(ending)
	if err != nil {
		return err
	}
	if len(j.segments) == 0 { // an empty directory that was recovered
		if err := j.rotate(); err != nil {
			return err
		}
	}
	now := time.Now()
	var header [headerSize]byte
	putHeader(&header, now, record{kind: kindEnding, offset: j.next, data: data})
	length = int64(headerSize + len(data))
	return j.put([][]byte{header[:], data}, length, now)
}

// encodeEnding is the ending as JSON that fits into one record.
func encodeEnding(ending sandboxd.Ending) ([]byte, error) {
	data, err := json.Marshal(ending)
	if err == nil && len(data) > maxEnding {
		ending.Message, ending.Remedy, ending.Limit = "", "", ""
		data, err = json.Marshal(ending)
	}
	if err == nil && len(data) > maxEnding {
		err = errors.New("the ending is too large")
	}
	if err != nil {
		return nil, sandboxd.Wrap(sandboxd.ClassInternal, err, "cannot store the ending")
	}
	return data, nil
}

// Next is the offset of the next byte: how many bytes of output there were.
func (j *Journal) Next() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next
}

// Ending is what Finish stored, or nil. It must not be changed.
func (j *Journal) Ending() *sandboxd.Ending {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ending
}

// Dropped is how many bytes of output are no longer kept.
func (j *Journal) Dropped() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.dropped
}

// Close releases descriptors; closing twice is no error. Followers of a journal
// that has not finished end with ClassUnavailable; those of a finished one read
// on to its ending.
func (j *Journal) Close() error {
	j.write.Lock()
	defer j.write.Unlock()
	j.publish(func() { j.closed = true })
	j.release()
	return nil
}

// writable is called with write held.
func (j *Journal) writable() error {
	switch {
	case j.ending != nil:
		return sandboxd.Errorf(sandboxd.ClassConflict, "the journal has ended")
	case j.closed:
		return errClosed()
	}
	return nil
}

// publish makes a change visible to followers and wakes those that wait.
func (j *Journal) publish(change func()) {
	j.mu.Lock()
	change()
	wake := j.wake
	j.wake = nil
	j.mu.Unlock()
	if wake != nil {
		close(wake)
	}
}

func (j *Journal) path(s segment) string { return filepath.Join(j.dir, s.name()) }

func errClosed() error {
	return sandboxd.Errorf(sandboxd.ClassUnavailable, "the journal was closed")
}

// diskError gives an error of the file system its class.
func diskError(err error, what string) error {
	class := sandboxd.ClassInternal
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		class = sandboxd.ClassNoSpace
	} else if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		class = sandboxd.ClassUnavailable
	}
	return sandboxd.Wrap(class, err, "%s", what)
}
