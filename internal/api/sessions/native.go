package sessions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"sandboxd"
	"sandboxd/internal/api"
	"sandboxd/internal/api/bounded"
)

// The routes under /sessions/{session_id}/files do one operation on a file without a
// command in the sandbox. A path that means something only inside, because of a link or
// because it leads out of the work directory, is handed back; the client then asks by a
// command. So is what the sandbox's own user could not do: here the files are the host's.

// errHandBack is for what the sandbox has to do itself.
var errHandBack = errors.New("the sandbox has to do this")

// pathError is a failure that the wire's clients know by the name of their own error.
type pathError struct {
	kind, text string
}

func (e pathError) Error() string { return e.text }

const (
	notFound     = "FileNotFoundError"
	isDirectory  = "IsADirectoryError"
	notDirectory = "NotADirectoryError"
	exists       = "FileExistsError"
	badValue     = "ValueError"
)

// spot is a path of the workspace that was looked at name by name.
type spot struct {
	files sandboxd.Files
	parts []string
	found int               // names that are there, from the first on
	last  sandboxd.FileInfo // of the last one that is there
}

func (s spot) path() string { return strings.Join(s.parts, "/") }

// all says whether every name is there.
func (s spot) all() bool { return s.found == len(s.parts) }

// partsOf are the names of an absolute path below the work directory.
func partsOf(p string) ([]string, error) {
	if !path.IsAbs(p) {
		return nil, pathError{badValue, "path must be absolute: " + quoted(p)}
	}
	if strings.ContainsRune(p, 0) {
		return nil, pathError{badValue, "embedded null byte"}
	}
	names := slices.DeleteFunc(strings.Split(p, "/"), func(n string) bool { return n == "" })
	work := strings.TrimPrefix(sandboxd.WorkDir, "/")
	if len(names) == 0 || names[0] != work || slices.Contains(names, "..") || slices.Contains(names, ".") {
		return nil, errHandBack
	}
	return names[1:], nil
}

// modes of a directory that its owner can search, and of a file that it can read, write.
const (
	ownerSearch = 0o100
	ownerWrite  = 0o200
	ownerRead   = 0o400
)

// look walks a path. A link or a special file on it is handed back, and so is a directory
// that the sandbox may not search. A file on the way is an error; a name that is missing
// ends the walk.
func look(ctx context.Context, files sandboxd.Files, p string) (spot, error) {
	parts, err := partsOf(p)
	s := spot{files: files, parts: parts}
	if err != nil {
		return s, err
	}
	s.last = sandboxd.FileInfo{Type: sandboxd.TypeDir, Mode: 0o700}
	for i := range parts {
		if s.last.Mode&ownerSearch == 0 {
			return s, errHandBack
		}
		info, err := files.Stat(ctx, strings.Join(parts[:i+1], "/"))
		if err != nil && sandboxd.ClassOf(err) == sandboxd.ClassNotFound {
			return s, nil
		}
		if err != nil {
			return s, err
		}
		if info.Type != sandboxd.TypeDir && info.Type != sandboxd.TypeFile {
			return s, errHandBack
		}
		if info.Type == sandboxd.TypeFile && i < len(parts)-1 {
			s.found, s.last = i+1, info
			return s, pathError{notDirectory, p + ": a name on the way is not a directory"}
		}
		s.found, s.last = i+1, info
	}
	return s, nil
}

// fileOp does one operation on a path and answers what the wire does about its failures.
func (f *Face) fileOp(c *call, op, p string, do func(context.Context, spot) error) error {
	sb, err := f.opened(c)
	if err != nil {
		return err
	}
	files, err := f.cfg.Host.Files(c.ctx(), sb.ID)
	if err != nil {
		return f.notRun(c, err)
	}
	return f.observe(c, op, p, func(o *outcome) error {
		s, err := look(c.ctx(), files, p)
		if err == nil {
			err = do(c.ctx(), s)
		}
		var bad pathError
		switch {
		case err == nil:
			o.ok = true
			return nil
		case errors.As(err, &bad):
			status := http.StatusBadRequest
			o.detail = bad.kind
			if bad.kind == notFound {
				status, o.detail = http.StatusNotFound, "not found"
			}
			return &problem{status: status, detail: map[string]string{"error": bad.kind, "message": bad.text}}
		case errors.Is(err, errHandBack), handedBack(err):
			o.detail = "via the sandbox"
			return &problem{status: http.StatusConflict, detail: "the sandbox has to resolve " + p, cause: err}
		}
		return err
	})
}

// handedBack says of an error of Files that arose although the path looked right: the
// sandbox changed something in between, and sees best what it is now.
func handedBack(err error) bool {
	switch sandboxd.ClassOf(err) {
	case sandboxd.ClassInvalid, sandboxd.ClassForbidden, sandboxd.ClassConflict, sandboxd.ClassNotFound:
		return true
	}
	return false
}

func missing(s spot) error {
	return pathError{notFound, "No such file or directory: " + quoted(s.path())}
}

