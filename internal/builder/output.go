package builder

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"sandboxd"
	"sandboxd/internal/catalogue/recipe"
)

const (
	// lastLines of a step that failed are told to who waits for it; the log has all.
	lastLines = 12
	// logBytes bounds each half of a log: what was printed first, and what last.
	logBytes = 512 << 10
)

// step is how the classic builder announces one. A program of a step may print the like:
// only the next one of the recipe is believed.
var step = regexp.MustCompile(`^Step (\d+)/(\d+) : (.*)$`)

// detail is a line of the builder itself, not of the step: a container or a layer.
var detail = regexp.MustCompile(`^ ---> |^Removing intermediate container `)

// output hears what a try prints.
type output struct {
	show func(func(*sandboxd.Preparation))
	log  *buildLog
	todo []string // the recipe's instructions from the current one on
	n    int      // number of the current one; 0 before the first
	of   int      // that of the last one, as the first one's announcement has it
	at   string   // the step
	last []string // lines of it
}

// instructions are those of a recipe's text, which has each on a line of its own.
func instructions(text []byte) (list []string) {
	for line := range strings.Lines(string(text)) {
		if line = plainText(strings.TrimSpace(line)); line != "" && line[0] != '#' {
			list = append(list, line)
		}
	}
	return list
}

// stepText bounds what is compared of an instruction: of a long one the engine's line is cut.
const stepText = 2000

// announced says whether step n, as text has it, is the recipe's next one or the current
// one. That which the engine adds at the end, with the labels, is not waited for.
func (o *output) announced(n int, text string) bool {
	skip := n - max(o.n, 1) // of what is to do the first is the current one
	if n < 1 || n < o.n || n > o.n+1 || skip >= len(o.todo) {
		return false
	}
	want := o.todo[skip]
	if len(text) > stepText && len(want) > stepText {
		text, want = text[:stepText], want[:stepText]
	}
	if text != want {
		return false
	}
	o.todo, o.n = o.todo[skip:], n
	return true
}

func (o *output) doing(what string) {
	o.log.line("== " + what)
	o.last = o.last[:0]
	o.show(func(p *sandboxd.Preparation) { p.Doing, p.Line = what, "" })
}

// line is one of what the engine prints. What a build runs is nobody's in particular, and
// what it prints ends on terminals: it gets no character there that one would act on.
func (o *output) line(text string) {
	text = plainText(text)
	o.log.line(text)
	m := step.FindStringSubmatch(text)
	n, of := 0, 0
	if m != nil {
		n, _ = strconv.Atoi(m[1])
		of, _ = strconv.Atoi(m[2])
	}
	if m != nil && o.announced(n, m[3]) {
		if o.of == 0 {
			o.of = of
		}
		of = o.of
		what := cut(plainStep(m[3]))
		o.at, o.last = fmt.Sprintf("step %d of %d, %s", n, of, what), o.last[:0]
		o.show(func(p *sandboxd.Preparation) { p.Step, p.Steps, p.Doing, p.Line = n, of, what, "" })
		return
	}
	if detail.MatchString(text) {
		return
	}
	if len(o.last) == lastLines {
		o.last = append(o.last[:0], o.last[1:]...)
	}
	o.last = append(o.last, cut(text))
	o.show(func(p *sandboxd.Preparation) { p.Line = cut(text) })
}

// plainText has a space for what is no printable character: also for those that have text run the other
// way, or end a line for some.
func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// listed is a step of a shell in the form that no builder changes.
var listed = regexp.MustCompile(`^RUN (\["/bin/sh",.*\])$`)

// plainStep is a step as a person would have written it.
func plainStep(text string) string {
	var argv []string
	if m := listed.FindStringSubmatch(text); m != nil && json.Unmarshal([]byte(m[1]), &argv) == nil && len(argv) == 3 {
		return "RUN " + strings.ReplaceAll(argv[2], "\n", "; ")
	}
	return text
}

