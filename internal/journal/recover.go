package journal

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"sort"
	"strconv"
	"strings"

	"sandboxd"
)

// Open opens the journal that Create made in dir, possibly by a process that
// died while it wrote: whatever follows the last whole record is cut off. Where
// there is no directory there was no output: the journal is as Create makes it.
func Open(dir string, opts Options) (*Journal, error) {
	starts, err := segmentStarts(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Create(dir, opts), nil
	} else if err != nil {
		return nil, diskError(err, "cannot open the journal")
	}
	j := &Journal{dir: dir, opts: opts.sized()}
	for i, start := range starts {
		seg := segment{start: start, end: start}
		last := i == len(starts)-1
		// Segments in the middle are followed by the next without a gap: only the
		// first and the last have an end that no name tells.
		if last || i == 0 {
			if err := j.scan(&seg, last); err != nil {
				return nil, diskError(err, "cannot recover the journal")
			}
		} else {
			info, err := os.Stat(j.path(seg))
			if err != nil {
				return nil, diskError(err, "cannot recover the journal")
			}
			seg.size, seg.end = info.Size(), starts[i+1]
		}
		if i > 0 {
			j.dropped += max(0, seg.start-j.segments[i-1].end)
		}
		j.segments = append(j.segments, seg)
		j.total += seg.size
		j.next = seg.end
	}
	return j, nil
}

// segmentStarts lists the segments in dir by their first offset, ascending.
// Other files are none of its business.
func segmentStarts(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var starts []int64
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), ".seg")
		if start, err := strconv.ParseInt(hex, 16, 64); ok && err == nil && start >= 0 && e.Name() == (segment{start: start}).name() {
			starts = append(starts, start)
		}
	}
	sort.Slice(starts, func(a, b int) bool { return starts[a] < starts[b] })
	return starts, nil
}

// scan finds the end of seg's valid records. In the last segment it takes the
// ending and cuts off the rest of the file.
func (j *Journal) scan(seg *segment, last bool) error {
	raw, err := os.ReadFile(j.path(*seg))
	if err != nil {
		return err
	}
	at := 0
	for at < len(raw) && j.ending == nil {
		rec, need := parse(raw[at:])
		if need == 0 || need > len(raw)-at || rec.offset != seg.end {
			break
		}
		if rec.kind == kindEnding {
			var ending sandboxd.Ending
			if !last || json.Unmarshal(rec.data, &ending) != nil {
				break
			}
			j.ending, j.stored = &ending, true
		}
		seg.end = rec.end()
		at += need
	}
	seg.size = int64(at)
	if last && at < len(raw) {
		return os.Truncate(j.path(*seg), seg.size)
	}
	return nil
}
