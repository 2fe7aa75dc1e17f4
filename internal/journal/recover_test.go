package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sandboxd"
)

// copyDir copies a journal, the last segment changed by edit.
func copyDir(t testing.TB, from, to string, edit func([]byte) []byte) {
	t.Helper()
	starts, err := segmentStarts(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, start := range starts {
		name := segment{start: start}.name()
		raw, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if i == len(starts)-1 {
			raw = edit(raw)
		}
		if err := os.WriteFile(filepath.Join(to, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecoveryAtEveryTruncation(t *testing.T) {
	j := create(t, Options{})
	records := []string{"first", "the second", "3rd"}
	ends := []int{0} // file sizes at which records end
	for _, r := range records {
		appendOK(t, j, sandboxd.StreamStderr, []byte(r))
		ends = append(ends, ends[len(ends)-1]+headerSize+len(r))
	}
	if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit}); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(records, "")
	size := int(j.segments[0].size)
	dir := filepath.Join(t.TempDir(), "cut")
	for cut := 0; cut <= size; cut++ {
		copyDir(t, j.dir, dir, func(raw []byte) []byte { return raw[:cut] })
		c, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		whole := 0
		for whole+1 < len(ends) && ends[whole+1] <= cut {
			whole++
		}
		want := strings.Join(records[:whole], "")
		if got, _ := readAll(t, c, 0); string(got) != want {
			t.Fatalf("cut at %d: %q, want %q", cut, got, want)
		}
		if (c.Ending() != nil) != (cut == size) {
			t.Fatalf("cut at %d of %d: ending %v", cut, size, c.Ending())
		}
		if cut < size {
			// What was lost is sent again and lands where it was.
			if err := c.Append(sandboxd.StreamStderr, 0, []byte(all)); err != nil {
				t.Fatal(err)
			}
			c = reopen(t, c)
			if got, _ := readAll(t, c, 0); string(got) != all {
				t.Fatalf("cut at %d, sent again: %q", cut, got)
			}
		}
		c.Close()
	}
}

func TestRecoveryWithFlippedBits(t *testing.T) {
	j := create(t, Options{})
	all := "alpha beta gamma"
	for _, word := range []string{"alpha ", "beta ", "gamma"} {
		appendOK(t, j, sandboxd.StreamStdout, []byte(word))
	}
	size := int(j.segments[0].size)
	dir := filepath.Join(t.TempDir(), "flipped")
	for bit := range size * 8 {
		copyDir(t, j.dir, dir, func(raw []byte) []byte { raw[bit/8] ^= 1 << (bit % 8); return raw })
		c, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, _ := readAll(t, c, 0)
		if len(got) >= len(all) || string(got) != all[:len(got)] {
			t.Fatalf("bit %d: %q", bit, got)
		}
		c.Close()
	}
}

// A segment that is damaged in the middle of a journal becomes a gap.
func TestDamagedSegmentIsAGap(t *testing.T) {
	j := create(t, Options{Limit: 1 << 20, SegmentBytes: 4 << 10})
	all := pattern(40 << 10)
	for at := 0; at < len(all); at += 512 {
		appendOK(t, j, sandboxd.StreamStdout, all[at:at+512])
	}
	victim := j.segments[4]
	raw, err := os.ReadFile(j.path(victim))
	if err != nil {
		t.Fatal(err)
	}
	raw[headerSize+512+headerSize] ^= 1 // in the second record
	if err := os.WriteFile(j.path(victim), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, gaps := readAll(t, j, 0)
		if len(gaps) != 1 || gaps[0] != (sandboxd.Gap{From: victim.start + 512, To: victim.end}) {
			t.Fatalf("gaps %v, victim %+v", gaps, victim)
		}
		clear(all[gaps[0].From:gaps[0].To])
		if !bytes.Equal(got, all) {
			t.Fatal("the rest differs")
		}
		j = reopen(t, j)
	}
}

func TestSegmentThatVanished(t *testing.T) {
	j := create(t, Options{Limit: 1 << 20, SegmentBytes: 4 << 10})
	all := pattern(40 << 10)
	for at := 0; at < len(all); at += 512 {
		appendOK(t, j, sandboxd.StreamStdout, all[at:at+512])
	}
	victim := j.segments[4]
	if err := os.Remove(j.path(victim)); err != nil {
		t.Fatal(err)
	}
	_, gaps := readAll(t, j, 0)
	if len(gaps) != 1 || gaps[0] != (sandboxd.Gap{From: victim.start, To: victim.end}) {
		t.Fatalf("gaps %v, victim %+v", gaps, victim)
	}
}

// The journal against a byte slice, with reopening, tears and retention.
func TestModel(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(root, "model")
		if err != nil {
			rt.Fatal(err)
		}
		opts := Options{Limit: rapid.SampledFrom([]int64{0, 20 << 10, 100 << 10}).Draw(rt, "limit"), SegmentBytes: 4 << 10}
		j := Create(filepath.Join(dir, "j"), opts)
		defer func() { j.Close() }()
		var model []byte
		var streams []sandboxd.Stream // of each byte
		ended := false
		check := func(*rapid.T) {
			if j.Next() != int64(len(model)) || (j.Ending() != nil) != ended {
				rt.Fatalf("next %d, want %d; ended %v", j.Next(), len(model), ended)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": check,
			"append": func(rt *rapid.T) {
				n := rapid.SampledFrom([]int{1, 10, 500, 4000, 5000, 40000}).Draw(rt, "size")
				back := rapid.IntRange(0, min(len(model), 100)).Draw(rt, "again")
				stream := rapid.SampledFrom([]sandboxd.Stream{sandboxd.StreamStdout, sandboxd.StreamStderr}).Draw(rt, "stream")
				fresh := pattern(n)
				at := len(model) - back
				data := append(bytes.Clone(model[at:]), fresh...)
				err := j.Append(stream, int64(at), data)
				if ended {
					wantClass(t, err, sandboxd.ClassConflict)
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				model = append(model, fresh...)
				for range n {
					streams = append(streams, stream)
				}
			},
			"hole": func(rt *rapid.T) {
				if err := j.Append(sandboxd.StreamStdout, int64(len(model))+1, []byte("x")); err == nil {
					rt.Fatal("a hole was accepted")
				}
			},
			"reopen": func(rt *rapid.T) {
				dropped := j.Dropped()
				j.Close()
				if starts, _ := segmentStarts(j.dir); len(starts) > 0 && rapid.Bool().Draw(rt, "torn") {
					last := filepath.Join(j.dir, segment{start: starts[len(starts)-1]}.name())
					f, err := os.OpenFile(last, os.O_WRONLY|os.O_APPEND, 0)
					if err != nil {
						rt.Fatal(err)
					}
					f.Write(pattern(rapid.IntRange(1, 100).Draw(rt, "tail")))
					f.Close()
				}
				if j, err = Open(j.dir, opts); err != nil {
					rt.Fatal(err)
				}
				ended = ended && len(model) > 0 // a silent one's ending is the store's
				if j.Dropped() != dropped {
					rt.Fatalf("dropped %d, before %d", j.Dropped(), dropped)
				}
			},
			"finish": func(rt *rapid.T) {
				if rapid.IntRange(0, 9).Draw(rt, "rarely") > 0 {
					return
				}
				if err := j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit}); err != nil {
					rt.Fatal(err)
				}
				ended = true
			},
			"read": func(rt *rapid.T) {
				from := rapid.IntRange(0, len(model)).Draw(rt, "from")
				s, err := j.Follow(sandboxd.FollowOptions{Offset: int64(from)})
				if err != nil {
					rt.Fatal(err)
				}
				at, missing := int64(from), int64(0)
				for {
					f, err := s.Next(t.Context())
					if err != nil || f.Ending != nil {
						break
					}
					if f.Offset != at {
						rt.Fatalf("frame at %d, want %d", f.Offset, at)
					}
					if f.Gap != nil {
						missing += f.Gap.To - f.Gap.From
						at = f.Gap.To
						continue
					}
					end := at + int64(len(f.Data))
					if !bytes.Equal(f.Data, model[at:end]) || f.Stream != streams[at] || f.Stream != streams[end-1] {
						rt.Fatalf("frame at %d differs", at)
					}
					at = end
				}
				s.Close()
				if at != int64(len(model)) || missing > j.Dropped() || from == 0 && missing != j.Dropped() {
					rt.Fatalf("read to %d of %d, %d missing, %d dropped", at, len(model), missing, j.Dropped())
				}
			},
		})
	})
}

// Whatever is in a segment, opening it neither fails nor invents bytes, and what
// it found once it finds again.
func FuzzRecover(f *testing.F) {
	var h [headerSize]byte
	putHeader(&h, time.Unix(1, 0), record{kind: kindStdout, data: []byte("hello")})
	f.Add(append(h[:], "hello"...))
	f.Add([]byte{})
	f.Add(make([]byte, 100))
	putHeader(&h, time.Unix(1, 0), record{kind: kindEnding, data: []byte(`{"cause":"exit"}`)})
	f.Add(append(h[:], `{"cause":"exit"}`...))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, segment{}.name())
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, gaps := readAll(t, j, 0)
		if len(gaps) > 0 || len(got) > len(raw) {
			t.Fatalf("%d bytes and gaps %v out of %d", len(got), gaps, len(raw))
		}
		again := reopen(t, j)
		if second, _ := readAll(t, again, 0); !bytes.Equal(got, second) || (j.Ending() == nil) != (again.Ending() == nil) {
			t.Fatal("a second recovery found something else")
		}
		if info, err := os.Stat(path); err != nil || info.Size() != again.segments[0].size {
			t.Fatalf("the file was not cut: %v %v", info, err)
		}
		again.Close()
	})
}
