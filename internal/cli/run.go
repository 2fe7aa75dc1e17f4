package cli

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"sandboxd"
)

// runCmd is a whole sandbox for one command.
type runCmd struct {
	Server    server    `embed:""`
	Copy      folder    `placeholder:"DIR" help:"Put this folder into the workspace; what the command creates or changes comes back into it."`
	MaxReturn bytesFlag `default:"1G" placeholder:"SIZE" help:"Most bytes that come back, ${default} by default."`
	Keep      bool      `help:"Keep the sandbox and print its id on stderr."`
	openFlags
	commandFlags
}

// folder is a directory that is there, by the name it was given.
type folder string

// UnmarshalText refuses what is no directory.
func (f *folder) UnmarshalText(text []byte) error {
	info, err := os.Stat(string(text))
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", text)
	}
	*f = folder(text)
	return nil
}

// deleteTimeout bounds the clean-up after an interrupted run.
const deleteTimeout = 15 * time.Second

func (c *runCmd) Run(ctx context.Context, p Process) (err error) {
	spec, err := c.spec()
	if err != nil {
		return err
	}
	host, err := c.Server.dial(p)
	if err != nil {
		return err
	}
	req := c.request()
	req.Env, spec.Env = spec.Env, nil
	if err := bringImage(ctx, p, host, req); err != nil {
		return err
	}
	// The command starts it: one that cannot be started is then deleted like any other.
	cold := false
	req.Start = &cold
	sb, _, err := host.Open(ctx, req)
	if err != nil {
		return err
	}
	defer func() {
		if c.Keep {
			fmt.Fprintf(p.Stderr, "kept: %s\n", sb.ID)
			return
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
		defer cancel()
		if derr := host.Delete(clean, sb.ID); derr != nil && err == nil {
			err = derr
		}
	}()
	s := session{host: host, sandbox: sb.ID, spec: spec, stdin: c.Interactive, tty: c.TTY}
	if c.Copy == "" {
		return foreground(ctx, p, s)
	}
	files, err := host.Files(ctx, sb.ID)
	if err != nil {
		return err
	}
	if err := send(ctx, p, files, string(c.Copy), ""); err != nil {
		return err
	}
	before, err := snapshot(ctx, files)
	if err != nil {
		return err
	}
	outcome := foreground(ctx, p, s)
	if !c.Keep {
		// Whatever it left running would go on changing the files.
		if _, err := host.Stop(ctx, sb.ID); err != nil {
			return err
		}
	}
	// What it made comes back also when it failed: that is when one looks.
	if err := c.bringBack(ctx, p, files, before); err != nil {
		return err
	}
	return outcome
}

func snapshot(ctx context.Context, files sandboxd.Files) (map[string]string, error) {
	seen := map[string]string{}
	_, err := files.Walk(ctx, "", func(info sandboxd.FileInfo) error {
		seen[info.Path] = info.ETag
		return nil
	})
	return seen, err
}

// bringBack writes what is new or changed since before into the folder. An ETag
// that moved only nominates a file; bytes that are there already are left alone.
func (c *runCmd) bringBack(ctx context.Context, p Process, files sandboxd.Files, before map[string]string) error {
	root, err := os.OpenRoot(string(c.Copy))
	if err != nil {
		return localError(err)
	}
	defer root.Close()
	var nominated []sandboxd.FileInfo
	incomplete, err := files.Walk(ctx, "", func(info sandboxd.FileInfo) error {
		if etag, ok := before[info.Path]; !ok || etag != info.ETag && info.Type != sandboxd.TypeDir {
			nominated = append(nominated, info)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if incomplete {
		complain(p.Stderr, "some of the workspace could not be read and did not come back", "")
	}
	left := int64(c.MaxReturn)
	for _, info := range nominated {
		if info.Type == sandboxd.TypeFile {
			left -= info.Size
		}
	}
	if left < 0 {
		return sandboxd.Errorf(sandboxd.ClassTooLarge, "the command left more than %s; nothing came back", size(int64(c.MaxReturn))).
			WithHint("raise --max-return, or --keep the sandbox and fetch files with sandboxd cp")
	}
	for _, info := range nominated {
		what, err := returnOne(ctx, files, root, info)
		if err != nil {
			return err
		}
		if what != "" {
			fmt.Fprintf(p.Stderr, "%s: %s\n", what, shown(path.Join(filepath.ToSlash(string(c.Copy)), info.Path)))
		}
	}
	return nil
}

// returnOne says what it did in words for the report; nothing for nothing.
func returnOne(ctx context.Context, files sandboxd.Files, root *os.Root, info sandboxd.FileInfo) (string, error) {
	if !filepath.IsLocal(info.Path) {
		return "refused, it leaves the folder", nil
	}
	to := destination{root: root, name: info.Path, mode: info.Mode}
	_, err := root.Lstat(info.Path)
	verb := "changed"
	if os.IsNotExist(err) {
		verb = "created"
	}
	if dir := path.Dir(info.Path); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return "", localError(err)
		}
	}
	switch info.Type {
	case sandboxd.TypeDir:
		if err := root.MkdirAll(info.Path, 0o755); err != nil {
			return "", localError(err)
		}
		return "", nil
	case sandboxd.TypeFile:
		changed, err := fetch(ctx, files, info.Path, to)
		if err != nil || !changed {
			return "", err
		}
		return fmt.Sprintf("%s, %s", verb, size(info.Size)), nil
	case sandboxd.TypeLink:
		made, err := to.link(info.Target)
		if err != nil {
			return "", err
		}
		if !made {
			return "refused, a link that leaves the folder or replaces a file", nil
		}
		return verb + ", a link", nil
	}
	return "left out, neither file, directory nor link", nil
}
