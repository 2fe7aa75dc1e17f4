package pdftext

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strings"

	"github.com/ledongthuc/pdf"
	"golang.org/x/sys/unix"
)

// refusal is the exit code of a parser that says on stderr what is wrong with the file.
const refusal = 3

const (
	maxMemory = 512 << 20 // of the parser, beside its input
	maxSecond = 8         // of processor time
	maxPages  = 10_000
)

// Main parses what is on stdin and ends the process.
func Main() {
	text, err := confined()
	if err == nil {
		_, err = io.WriteString(os.Stdout, text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(refusal)
	}
	os.Exit(0)
}

func confined() (string, error) {
	for resource, most := range map[int]uint64{unix.RLIMIT_DATA: 2 * maxMemory, unix.RLIMIT_CPU: maxSecond, unix.RLIMIT_NOFILE: 16, unix.RLIMIT_FSIZE: 0, unix.RLIMIT_CORE: 0} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return "", err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", err
	}
	debug.SetMemoryLimit(maxMemory)
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return "", err
	}
	return textOf(data)
}

// textOf is the text of a whole file.
func textOf(data []byte) (text string, err error) {
	defer caught(&err)
	r, err := pdf.NewReader(bytes.NewReader(data), int64(len(data)))
	if errors.Is(err, pdf.ErrInvalidPassword) {
		return "", errors.New(encrypted)
	}
	if err != nil {
		return "", err
	}
	pages := r.NumPage()
	if pages <= 0 {
		return "", errors.New(noPages)
	}
	if pages > maxPages {
		return "", fmt.Errorf("it has %d pages, more than %d", pages, maxPages)
	}
	var b strings.Builder
	about := r.Trailer().Key("Info")
	for _, field := range []string{"Title", "Author", "Subject"} {
		if value := strings.TrimSpace(about.Key(field).Text()); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", field, value)
		}
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	for n := 1; n <= pages; n++ {
		page, err := pageText(r.Page(n))
		if err != nil {
			return "", fmt.Errorf("page %d: %w", n, err)
		}
		if page = strings.TrimSpace(page); page != "" {
			fmt.Fprintf(&b, "--- Page %d ---\n%s\n\n", n, page)
		}
	}
	if text = strings.TrimSpace(b.String()); text == "" {
		return "", errors.New(noText)
	}
	return strings.ToValidUTF8(text, "\uFFFD"), nil
}

// pageText puts the glyphs of a page into lines: where the next one is higher or lower by
// half of its size a line ends, where it is further away than a fifth a word does.
func pageText(p pdf.Page) (text string, err error) {
	defer caught(&err)
	var b strings.Builder
	var last pdf.Text
	for i, t := range p.Content().Text {
		size := max(math.Abs(last.FontSize), 1)
		switch {
		case i == 0:
		case math.Abs(t.Y-last.Y) > size/2:
			b.WriteByte('\n')
		case t.X-last.X-last.W > size/5 && last.S != " " && t.S != " ":
			b.WriteByte(' ')
		}
		b.WriteString(t.S)
		last = t
	}
	return b.String(), nil
}

// caught makes an error of a parser's panic.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("it is damaged: %.100v", r)
	}
}
