package journal

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

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

// BenchmarkTrue is the journal of a command without output: made, ended, read.
func BenchmarkTrue(b *testing.B) {
	root := b.TempDir()
	for i := 0; b.Loop(); i++ {
		j, err := Create(filepath.Join(root, strconv.Itoa(i)), Options{})
		if err == nil {
			err = j.Finish(sandboxd.Ending{Cause: sandboxd.CauseExit})
		}
		if err != nil {
			b.Fatal(err)
		}
		j.Close()
	}
}
