package sessions

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"sandboxd"
	"sandboxd/internal/api/bounded"
)

// The first generation of the wire: commands with one stream, and files by route. Failed
// operations are answers here, with their texts; only what the session is about is an
// error.

// execLimit is how much of a command's output is shown; what is beyond it is thrown away.
const execLimit = 100_000

// oneStream has a script write errors where its output goes: of two streams nobody could
// say what came first.
const oneStream = "exec 2>&1; "

// readHint follows the message about a file that is too large.
const readHint = `Read a slice with execute() instead, e.g. "sed -n '1,200p' <path>".`

// said is how a command of the first generation ended.
type said struct {
	Output    string `json:"output"`
	ExitCode  *int   `json:"exit_code"`
	Truncated bool   `json:"truncated"`
}

// command runs to its end and keeps the beginning of what it writes to both streams, in
// the order in which it was written.
func (f *Face) command(ctx context.Context, sandbox string, spec sandboxd.CommandSpec, most int) (data []byte, code int, cut bool, err error) {
	cmd, _, err := f.startAwake(ctx, sandbox, spec)
	if err != nil {
		return nil, 0, false, err
	}
	stream, err := f.cfg.Host.FollowCommand(ctx, sandbox, cmd.ID, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		return nil, 0, false, err
	}
	defer stream.Close()
	for {
		fr, err := stream.Next(ctx)
		if err != nil {
			return nil, 0, false, err
		}
		room := most - len(data)
		cut = cut || len(fr.Data) > room || fr.Gap != nil
		data = append(data, fr.Data[:min(room, len(fr.Data))]...)
		if fr.Ending == nil {
			continue
		}
		code = 137 // nobody saw how it ended, but it is over
		if fr.Ending.ExitCode != nil {
			code = *fr.Ending.ExitCode
		}
		return data, code, cut, nil
	}
}

