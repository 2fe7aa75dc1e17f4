package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"sandboxd"
)

// writeJSON prints v as indented JSON, without escaping what HTML would need.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// oneLine keeps a text that a server or a sandbox had a part in from breaking
// the terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// shown is a file name or argument as a person may safely see it: quoted when it
// has anything that a terminal would act on.
func shown(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}

// table prints rows in columns.
func table(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// size is a number of bytes for people.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

// age is how long ago t was, for people.
func age(t time.Time) string {
	d := max(time.Since(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// span is how long something lasts, without the units that say nothing.
func span(d time.Duration) string {
	text := d.Round(time.Second).String()
	for _, none := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, none) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// bytesFlag is a size on the command line: a number of bytes, or one with k, M,
// G or T, which are powers of 1024.
type bytesFlag int64

// UnmarshalText reads "512M", "1.5GiB", "1000".
func (b *bytesFlag) UnmarshalText(text []byte) error {
	s := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(string(text)), "B"), "I")
	factor := 1.0
	if s != "" {
		if i := strings.IndexByte("KMGT", s[len(s)-1]); i >= 0 {
			factor = float64(int64(1) << (10 * (i + 1)))
			s = s[:len(s)-1]
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0) || f*factor >= 1<<62 {
		return fmt.Errorf("want a size as 512M or 2G")
	}
	*b = bytesFlag(f * factor)
	return nil
}

// commandLine is a command as a person would have typed it.
func commandLine(c sandboxd.Command) string {
	if c.Shell != "" {
		return shown(c.Shell)
	}
	words := make([]string, len(c.Argv))
	for i, w := range c.Argv {
		words[i] = shown(w)
		if w == "" || strings.ContainsAny(w, " '\"$") {
			words[i] = strconv.Quote(w)
		}
	}
	return strings.Join(words, " ")
}

// endingText says in a few words how something ended.
func endingText(e *sandboxd.Ending) string {
	if e == nil {
		return "running"
	}
	text := string(e.Cause)
	if e.Signal != "" {
		text += " " + e.Signal
	}
	if e.ExitCode != nil {
		text += " " + strconv.Itoa(*e.ExitCode)
	}
	return text
}