func (f *Face) fileRead(c *call) error {
	p := c.body.required("path", nil)
	var data []byte
	err := f.fileOp(c, "read", p, func(ctx context.Context, s spot) error {
		switch {
		case !s.all():
			return missing(s)
		case s.last.Type == sandboxd.TypeDir:
			return pathError{isDirectory, s.path() + " is a directory"}
		case s.last.Mode&ownerRead == 0:
			return errHandBack
		}
		policy, err := f.cfg.Lifetimes.Policy(ctx)
		if err != nil {
			return err
		}
		file, err := s.files.Open(ctx, s.path())
		if err != nil {
			return err
		}
		defer file.Close()
		if file.Info().Size > policy.MaxReadBytes {
			return errHandBack
		}
		if data, err = bounded.Read(file, file.Info().Size, policy.MaxReadBytes); errors.Is(err, bounded.ErrTooLarge) {
			return errHandBack
		}
		return err
	})
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/octet-stream")
	c.w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	_, err = c.w.Write(data)
	api.Note(c.ctx(), err)
	return nil
}

// fileWrite takes the file as the body; a larger one than a whole read answers is the
// sandbox's to write.
func (f *Face) fileWrite(c *call) error {
	if !c.query.Has("path") {
		c.faults = append(c.faults, fault{Type: "missing", Loc: []any{"query", "path"}, Msg: "Field required"})
	}
	p := c.query.Get("path")
	if err := c.valid(); err != nil {
		return err
	}
	policy, err := f.cfg.Lifetimes.Policy(c.ctx())
	if err != nil {
		return err
	}
	if c.r.ContentLength > policy.MaxReadBytes {
		return refuse(http.StatusConflict, "larger than a native write")
	}
	// Before anything is looked at: what is slow to arrive must find the workspace as it is then.
	data, err := bounded.Read(c.r.Body, c.r.ContentLength, policy.MaxReadBytes)
	if errors.Is(err, bounded.ErrTooLarge) {
		return refuse(http.StatusConflict, "larger than a native write")
	}
	if err != nil {
		return err
	}
	err = f.fileOp(c, "write", p, func(ctx context.Context, s spot) error {
		switch {
		case s.all() && s.last.Type == sandboxd.TypeDir:
			return pathError{isDirectory, s.path() + " is a directory"}
		case s.last.Mode&ownerWrite == 0:
			return errHandBack
		}
		_, err := s.files.Write(ctx, s.path(), bytes.NewReader(data), sandboxd.WriteOptions{Size: int64(len(data))})
		return err
	})
	if err != nil {
		return err
	}
	return c.done()
}

func (f *Face) fileStat(c *call) error {
	p := c.body.required("path", nil)
	var e entry
	err := f.fileOp(c, "stat", p, func(_ context.Context, s spot) error {
		if !s.all() {
			return missing(s)
		}
		e = entryOf(s.last, p, false)
		e.Name = path.Base(p)
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(e)
}

// fileRealpath answers a path without links as it is; names that are missing stay.
func (f *Face) fileRealpath(c *call) error {
	p := c.body.required("path", nil)
	var real string
	err := f.fileOp(c, "realpath", p, func(_ context.Context, s spot) error {
		real = path.Join(append([]string{sandboxd.WorkDir}, s.parts...)...)
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(map[string]string{"path": real})
}

func (f *Face) fileList(c *call) error {
	p := c.body.required("path", nil)
	rows := []entry{}
	err := f.fileOp(c, "ls", p, func(ctx context.Context, s spot) error {
		switch {
		case !s.all():
			return missing(s)
		case s.last.Type != sandboxd.TypeDir:
			return pathError{notDirectory, s.path() + " is not a directory"}
		case s.last.Mode&(ownerRead|ownerSearch) != ownerRead|ownerSearch:
			return errHandBack
		}
		l, err := s.files.List(ctx, s.path(), sandboxd.ListOptions{})
		if err != nil {
			return err
		}
		if l.Truncated || l.Incomplete {
			return errHandBack
		}
		for _, info := range l.Entries {
			// A link is shown by what it leads to, which only the sandbox sees.
			if info.Type != sandboxd.TypeDir && info.Type != sandboxd.TypeFile {
				return errHandBack
			}
			rows = append(rows, entryOf(info, path.Join(p, path.Base(info.Path)), false))
		}
		slices.SortFunc(rows, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
		return nil
	})
	if err != nil {
		return err
	}
	return c.ok(rows)
}

func (f *Face) fileMkdir(c *call) error {
	p := c.body.required("path", nil)
	err := f.fileOp(c, "mkdir", p, func(ctx context.Context, s spot) error {
		switch {
		case s.all() && s.last.Type != sandboxd.TypeDir:
			return pathError{exists, s.path() + " is there and is no directory"}
		case s.all():
			return nil
		case s.last.Mode&ownerWrite == 0:
			return errHandBack
		}
		return s.files.Mkdir(ctx, s.path())
	})
	if err != nil {
		return err
	}
	return c.done()
}

// fileRemove removes a link itself, not what it leads to.
func (f *Face) fileRemove(c *call) error {
	p := c.body.required("path", nil)
	err := f.fileOp(c, "remove", p, func(ctx context.Context, s spot) error {
		switch {
		case len(s.parts) == 0:
			return pathError{badValue, "refusing to remove the working directory"}
		case !s.all():
			return missing(s)
		}
		err := s.files.Remove(ctx, s.path())
		if err != nil && sandboxd.ClassOf(err) == sandboxd.ClassNotFound {
			return missing(s)
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.done()
}
