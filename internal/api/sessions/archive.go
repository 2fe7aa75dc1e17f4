package sessions

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"sandboxd"
	"sandboxd/internal/api/bounded"
)

// entry is a file or a directory as the wire lists it.
type entry struct {
	Name     string  `json:"name"`
	Path     string  `json:"path"`
	IsDir    bool    `json:"is_dir"`
	Size     *int64  `json:"size"`
	Modified *string `json:"modified_at"`
}

// entryOf shows one at a path; its name is the path's last.
func entryOf(info sandboxd.FileInfo, at string, dated bool) entry {
	e := entry{Name: decoded([]byte(path.Base(info.Path))), Path: decoded([]byte(at)), IsDir: info.Type == sandboxd.TypeDir}
	if !e.IsDir {
		e.Size = &info.Size
		if dated {
			at := isoTime(info.ModTime)
			e.Modified = &at
		}
	}
	return e
}

// isoTime is t in UTC, with its microseconds if it has any.
func isoTime(t time.Time) string {
	layout := "2006-01-02T15:04:05-07:00"
	if t.Nanosecond()/1000 != 0 {
		layout = "2006-01-02T15:04:05.000000-07:00"
	}
	return t.UTC().Format(layout)
}

// archive is the stored files of a session, open or closed. Reading it starts nothing and
// counts as no use.
type archive struct {
	files sandboxd.Files
	most  int64 // of a file that is read whole
}

func (f *Face) archiveOf(ctx context.Context, id string) (archive, error) {
	var none archive
	kept, err := f.kept(ctx, id)
	if err != nil {
		return none, err
	}
	if kept == nil || kept.Face != sandboxd.FaceSessions {
		return none, refuse(http.StatusNotFound, "No workspace for session: "+id)
	}
	files, err := f.cfg.Host.Files(ctx, kept.ID)
	if err != nil {
		return none, err
	}
	policy, err := f.cfg.Lifetimes.Policy(ctx)
	return archive{files: files, most: policy.MaxReadBytes}, err
}

// within is what a path names in the workspace. Any absolute one is looked up inside: as
// the sandbox sees it, or else by its own names.
func within(p string) string {
	if !path.IsAbs(p) {
		return p
	}
	clean := strings.TrimLeft(p, "/")
	work := strings.TrimPrefix(sandboxd.WorkDir, "/")
	if clean == work || strings.HasPrefix(clean, work+"/") {
		clean = strings.TrimLeft(clean[len(work):], "/")
	}
	if clean == "" {
		return "."
	}
	return clean
}

// refused gives an error of Files the wire's words; what is what was asked for.
func refused(err error, what, p string) error {
	switch sandboxd.ClassOf(err) {
	case sandboxd.ClassForbidden:
		return &problem{status: http.StatusBadRequest, detail: "Path '" + p + "' is outside the workspace", cause: err}
	case sandboxd.ClassInvalid:
		if slices.Contains(strings.Split(p, "/"), "..") || strings.ContainsRune(p, 0) {
			return &problem{status: http.StatusBadRequest, detail: "Path '" + p + "' is outside the workspace", cause: err}
		}
		return &problem{status: http.StatusNotFound, detail: "No such " + what + ": " + p, cause: err}
	case sandboxd.ClassNotFound, sandboxd.ClassConflict:
		return &problem{status: http.StatusNotFound, detail: "No such " + what + ": " + p, cause: err}
	}
	return err
}

// rows lists one directory: directories first, each by name, links left out.
func (a archive) rows(ctx context.Context, p string, most int) ([]entry, bool, error) {
	l, err := a.files.List(ctx, p, sandboxd.ListOptions{Depth: 1, MaxEntries: most})
	if err != nil {
		return nil, false, refused(err, "directory", p)
	}
	rows := []entry{}
	for _, info := range l.Entries {
		if info.Type != sandboxd.TypeLink {
			rows = append(rows, entryOf(info, info.Path, true))
		}
	}
	sortRows(rows)
	return rows, l.Truncated, nil
}

