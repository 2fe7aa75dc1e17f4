// Package bounded reads into memory what may be too much for it, for every face.
package bounded

import (
	"bytes"
	"errors"
	"io"
)

// ErrTooLarge is more than may be read.
var ErrTooLarge = errors.New("the body is too large")

// Read reads all of r; more than most bytes is ErrTooLarge. It has room for the size that
// was announced from the start, which is believed of nothing else and may be negative:
// a large file that is moved as its buffer grows costs more than to read it.
func Read(r io.Reader, size, most int64) ([]byte, error) {
	data := bytes.NewBuffer(make([]byte, 0, max(0, min(size, most))+bytes.MinRead))
	n, err := data.ReadFrom(io.LimitReader(r, most+1))
	if err == nil && n > most {
		return nil, ErrTooLarge
	}
	return data.Bytes(), err
}