func (f *Face) exec(c *call) error {
	text := c.body.required("command", nil)
	timeout := c.body.number("timeout_seconds", true, bound{})
	sb, err := f.opened(c)
	if err != nil {
		return err
	}
	if timeout != nil && *timeout <= 0 {
		timeout = nil
	}
	limit, err := f.timeout(c.ctx(), timeout)
	if err != nil {
		return err
	}
	var answer said
	err = f.observe(c, "exec", text, func(o *outcome) error {
		data, code, cut, err := f.command(c.ctx(), sb.ID, sandboxd.CommandSpec{Argv: []string{"/bin/sh", "-c", oneStream + text}, TimeoutS: limit}, execLimit)
		if err != nil {
			return f.notRun(c, err)
		}
		answer = said{Output: decoded(data), ExitCode: &code, Truncated: cut}
		o.ok, o.detail = code == 0, fmt.Sprintf("exit %d", code)
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(answer)
}

// workbench is what the operations on files of one request share.
type workbench struct {
	f       *Face
	sandbox string
	files   sandboxd.Files
	limit   *sandboxd.Seconds // for every operation
	most    int64             // of a whole file
}

// operate does one operation under the ceiling that all of them have.
func (f *Face) operate(c *call, op, target string, do func(context.Context, workbench, *outcome) error) error {
	sb, err := f.opened(c)
	if err != nil {
		return err
	}
	policy, err := f.cfg.Lifetimes.Policy(c.ctx())
	if err != nil {
		return err
	}
	files, err := f.cfg.Host.Files(c.ctx(), sb.ID)
	if err != nil {
		return f.notRun(c, err)
	}
	ctx, cancel := context.WithTimeout(c.ctx(), policy.CommandTimeoutS.Duration())
	defer cancel()
	w := workbench{f: f, sandbox: sb.ID, files: files, limit: &policy.CommandTimeoutS, most: policy.MaxReadBytes}
	return f.observe(c, op, target, func(o *outcome) error {
		err := do(ctx, w, o)
		if ctx.Err() != nil && c.ctx().Err() == nil {
			return &problem{status: http.StatusGatewayTimeout, cause: err, detail: fmt.Sprintf("Operation exceeded the %gs service ceiling", float64(policy.CommandTimeoutS))}
		}
		if err != nil {
			return f.notRun(c, err)
		}
		return nil
	})
}

// resolved is a path as the sandbox sees it.
func resolved(p string) string {
	if path.IsAbs(p) {
		return p
	}
	return path.Join(sandboxd.WorkDir, p)
}

// inside says whether a resolved path lies in the workspace, as far as its name tells.
func inside(p string) bool {
	clean := path.Clean(p)
	return clean == sandboxd.WorkDir || strings.HasPrefix(clean, sandboxd.WorkDir+"/")
}

// ask runs a small program in the sandbox, for what lies outside the workspace.
func (w workbench) ask(ctx context.Context, stdin []byte, argv ...string) (data []byte, code int, err error) {
	data, code, cut, err := w.f.command(ctx, w.sandbox, sandboxd.CommandSpec{Argv: argv, Stdin: stdin, TimeoutS: w.limit}, int(w.most)+outputLimit)
	if err == nil && cut {
		err = bounded.ErrTooLarge
	}
	return data, code, err
}

// elsewhere says whether a failure of Files means that only the sandbox can follow a path.
func elsewhere(err error) bool {
	return err != nil && sandboxd.ClassOf(err) == sandboxd.ClassForbidden
}

var errNoFile = errors.New("no such file")

// sizeError is a file that is too large to be read whole.
type sizeError struct{ text string }

func (e sizeError) Error() string { return e.text }

// fetch reads a whole file; errNoFile for everything that is none.
func (w workbench) fetch(ctx context.Context, p string) ([]byte, error) {
	at := resolved(p)
	if inside(at) {
		file, err := w.files.Open(ctx, at)
		if err == nil {
			defer file.Close()
			size := file.Info().Size
			if size > w.most {
				return nil, sizeError{overLimit(size, w.most) + ". " + readHint}
			}
			data, err := bounded.Read(file, size, w.most)
			if errors.Is(err, bounded.ErrTooLarge) {
				return nil, sizeError{fmt.Sprintf("File exceeds the %d-byte read limit. %s", w.most, readHint)}
			}
			return data, err
		}
		if !elsewhere(err) {
			return nil, w.absent(err)
		}
	}
	data, code, err := w.ask(ctx, nil, "/bin/sh", "-c", `test -f "$1" && exec cat -- "$1"`, "sh", at)
	switch {
	case errors.Is(err, bounded.ErrTooLarge) || err == nil && code == 0 && int64(len(data)) > w.most:
		return nil, sizeError{fmt.Sprintf("File exceeds the %d-byte read limit. %s", w.most, readHint)}
	case err != nil:
		return nil, err
	case code != 0:
		return nil, errNoFile
	}
	return data, nil
}

// absent makes every reason why there is no file at a path the same.
func (w workbench) absent(err error) error {
	switch sandboxd.ClassOf(err) {
	case sandboxd.ClassNotFound, sandboxd.ClassInvalid, sandboxd.ClassConflict:
		return errNoFile
	}
	return err
}

func (f *Face) read(c *call) error {
	p := c.body.required("path", nil)
	offset, limit := c.body.whole("offset", 0, from(0)), c.body.whole("limit", linesDefault, from(1))
	var content string
	err := f.operate(c, "read", p, func(ctx context.Context, w workbench, o *outcome) error {
		data, err := w.fetch(ctx, p)
		var large sizeError
		switch {
		case errors.Is(err, errNoFile):
			content = "Error: File '" + p + "' not found"
		case errors.As(err, &large):
			content = "[Error: " + large.text + "]"
		case err != nil:
			return err
		default:
			text, err := f.textOf(ctx, p, data)
			if err != nil {
				content = "[Error: " + err.Error() + "]"
			} else {
				content = window(text, offset, limit)
			}
		}
		o.ok = !strings.HasPrefix(content, "Error:") && !strings.HasPrefix(content, "[Error")
		o.detail = fmt.Sprintf("%d chars", len([]rune(content)))
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(map[string]string{"content": content})
}

func (f *Face) readBytes(c *call) error {
	p := c.body.required("path", nil)
	var data []byte
	err := f.operate(c, "read_bytes", p, func(ctx context.Context, w workbench, o *outcome) error {
		var err error
		data, err = w.fetch(ctx, p)
		var large sizeError
		if errors.Is(err, errNoFile) || errors.As(err, &large) {
			data, err = nil, nil // nothing is what this route says of them
		}
		o.ok, o.detail = len(data) > 0, fmt.Sprintf("%d bytes", len(data))
		return err
	})
	if err != nil {
		return err
	}
	return c.ok(map[string]string{"content_b64": base64.StdEncoding.EncodeToString(data)})
}

// written answers a write.
type written struct {
	Path  *string `json:"path"`
	Error *string `json:"error"`
}

// store puts a file in place and makes its parents; text says why it could not.
func (w workbench) store(ctx context.Context, at string, data []byte) (text string, err error) {
	if inside(at) {
		_, err := w.files.Write(ctx, at, bytes.NewReader(data), sandboxd.WriteOptions{Size: int64(len(data))})
		if err == nil {
			return "", nil
		}
		switch sandboxd.ClassOf(err) {
		case sandboxd.ClassInvalid, sandboxd.ClassConflict, sandboxd.ClassNotFound, sandboxd.ClassNoSpace:
			return "Failed to write file: " + publicText(err), nil
		case sandboxd.ClassForbidden:
		default:
			return "", err
		}
	}
	said, code, err := w.ask(ctx, data, "/bin/sh", "-c", `mkdir -p -- "$1" && cat > "$2"`, "sh", path.Dir(at), at)
	if err != nil || code == 0 {
		return "", err
	}
	return "Failed to write file: " + strings.TrimSpace(decoded(said)), nil
}

func (f *Face) write(c *call) error {
	p, encoded := c.body.required("path", nil), c.body.required("content_b64", nil)
	if err := c.valid(); err != nil {
		return err
	}
	data, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return refuse(http.StatusBadRequest, "content_b64 is not valid base64: "+base64Text(err))
	}
	var answer written
	err = f.operate(c, "write", p, func(ctx context.Context, w workbench, o *outcome) error {
		at := resolved(p)
		text, err := w.store(ctx, at, data)
		if err != nil {
			return err
		}
		answer, *o = written{Path: &at}, outcome{ok: true, detail: fmt.Sprintf("%d bytes", len(data))}
		if text != "" {
			answer, *o = written{Error: &text}, outcome{detail: text}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(answer)
}

func base64Text(err error) string {
	if err == nil {
		return "Non-base64 digit found"
	}
	return err.Error()
}

func (f *Face) edit(c *call) error {
	p, from, to := c.body.required("path", nil), c.body.required("old_string", nil), c.body.required("new_string", nil)
	everywhere := c.body.flag("replace_all", false)
	var answer struct {
		Path        *string `json:"path"`
		Error       *string `json:"error"`
		Occurrences *int    `json:"occurrences"`
	}
	err := f.operate(c, "edit", p, func(ctx context.Context, w workbench, o *outcome) error {
		failed := func(text string) error {
			answer.Error, o.detail = &text, text
			return nil
		}
		data, err := w.fetch(ctx, p)
		var large sizeError
		switch {
		case errors.Is(err, errNoFile):
			return failed("File '" + p + "' not found")
		case errors.As(err, &large):
			return failed(large.text)
		case err != nil:
			return err
		}
		text, err := f.textOf(ctx, p, data)
		if err != nil {
			return failed(err.Error())
		}
		n := strings.Count(text, from)
		switch {
		case n == 0:
			return failed("String '" + from + "' not found in file")
		case n > 1 && !everywhere:
			return failed(fmt.Sprintf("String '%s' found %d times. Use replace_all=True to replace all, or provide more context.", from, n))
		}
		// Before it is made: many occurrences of a letter may become as many megabytes.
		if size := int64(len(text)) + int64(n)*int64(len(to)-len(from)); size > max(w.most, int64(len(text))) {
			return failed(overLimit(size, w.most))
		}
		at := resolved(p)
		problem, err := w.store(ctx, at, []byte(strings.ReplaceAll(text, from, to)))
		if err != nil {
			return err
		}
		if problem != "" {
			return failed(problem)
		}
		answer.Path, answer.Occurrences = &at, &n
		o.ok, o.detail = true, fmt.Sprintf("%d replaced", n)
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(answer)
}

// exists says whether there is a regular file, through links.
func (f *Face) exists(c *call) error {
	p := c.body.required("path", nil)
	var found bool
	err := f.operate(c, "exists", p, func(ctx context.Context, w workbench, o *outcome) error {
		var err error
		found, err = w.isFile(ctx, resolved(p))
		o.ok, o.detail = err == nil, "missing"
		if found {
			o.detail = "found"
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.ok(map[string]bool{"exists": found})
}

func (w workbench) isFile(ctx context.Context, at string) (bool, error) {
	if inside(at) {
		file, err := w.files.Open(ctx, at)
		if err == nil {
			return true, file.Close()
		}
		if !elsewhere(err) {
			if errors.Is(w.absent(err), errNoFile) {
				return false, nil
			}
			return false, err
		}
	}
	_, code, err := w.ask(ctx, nil, "test", "-f", at)
	return err == nil && code == 0, err
}

// ls lists one directory; one that cannot be listed is empty.
func (f *Face) ls(c *call) error {
	p := c.body.required("path", nil)
	rows := []entry{}
	err := f.operate(c, "ls", p, func(ctx context.Context, w workbench, o *outcome) error {
		var err error
		rows, err = w.list(ctx, p)
		o.ok, o.detail = err == nil, fmt.Sprintf("%d entries", len(rows))
		return err
	})
	if err != nil {
		return err
	}
	return c.ok(rows)
}

func (w workbench) list(ctx context.Context, p string) ([]entry, error) {
	rows, base, at := []entry{}, strings.TrimRight(p, "/"), resolved(p)
	if inside(at) {
		l, err := w.files.List(ctx, at, sandboxd.ListOptions{})
		if err != nil && !elsewhere(err) {
			if errors.Is(w.absent(err), errNoFile) {
				err = nil
			}
			return rows, err
		}
		if err == nil {
			for _, info := range l.Entries {
				rows = append(rows, entryOf(info, base+"/"+path.Base(info.Path), true))
			}
			sortRows(rows)
			return rows, nil
		}
	}
	// Of each name: whether it is a directory, its size, and the name, which ends with NUL.
	const script = `cd -- "$1" && for f in * .*; do case $f in .|..) continue; esac; if [ -d "$f" ] && [ ! -L "$f" ]; then printf 'd 0 %s\0' "$f"; elif [ -e "$f" ] || [ -L "$f" ]; then printf 'f %s %s\0' "$(stat -c %s -- "$f" 2>/dev/null || echo 0)" "$f"; fi; done`
	data, code, err := w.ask(ctx, nil, "/bin/sh", "-c", script, "sh", at)
	if err != nil || code != 0 {
		return rows, err
	}
	for _, line := range strings.Split(string(data), "\x00") {
		kind, rest, ok := strings.Cut(line, " ")
		size, name, more := strings.Cut(rest, " ")
		if !ok || !more {
			continue
		}
		e := entry{Name: decoded([]byte(name)), Path: decoded([]byte(base + "/" + name)), IsDir: kind == "d"}
		if n, err := strconv.ParseInt(size, 10, 64); err == nil && !e.IsDir {
			e.Size = &n
		}
		rows = append(rows, e)
	}
	sortRows(rows)
	return rows, nil
}

// glob matches files by name below a directory, as find does it: the pattern is of the end
// of a path, whatever is in front of it.
func (f *Face) glob(c *call) error {
	pattern := c.body.required("pattern", nil)
	p := "/"
	if c.body.has("path") {
		p = c.body.required("path", nil)
	}
	rows := []entry{}
	err := f.operate(c, "glob", pattern+" in "+p, func(ctx context.Context, w workbench, o *outcome) error {
		root := p
		if t := strings.TrimSpace(p); t == "" || t == "/" || t == "." {
			root = "."
		}
		if strings.HasPrefix(root, "-") {
			root = "./" + root
		}
		data, _, err := w.ask(ctx, nil, "/bin/sh", "-c", `exec find "$1" -path "$2" -type f 2>/dev/null`, "sh", root, "*/"+strings.TrimPrefix(pattern, "**/"))
		if err != nil {
			return err
		}
		for _, line := range splitLines(decoded(data)) {
			at := path.Clean(line)
			rows = append(rows, entry{Name: path.Base(at), Path: at})
		}
		slices.SortFunc(rows, func(a, b entry) int { return strings.Compare(a.Path, b.Path) })
		o.ok, o.detail = true, fmt.Sprintf("%d matches", len(rows))
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(rows)
}

// hit is one line that matches.
type hit struct {
	Path string `json:"path"`
	Line int    `json:"line_number"`
	Text string `json:"line"`
}

// grep searches by the sandbox's own grep, whose patterns callers have learned.
func (f *Face) grep(c *call) error {
	pattern := c.body.required("pattern", nil)
	where, glob := c.body.optional("path", nil), c.body.optional("glob", nil)
	argv := []string{"grep", "-rn"}
	if c.body.flag("ignore_hidden", true) {
		// With one more letter than a dot: the directory "." is not hidden.
		argv = append(argv, "--exclude=.?*", "--exclude-dir=.?*")
	}
	if glob != nil && *glob != "" {
		argv = append(argv, "--include="+*glob)
	}
	at := "."
	if where != nil && *where != "" {
		at = *where
	}
	argv = append(argv, "-e", pattern, "--", at)
	hits, failure := []hit{}, (*string)(nil)
	err := f.operate(c, "grep", pattern, func(ctx context.Context, w workbench, o *outcome) error {
		data, code, err := w.ask(ctx, nil, argv...)
		if err != nil {
			return err
		}
		if code > 1 {
			text := "Error: " + decoded(data)
			failure, o.detail = &text, text
			return nil
		}
		for _, line := range strings.Split(decoded(data), "\n") {
			file, rest, _ := strings.Cut(line, ":")
			number, text, ok := strings.Cut(rest, ":")
			if n, err := strconv.Atoi(number); ok && err == nil {
				hits = append(hits, hit{file, n, text})
			}
		}
		o.ok, o.detail = true, fmt.Sprintf("%d matches", len(hits))
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(map[string]any{"matches": hits, "error": failure})
}
