// Package runtimes is what a host offers sandboxes of: the entries of its catalogue, each
// with the one recipe by which its image is built, whoever asks for it and whenever. It
// implements sandboxd.Runtimes. It builds nothing itself and knows no sandbox.
package runtimes

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sandboxd"
	"sandboxd/internal/builder"
	"sandboxd/internal/catalogue"
	"sandboxd/internal/catalogue/recipe"
)

// Config is what a set of runtimes is made of.
type Config struct {
	Entries []catalogue.Entry // one at least, valid
	Options recipe.Options
	// Builder makes their images; nil where no driver runs any.
	Builder *builder.Builder
	Log     *slog.Logger
}

// Set implements sandboxd.Runtimes.
type Set struct {
	builder *builder.Builder
	log     *slog.Logger
	owner   string
	names   []string
	entries []sandboxd.RuntimeEntry
	specs   map[string]recipe.Spec

	ctx    context.Context // of what is done behind callers' backs; ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu   sync.Mutex
	used func(context.Context) ([]string, error)
}

var _ sandboxd.Runtimes = (*Set)(nil)

// New resolves every entry. ClassInvalid where one of them, or the options, cannot be
// built.
func New(cfg Config) (*Set, error) {
	if len(cfg.Entries) == 0 {
		return nil, sandboxd.Errorf(sandboxd.ClassInvalid, "the catalogue has no entry")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Set{builder: cfg.Builder, log: cfg.Log, owner: cfg.Options.Owner, specs: map[string]recipe.Spec{}}
	for _, e := range cfg.Entries {
		spec, err := recipe.For(e, cfg.Options)
		if err != nil {
			return nil, fmt.Errorf("runtime %s: %w", e.Alias, err)
		}
		entry := sandboxd.RuntimeEntry{
			Name: e.Alias, Description: e.Description, Builds: spec.Builds(), Installed: installed(e, spec), Image: spec.Tag,
			Limits: e.Ceilings.Limits(), OCIRuntime: e.Ceilings.OCIRuntime, NeedsNetwork: e.NeedsNetwork, Root: string(e.Root),
			Env: e.Env, Tools: e.Tools,
		}
		if spec.Builds() {
			entry.UID = cfg.Options.UID
			if entry.UID == 0 {
				entry.UID = recipe.DefaultUID
			}
		}
		s.names = append(s.names, e.Alias)
		s.entries = append(s.entries, entry)
		s.specs[e.Alias] = spec
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// installed says in a few words what an entry has.
func installed(e catalogue.Entry, spec recipe.Spec) string {
	n := len(e.Packages) + len(e.NPMPackages) + len(e.APTPackages)
	switch {
	case !spec.Builds():
		return spec.Tag
	case n == 1:
		return spec.Base + " + 1 package"
	}
	return fmt.Sprintf("%s + %d packages", spec.Base, n)
}

// Close ends what goes on behind callers' backs. The builder is its owner's to close.
func (s *Set) Close() error {
	s.cancel()
	s.work.Wait()
	return nil
}

// Entries implements sandboxd.Runtimes.
func (s *Set) Entries() []sandboxd.RuntimeEntry { return s.entries }

// find answers the recipe of a name.
func (s *Set) find(name string) (recipe.Spec, error) {
	spec, ok := s.specs[name]
	if !ok {
		return spec, sandboxd.Errorf(sandboxd.ClassNotFound, "there is no runtime %.40q", name).
			WithHint("known are %s", strings.Join(s.names, ", "))
	}
	if s.builder == nil {
		return spec, sandboxd.Errorf(sandboxd.ClassUnsupported, "no driver of this host builds images").
			WithHint("sandboxd doctor says what the docker driver lacks")
	}
	return spec, nil
}

// Ready implements sandboxd.Runtimes.
func (s *Set) Ready(ctx context.Context, name string) (bool, error) {
	spec, err := s.find(name)
	if err != nil {
		return false, err
	}
	return s.builder.Ready(ctx, spec)
}

// Prepare implements sandboxd.Runtimes.
func (s *Set) Prepare(ctx context.Context, name string) error {
	return s.prepare(ctx, name, builder.TriesToOpen)
}

// prepare is the one way in which the image of a runtime is made.
func (s *Set) prepare(ctx context.Context, name string, tries int) error {
	spec, err := s.find(name)
	if err != nil {
		return err
	}
	made, err := s.builder.Ensure(ctx, spec, tries)
	if made && err == nil {
		s.pruneSoon()
	}
	return err
}

// Preparation implements sandboxd.Runtimes.
func (s *Set) Preparation(name string) sandboxd.Preparation {
	spec, err := s.find(name)
	if err != nil {
		return sandboxd.Preparation{State: sandboxd.PreparationAbsent}
	}
	return s.builder.Preparation(spec)
}

// Prewarm has the images of all entries made behind the caller's back, in their order.
// What fails is named in the log and made when somebody opens a sandbox of it. Where no
// driver builds images there is nothing to make.
func (s *Set) Prewarm() {
	if s.builder == nil {
		return
	}
	s.work.Go(func() {
		for _, name := range s.names {
			if err := s.prepare(s.ctx, name, builder.TriesAtOnce); s.ctx.Err() != nil {
				return
			} else if err != nil {
				s.log.Error("a runtime is not prepared; it is built when it is needed", "runtime", name, "err", err)
			} else {
				s.log.Info("a runtime is prepared", "runtime", name)
			}
		}
		s.pruneSoon()
	})
}

// PrepareAll has the images of these entries made, of all for none, before they are
// needed. told hears of each entry how it ended. The error names those that failed.
func (s *Set) PrepareAll(ctx context.Context, names []string, told func(name string, err error)) error {
	for _, name := range names {
		if _, err := s.find(name); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		names = s.names
	}
	var failed []string
	for _, name := range names {
		err := s.prepare(ctx, name, builder.TriesAhead)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if told(name, err); err != nil {
			failed = append(failed, name)
		}
	}
	if len(failed) > 0 {
		return sandboxd.Errorf(sandboxd.ClassUnavailable, "not prepared: %s", strings.Join(failed, ", ")).
			WithHint("what failed is built when a sandbox of it is opened")
	}
	return nil
}

// PruneBeside lets images of this catalogue's runtimes be removed that no entry has any
// more, except those that used answers. Before this is called none is.
func (s *Set) PruneBeside(used func(context.Context) ([]string, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = used
}

// pruneSoon removes what is old, without keeping anybody waiting.
func (s *Set) pruneSoon() {
	s.mu.Lock()
	used := s.used
	s.mu.Unlock()
	if used == nil || s.ctx.Err() != nil {
		return
	}
	s.work.Go(func() {
		keep, err := used(s.ctx)
		if err == nil {
			for _, spec := range s.specs {
				keep = append(keep, spec.Tag)
			}
			_, err = s.builder.Prune(s.ctx, s.owner, s.names, keep)
		}
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("old images of runtimes were not removed", "err", err)
		}
	})
}

// searchPath is where a sandbox without an image finds the machine's commands.
var searchPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// Missing implements sandboxd.Runtimes.
func (s *Set) Missing(name string) []string {
	i := slices.Index(s.names, name)
	if i < 0 {
		return nil
	}
	return lacking(s.entries[i].Tools, searchPath)
}

func lacking(tools, path []string) (missing []string) {
	for _, tool := range tools {
		if !slices.ContainsFunc(path, func(dir string) bool {
			info, err := os.Stat(filepath.Join(dir, tool))
			return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
		}) {
			missing = append(missing, tool)
		}
	}
	return missing
}