// explain says where a try failed.
func (o *output) explain(err error) error {
	if err == nil {
		return nil
	}
	class := sandboxd.ClassOf(err)
	if class == sandboxd.ClassInternal || class == sandboxd.ClassNotFound {
		class = sandboxd.ClassUnavailable
	}
	told := shown(err)
	if o.at != "" {
		told = o.at + ": " + told
	}
	if len(o.last) > 0 {
		told += "; it last said: " + strings.Join(o.last, " | ")
	}
	cause := err
	var e *sandboxd.Error
	if errors.As(err, &e) {
		cause = e.Err // the rest is told
	}
	return sandboxd.Wrap(class, cause, "the image cannot be made: %s", told)
}

// shown is an error for people: bounded, and without the cause, which only logs have.
func shown(err error) string {
	text := err.Error()
	var e *sandboxd.Error
	if errors.As(err, &e) {
		text = e.Public()
	}
	const most = 4000
	if len(text) > most {
		return fmt.Sprintf("%s... (%d bytes more)", strings.ToValidUTF8(text[:most], "?"), len(text)-most)
	}
	return text
}

// cut makes a line short enough for a person.
func cut(text string) string {
	const most = 200
	text = strings.ToValidUTF8(text, "?")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}

// buildLog is a log of bounded size: it has the first and the last of what was printed.
type buildLog struct {
	mu      sync.Mutex
	file    *os.File
	written int
	tail    [][]byte // of what no longer fits
	kept    int      // bytes of tail
	dropped int      // bytes between
}

func (b *Builder) logFile(spec recipe.Spec) string {
	return filepath.Join(b.cfg.Dir, strings.TrimPrefix(spec.Digest, "sha256:")+".log")
}

// openLog begins a log for the first try, and goes on with it for the next ones.
func openLog(name string, try int) (*buildLog, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if try == 1 {
		flags |= os.O_TRUNC
	}
	file, err := os.OpenFile(name, flags, 0o600)
	if err != nil {
		return nil, err
	}
	l := &buildLog{file: file}
	l.line(fmt.Sprintf("== try %d, %s", try, time.Now().UTC().Format(time.RFC3339)))
	return l, nil
}

func (l *buildLog) line(text string) {
	line := append([]byte(text), '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return // of an engine that goes on talking
	}
	if l.written+len(line) <= logBytes && l.tail == nil {
		// A log that cannot be written is no reason not to build.
		n, _ := l.file.Write(line)
		l.written += n
		return
	}
	l.tail = append(l.tail, line)
	for l.kept += len(line); l.kept > logBytes; l.tail = l.tail[1:] {
		l.kept -= len(l.tail[0])
		l.dropped += len(l.tail[0])
	}
}

func (l *buildLog) close(err error) {
	end := "== done"
	if err != nil {
		end = "== failed: " + err.Error()
	}
	l.line(end)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dropped > 0 {
		fmt.Fprintf(l.file, "== %d bytes are left out here\n", l.dropped)
	}
	for _, line := range l.tail {
		_, _ = l.file.Write(line)
	}
	_ = l.file.Close()
	l.file = nil
}

// marked is a recipe's text in which everything that is built upon the base is labelled
// at once, so that what a failed build leaves is known, too.
func marked(spec recipe.Spec) []byte {
	from := regexp.MustCompile(`(?m)^FROM .*\n`).FindIndex(spec.Dockerfile)
	if from == nil {
		return spec.Dockerfile
	}
	label := fmt.Sprintf("LABEL %s=%q %s=%q\n", recipe.LabelRuntime, spec.Labels[recipe.LabelRuntime], recipe.LabelOwner, spec.Labels[recipe.LabelOwner])
	return slices.Concat(spec.Dockerfile[:from[1]], []byte(label), spec.Dockerfile[from[1]:])
}

// pack is the context of a build as an archive. Its entries have no time, so that the
// engine's cache knows them again.
func pack(spec recipe.Spec) (io.Reader, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range append([]recipe.File{{Name: "Dockerfile", Content: marked(spec)}}, spec.Files...) {
		h := tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: 0o644, Size: int64(len(f.Content)), ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return &archive, nil
}
