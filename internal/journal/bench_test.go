package journal

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandboxd"
)

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 32 << 10} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			j := create(b, Options{})
			data := pattern(size)
			b.SetBytes(int64(size))
			for b.Loop() {
				appendOK(b, j, sandboxd.StreamStdout, data)
			}
		})
	}
}

// BenchmarkCat is the baseline of BenchmarkAppend: cat from a pipe into a file.
func BenchmarkCat(b *testing.B) {
	data := pattern(32 << 10)
	out, err := os.Create(filepath.Join(b.TempDir(), "out"))
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	cat := exec.Command("cat")
	cat.Stdout = out
	in, err := cat.StdinPipe()
	if err == nil {
		err = cat.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	for n := 0; b.Loop(); n++ {
		if n%2048 == 0 { // as much as a journal keeps
			out.Truncate(0)
		}
		if _, err := in.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	in.Close()
	if err := cat.Wait(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkRead(b *testing.B) {
	j := create(b, Options{})
	appendOK(b, j, sandboxd.StreamStdout, pattern(32<<20))
	b.SetBytes(32 << 20)
	for b.Loop() {
		s, _ := j.Follow(sandboxd.FollowOptions{})
		for {
			if _, err := s.Next(b.Context()); err != nil {
				break
			}
		}
		s.Close()
	}
}

// BenchmarkTrue is the journal of a command without output: made, ended and seen
// to end, by one client and by 16. What the disk takes comes after what is seen.
func BenchmarkTrue(b *testing.B) {
	for _, clients := range []int{1, 16} {
		b.Run(strconv.Itoa(clients), func(b *testing.B) {
			root := b.TempDir()
			var n, seen atomic.Int64
			var wg sync.WaitGroup
			began := time.Now()
			for range clients {
				wg.Go(func() {
					for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
						start := time.Now()
						j := Create(filepath.Join(root, strconv.FormatInt(i, 10)), Options{})
						s, _ := j.Follow(sandboxd.FollowOptions{Follow: true})
						done := make(chan error)
						go func() { done <- j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit}) }()
						if _, err := s.Next(b.Context()); err != nil {
							b.Error(err)
						}
						seen.Add(int64(time.Since(start)))
						if err := <-done; err != nil {
							b.Error(err)
						}
						s.Close()
						j.Close()
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(seen.Load())/float64(b.N)/1000, "seen-us")
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "commands/s")
		})
	}
}
