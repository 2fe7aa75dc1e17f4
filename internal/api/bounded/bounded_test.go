package bounded

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"
)

// TestRead: what was announced decides about room alone, not about what is read.
func TestRead(t *testing.T) {
	const most = 1 << 20
	for _, size := range []int64{-1, 0, 1, 100_000, most, most + 1, 1 << 60} {
		for _, there := range []int{0, 1, 100_000, most} {
			want := bytes.Repeat([]byte{7}, there)
			if got, err := Read(bytes.NewReader(want), size, most); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes that were announced as %d: %d bytes, %v", there, size, len(got), err)
			}
		}
		if got, err := Read(bytes.NewReader(make([]byte, most+1)), size, most); err != ErrTooLarge || got != nil {
			t.Errorf("a byte too many, announced as %d: %d bytes, %v", size, len(got), err)
		}
		if _, err := Read(iotest.ErrReader(io.ErrUnexpectedEOF), size, most); err != io.ErrUnexpectedEOF {
			t.Errorf("a broken body, announced as %d: %v", size, err)
		}
	}
	body := make([]byte, most)
	if n := testing.AllocsPerRun(10, func() { _, _ = Read(bytes.NewReader(body), most, most) }); n > 4 {
		t.Errorf("a body of the announced size is moved: %v allocations", n)
	}
}