// sortRows puts directories first, each kind by name.
func sortRows(rows []entry) {
	slices.SortStableFunc(rows, func(a, b entry) int {
		if a.IsDir != b.IsDir {
			if a.IsDir {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
}

func (f *Face) storedList(c *call) error {
	p := c.body.required("path", nil)
	if err := c.valid(); err != nil {
		return err
	}
	a, err := f.archiveOf(c.ctx(), c.id)
	if err != nil {
		return err
	}
	rows, _, err := a.rows(c.ctx(), within(p), 0)
	if err != nil {
		return err
	}
	return c.ok(rows)
}

// treeBounds are those of a tree, as asked for.
type treeBounds struct {
	path        string
	depth, most int
}

// The widest bounds of a tree that may be asked for.
const (
	treeDepthMax   = 64
	treeEntriesMax = 100_000
	treesMax       = 100
)

func readTree(o object) treeBounds {
	b := treeBounds{path: ".", depth: o.whole("max_depth", sandboxd.TreeDepth, between(1, treeDepthMax)),
		most: o.whole("max_entries", sandboxd.TreeEntries, between(1, treeEntriesMax))}
	if o.has("path") {
		b.path = o.required("path", nil)
	}
	return b
}

// tree is a directory and what is below it. Truncated says that something was left out:
// by a bound or, then Incomplete too, because it could not be read.
type tree struct {
	Entries    []entry `json:"entries"`
	Truncated  bool    `json:"truncated"`
	Incomplete bool    `json:"incomplete"`
	MaxDepth   int     `json:"max_depth"`
	MaxEntries int     `json:"max_entries"`
}

// tree lists breadth first: each directory's entries before those of its directories.
// What it reads is bounded as what it answers.
func (a archive) tree(ctx context.Context, b treeBounds) (tree, error) {
	t := tree{Entries: []entry{}, MaxDepth: b.depth, MaxEntries: b.most}
	type level struct {
		path  string
		depth int
	}
	for queue := []level{{within(b.path), 1}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		rows, more, err := a.rows(ctx, at.path, b.most-len(t.Entries)+1)
		if err != nil && at.depth == 1 {
			return t, err
		} else if err != nil {
			t.Truncated, t.Incomplete = true, true
			continue
		}
		for _, row := range rows {
			if len(t.Entries) == b.most {
				t.Truncated = true
				return t, nil
			}
			t.Entries = append(t.Entries, row)
			if row.IsDir && at.depth < b.depth {
				queue = append(queue, level{row.Path, at.depth + 1})
			} else if row.IsDir {
				t.Truncated = true
			}
		}
		if more {
			t.Truncated = true
			return t, nil
		}
	}
	return t, nil
}

func (f *Face) storedTree(c *call) error {
	b := readTree(c.body)
	if err := c.valid(); err != nil {
		return err
	}
	a, err := f.archiveOf(c.ctx(), c.id)
	if err != nil {
		return err
	}
	t, err := a.tree(c.ctx(), b)
	if err != nil {
		return err
	}
	return c.ok(t)
}

// treeOf is one workspace's part of an answer about several.
type treeOf struct {
	ID     string  `json:"session_id"`
	Tree   *tree   `json:"tree"`
	Error  *string `json:"error"`
	Status *int    `json:"status_code"`
}

func (f *Face) storedTrees(c *call) error {
	ids := c.body.list("sessions", 1)
	if len(ids) > treesMax {
		c.body.wrong("sessions", "too_long", fmt.Sprintf("List should have at most %d items after validation, not %d", treesMax, len(ids)), nil)
	}
	for _, id := range ids {
		if !idPattern.MatchString(id) {
			c.body.wrong("sessions", "string_pattern_mismatch", "String should match pattern '"+idPattern.String()+"'", nil)
			break
		}
	}
	b := readTree(c.body)
	if err := c.valid(); err != nil {
		return err
	}
	results := []treeOf{}
	for _, id := range ids {
		one := treeOf{ID: id}
		a, err := f.archiveOf(c.ctx(), id)
		var t tree
		if err == nil {
			t, err = a.tree(c.ctx(), b)
		}
		if err == nil {
			one.Tree = &t
		} else if one.Error, one.Status = f.failure(err); one.Error == nil {
			return err
		}
		results = append(results, one)
	}
	return c.ok(map[string]any{"results": results})
}

// failure is what an error would have been answered with; nil if it is none of the wire's.
func (f *Face) failure(err error) (*string, *int) {
	if p, ok := err.(*problem); ok {
		text := p.Error()
		return &text, &p.status
	}
	return nil, nil
}

// whole reads a file that is not too large.
func (a archive) whole(ctx context.Context, p string) ([]byte, error) {
	file, err := a.files.Open(ctx, p)
	if err != nil {
		return nil, refused(err, "file", p)
	}
	defer file.Close()
	size := file.Info().Size
	if size > a.most {
		return nil, refuse(http.StatusBadRequest, overLimit(size, a.most))
	}
	data, err := bounded.Read(file, size, a.most)
	if err == bounded.ErrTooLarge { // it grew
		return nil, refuse(http.StatusBadRequest, overLimit(a.most+1, a.most))
	}
	return data, err
}

func overLimit(size, most int64) string {
	return fmt.Sprintf("File is %d bytes, over the %d-byte read limit", size, most)
}

// storedFile answers a whole file of what a session left, if the request is valid.
func (f *Face) storedFile(c *call, path string) ([]byte, error) {
	if err := c.valid(); err != nil {
		return nil, err
	}
	a, err := f.archiveOf(c.ctx(), c.id)
	if err != nil {
		return nil, err
	}
	return a.whole(c.ctx(), within(path))
}

func (f *Face) storedRead(c *call) error {
	p := c.body.required("path", nil)
	offset, limit := c.body.whole("offset", 0, from(0)), c.body.whole("limit", linesDefault, from(1))
	data, err := f.storedFile(c, p)
	if err != nil {
		return err
	}
	text, err := f.textOf(c.ctx(), p, data)
	if err != nil {
		return refuse(http.StatusBadRequest, err.Error())
	}
	return c.ok(map[string]string{"content": window(text, offset, limit)})
}

func (f *Face) storedReadBytes(c *call) error {
	data, err := f.storedFile(c, c.body.required("path", nil))
	if err != nil {
		return err
	}
	return c.ok(map[string]string{"content_b64": base64.StdEncoding.EncodeToString(data)})
}
