package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"sandboxd"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/builder"
	"sandboxd/internal/catalogue"
	"sandboxd/internal/catalogue/recipe"
	"sandboxd/internal/cli"
	"sandboxd/internal/driver/docker"
	"sandboxd/internal/runtimes"
)

// loadCatalogue answers the entries that the settings name, those for apps too; nil for
// none.
func loadCatalogue(o cli.CatalogueOptions) ([]catalogue.Entry, error) {
	switch {
	case o.Catalogue != "" && o.Runtimes != "":
		return nil, sandboxd.Invalid("--catalogue", "--runtimes lists runtimes, too").WithHint("set one of the two")
	case o.Runtimes != "":
		return catalogue.Load([]byte(o.Runtimes))
	case o.Catalogue == "shipped":
		return catalogue.Shipped(), nil
	case o.Catalogue != "":
		text, err := os.ReadFile(o.Catalogue)
		if err != nil {
			return nil, sandboxd.Invalid("--catalogue", "%v", err)
		}
		return catalogue.Load(text)
	}
	return nil, nil
}

// runtimeConfig is what the settings say of how runtimes are built. A server and
// `sandboxd prepare` mean the same image by it.
func runtimeConfig(o cli.RuntimeOptions, bundle []byte, data string) (runtimes.Config, error) {
	owner, err := docker.DataID(data)
	if err != nil {
		return runtimes.Config{}, err
	}
	entries, err := loadCatalogue(o.CatalogueOptions)
	return runtimes.Config{Entries: catalogue.Offered(entries, false), Options: recipe.Options{BaseImage: o.BaseImage, CABundle: bundle, Owner: owner}}, err
}

// openRuntimes makes the catalogue of a server, nil where it has none, with a builder
// where a driver runs images. prewarm has them built.
func (s *server) openRuntimes(dir *datadir.Dir, drivers []sandboxd.Driver) (*runtimes.Set, error) {
	bundle, err := buildBundle(s.o.CABundle)
	if err != nil {
		return nil, err
	}
	cfg, err := runtimeConfig(s.o.RuntimeOptions, bundle, dir.Path)
	if err != nil || len(cfg.Entries) == 0 {
		return nil, err
	}
	cfg.Log = s.log
	for _, d := range drivers {
		if b, ok := d.(sandboxd.ImageBuilder); ok {
			cfg.Builder = builder.New(builder.Config{Images: b.ImageBuilds(), Dir: runtimeLogs(dir.Path), TimeLimit: s.o.BuildLimit, Log: s.log})
			s.opened.add("builder", func(context.Context) error { return cfg.Builder.Close() })
			break
		}
	}
	set, err := runtimes.New(cfg)
	if err != nil {
		return nil, err
	}
	s.opened.add("runtimes", func(context.Context) error { return set.Close() })
	return set, nil
}

// prewarm has the images of all runtimes made, behind the server's back.
func (s *server) prewarm(set *runtimes.Set) {
	if set == nil {
		return
	}
	set.PruneBeside(s.host.ImagesInUse)
	if s.o.Prewarm {
		set.Prewarm()
	}
}

// runtimeLogs is where the logs of builds are kept.
func runtimeLogs(data string) string { return filepath.Join(data, "runtimes") }

// buildBundle is what builds trust, where the operator says that it is more than their
// base does.
func buildBundle(operators string) ([]byte, error) {
	if operators == "" {
		return nil, nil
	}
	return bundleText(operators)
}

// prepare is `sandboxd prepare`: it builds before a server needs it, beside one that
// may run, and removes nothing.
func prepare(ctx context.Context, p Process, o cli.PrepareOptions) error {
	if err := checkEnviron(p.Environ); err != nil {
		return err
	}
	data := cmp.Or(o.Data, datadir.Default(os.Geteuid(), p.Getenv))
	bundle, err := buildBundle(o.CABundle)
	if err != nil {
		return err
	}
	cfg, err := runtimeConfig(o.RuntimeOptions, bundle, data)
	if err != nil {
		return err
	}
	if len(cfg.Entries) == 0 {
		return sandboxd.Invalid("--catalogue", "no runtimes are listed").WithHint("name a file, or 'shipped'; the server needs the same setting")
	}
	images, letGo, err := docker.NewImageBuilds(docker.Config{Host: p.Getenv("DOCKER_HOST")})
	if err != nil {
		return err
	}
	defer letGo()
	cfg.Builder = builder.New(builder.Config{Images: images, Dir: runtimeLogs(data), TimeLimit: o.BuildLimit})
	defer cfg.Builder.Close()
	set, err := runtimes.New(cfg)
	if err != nil {
		return err
	}
	defer set.Close()
	return prepareAll(ctx, set, o.Runtime, p.Stdout)
}

// prepareAll prepares and prints how far it is.
func prepareAll(ctx context.Context, set *runtimes.Set, names []string, w io.Writer) error {
	told := make(chan func(), 1)
	done := make(chan error, 1)
	go func() {
		done <- set.PrepareAll(ctx, names, func(name string, err error) {
			told <- func() {
				if err != nil {
					fmt.Fprintf(w, "%s: failed: %s\n", name, publicText(err))
				} else {
					fmt.Fprintf(w, "%s: prepared\n", name)
				}
			}
		})
	}()
	if len(names) == 0 {
		for _, e := range set.Entries() {
			names = append(names, e.Name)
		}
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	last := map[string]string{}
	for {
		select {
		case print := <-told:
			print()
			continue
		default:
		}
		select {
		case print := <-told:
			print()
		case err := <-done:
			return err
		case <-tick.C:
			for _, name := range names {
				if line := progressLine(set.Preparation(name)); line != "" && line != last[name] {
					last[name] = line
					fmt.Fprintf(w, "%s: %s\n", name, line)
				}
			}
		}
	}
}

// publicText is an error without its cause, which it has told.
func publicText(err error) string {
	var e *sandboxd.Error
	if errors.As(err, &e) {
		return e.Public()
	}
	return err.Error()
}

// progressLine is what is worth a line of a log.
func progressLine(p sandboxd.Preparation) string {
	switch {
	case p.State == sandboxd.PreparationWaiting && p.Error != "":
		return fmt.Sprintf("try %d failed: %s", p.Try, p.Error)
	case p.State != sandboxd.PreparationWorking:
		return ""
	case p.Steps > 0:
		return fmt.Sprintf("step %d of %d: %s", p.Step, p.Steps, p.Doing)
	}
	return p.Doing
}
