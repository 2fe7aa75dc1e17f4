package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"sandboxd"
)

// What one image may hold unless an import says otherwise.
const (
	MaxEntries = 1_000_000
	MaxBytes   = 16 << 30
)

// MaxNames is how many names the root of an image and its etc may have, each: a sandbox
// shows every one by a mount of its own.
const MaxNames = 900

const block = 512 // of a tar

// saved are the names that the archives of `docker save` and of OCI tools begin with.
var saved = regexp.MustCompile(`^(\./)?(blobs/?|blobs/sha256/.*|oci-layout|index\.json|manifest\.json|repositories|[0-9a-f]{64}(/.*|\.json|\.tar)?)$`)

// Plain answers the tar that r is, or that is gzipped in it, and looks at its begin.
// Reading more than most bytes of it fails: what a small archive grows to is not to be
// found out by a full disk. Every refusal is ClassInvalid.
func Plain(r io.Reader, most int64) (io.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, damaged(err, 0)
		}
		in = bufio.NewReaderSize(z, 64<<10)
	}
	head, err := in.Peek(block)
	switch {
	case len(head) == 0 && err == io.EOF:
		return nil, sandboxd.Invalid("archive", "there is nothing in it")
	case err != nil && err != io.EOF:
		return nil, damaged(err, 0)
	case len(head) < block || !isHeader(head):
		return nil, sandboxd.Invalid("archive", "it is neither a tar nor a gzipped one").
			WithHint("other compressions are undone first, as with: zstd -dc FILE | sandboxd image import NAME -")
	case saved.MatchString(nameIn(head)):
		return nil, sandboxd.Invalid("archive", "it holds the layers of an image, as docker save writes them, and not a root file system").
			WithHint("docker create IMAGE, then docker export CONTAINER, writes one that can be imported")
	}
	return &bounded{r: in, left: most, most: most}, nil
}

// isHeader says whether a block is an entry's header, by its sum, or the end of an
// empty archive.
func isHeader(b []byte) bool {
	sum := 0
	for i, c := range b {
		if i >= 148 && i < 156 {
			c = ' ' // the sum itself
		}
		sum += int(c)
	}
	told, err := strconv.ParseInt(strings.Trim(string(b[148:156]), " \x00"), 8, 64)
	return err == nil && told == int64(sum) || sum == 8*' '
}

func nameIn(header []byte) string {
	name, _, _ := bytes.Cut(header[:100], []byte{0})
	return string(name)
}

// bounded fails, other than io.LimitedReader, when there is more.
type bounded struct {
	r          io.Reader
	left, most int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, sandboxd.Invalid("archive", "it has more than %d bytes", b.most)
	}
	if err != nil && err != io.EOF {
		err = damaged(err, -1)
	}
	return n, err
}

// damaged gives a failure to read an archive its class; one of the stream that carries
// it has one. entries below 0 are not counted.
func damaged(err error, entries int64) error {
	var known *sandboxd.Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	text := "it is damaged or cut short"
	if entries >= 0 {
		text += fmt.Sprintf(" after %d entries", entries)
	}
	return &sandboxd.Error{Class: sandboxd.ClassInvalid, Field: "archive", Err: err, Message: text}
}
