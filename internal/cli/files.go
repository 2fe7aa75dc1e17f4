package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"sandboxd"
)

// place is SANDBOX:PATH on the command line, or a local path when sandbox is
// empty. A local name with a colon is written as ./a:b.
type place struct{ sandbox, path string }

func placeOf(s string) place {
	ref, rest, ok := strings.Cut(s, ":")
	if !ok || !sandboxd.ValidKey(ref) && !sandboxd.ValidID(ref) || ref == "." || ref == ".." {
		return place{path: s}
	}
	return place{ref, rest}
}

type lsCmd struct {
	Server    server `embed:""`
	Recursive bool   `short:"R" help:"Everything below, at most 6 levels and 2000 entries."`
	JSON      bool   `name:"json" help:"Answer as JSON."`
	Place     string `arg:"" name:"sandbox:path" help:"Id or key, a colon, and a path in the workspace."`
}

func (c *lsCmd) Run(ctx context.Context, p Process) error {
	at := placeOf(c.Place)
	if at.sandbox == "" {
		at = place{sandbox: c.Place}
	}
	host, sb, err := c.Server.find(ctx, p, at.sandbox)
	if err != nil {
		return err
	}
	files, err := host.Files(ctx, sb.ID)
	if err != nil {
		return err
	}
	opts := sandboxd.ListOptions{Depth: 1}
	if c.Recursive {
		opts = sandboxd.ListOptions{Depth: sandboxd.TreeDepth, MaxEntries: sandboxd.TreeEntries}
	}
	listing, err := files.List(ctx, at.path, opts)
	if err != nil {
		return err
	}
	if listing.Truncated {
		complain(p.Stderr, "the list is cut short: there is more", "list a directory below it")
	}
	if listing.Incomplete {
		complain(p.Stderr, "the list is incomplete: something could not be read", "")
	}
	if c.JSON {
		entries := []sandboxd.Entry{}
		for _, info := range listing.Entries {
			entries = append(entries, sandboxd.EntryOf(info))
		}
		return writeJSON(p.Stdout, map[string]any{"entries": entries, "truncated": listing.Truncated, "incomplete": listing.Incomplete})
	}
	var rows [][]string
	for _, info := range listing.Entries {
		name := shown(info.Path)
		switch info.Type {
		case sandboxd.TypeDir:
			name += "/"
		case sandboxd.TypeLink:
			name += " -> " + shown(info.Target)
		}
		rows = append(rows, []string{info.Mode.Perm().String()[1:], fmt.Sprint(info.Size), info.ModTime.UTC().Format("2006-01-02 15:04:05"), name})
	}
	return table(p.Stdout, rows)
}

type cpCmd struct {
	Server server `embed:""`
	From   string `arg:"" help:"Local path, SANDBOX:PATH, or - for stdin."`
	To     string `arg:"" help:"Local path, SANDBOX:PATH, or - for stdout."`
}

func (c *cpCmd) Run(ctx context.Context, p Process) error {
	from, to := placeOf(c.From), placeOf(c.To)
	if (from.sandbox == "") == (to.sandbox == "") {
		return usageError{"exactly one side of cp names a sandbox", "as: sandboxd cp FILE SANDBOX:PATH, or the other way round"}
	}
	ref := from.sandbox + to.sandbox
	host, sb, err := c.Server.find(ctx, p, ref)
	if err != nil {
		return err
	}
	files, err := host.Files(ctx, sb.ID)
	if err != nil {
		return err
	}
	if from.sandbox == "" {
		return copyIn(ctx, p, files, from.path, to.path)
	}
	return copyOut(ctx, p, files, from.path, to.path)
}

// copyIn works as cp -r: into a directory that is there, else to that name.
func copyIn(ctx context.Context, p Process, files sandboxd.Files, from, to string) error {
	if from == "-" {
		m := measure(p, "copying", -1)
		_, err := files.Write(ctx, to, m.reader(p.Stdin), sandboxd.WriteOptions{Size: -1})
		m.end(err)
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return localError(err)
	}
	remote, err := files.Stat(ctx, to)
	if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		return err
	}
	if err == nil && remote.Type == sandboxd.TypeDir || strings.HasSuffix(to, "/") {
		abs, err := filepath.Abs(from)
		if err != nil {
			return localError(err)
		}
		to = path.Join(to, filepath.Base(abs))
	}
	if info.IsDir() {
		if err := files.Mkdir(ctx, to); err != nil {
			return err
		}
		return send(ctx, p, files, from, to)
	}
	f, err := os.Open(from)
	if err != nil {
		return localError(err)
	}
	defer f.Close()
	expect := int64(-1)
	if info.Mode().IsRegular() {
		expect = info.Size()
	}
	m := measure(p, "copying "+shown(from), expect)
	_, err = files.Write(ctx, to, m.reader(f), sandboxd.WriteOptions{Size: expect, Executable: info.Mode()&0o100 != 0})
	m.end(err)
	return err
}

func copyOut(ctx context.Context, p Process, files sandboxd.Files, from, to string) error {
	info, err := files.Stat(ctx, from)
	if err != nil {
		return err
	}
	if to == "-" {
		return readTo(ctx, p, files, from)
	}
	if local, err := os.Stat(to); err == nil && local.IsDir() {
		name := path.Base(path.Clean("/" + from))
		if info.Type != sandboxd.TypeDir || name != "/" {
			if !filepath.IsLocal(name) {
				return sandboxd.Errorf(sandboxd.ClassInvalid, "the copy needs a name: %s has none", shown(from))
			}
			to = filepath.Join(to, name)
		}
	}
	if info.Type == sandboxd.TypeDir {
		return receive(ctx, p, files, from, to)
	}
	parent, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return localError(err)
	}
	defer parent.Close()
	m := measure(p, "copying "+shown(from), info.Size)
	_, err = fetch(ctx, files, from, destination{root: parent, name: filepath.Base(to), mode: info.Mode, meter: m})
	m.end(err)
	return err
}

// readTo prints a file; on a terminal it is the file that says how far it is.
func readTo(ctx context.Context, p Process, files sandboxd.Files, name string) error {
	r, err := files.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	var m *meter
	if f, ok := p.Stdout.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		m = measure(p, "copying "+shown(name), r.Info().Size)
	}
	_, err = io.Copy(p.Stdout, m.reader(r))
	m.end(err)
	return err
}

// localError gives an error of this machine's files a class.
func localError(err error) error {
	class := sandboxd.ClassInvalid
	if os.IsPermission(err) {
		class = sandboxd.ClassForbidden
	}
	return sandboxd.Errorf(class, "%v", err)
}
