// Package builder has the images of runtimes built, one build for each digest however
// many ask, and tells how far each is. It knows recipes and an engine that makes images,
// and neither sandboxes nor catalogues: who asks says what is to be built, how often it
// is tried, and which images are to be kept.
package builder

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"sandboxd"
	"sandboxd/internal/catalogue/recipe"
)

// Config says with what is built. Images and Dir are required.
type Config struct {
	Images sandboxd.ImageBuilds
	Dir    string // of the logs that are kept, one for each digest; made when needed
	// TimeLimit bounds one try. 0 means DefaultTimeLimit.
	TimeLimit time.Duration
	// Pause is between a try and the next, and doubles. 0 means 2 s.
	Pause time.Duration
	Log   *slog.Logger
}

// DefaultTimeLimit is enough for the largest runtime over a slow line.
const DefaultTimeLimit = 30 * time.Minute

// The most tries, by who asks.
const (
	TriesAhead  = 4 // before a deploy
	TriesAtOnce = 3 // when a server starts
	TriesToOpen = 2 // while somebody waits
)

// Builder builds images. Methods are safe for concurrent use.
type Builder struct {
	cfg  Config
	slot chan struct{} // one build at a time: two share the machine's cores and its line

	ctx    context.Context // of builds; ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	flights map[string]*flight              // by digest
	last    map[string]sandboxd.Preparation // by digest: of those that are over
}

// flight is one build that goes on, with those who wait for it.
type flight struct {
	spec   recipe.Spec
	cancel context.CancelCauseFunc
	done   chan struct{} // closed after err is set

	// Under Builder.mu.
	waiting int // 0: it was given up
	tries   int // the most that anybody asked for
	now     sandboxd.Preparation
	err     error
}

// New makes a builder.
func New(cfg Config) *Builder {
	cfg.TimeLimit = cmp.Or(cfg.TimeLimit, DefaultTimeLimit)
	cfg.Pause = cmp.Or(cfg.Pause, 2*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Builder{cfg: cfg, slot: make(chan struct{}, 1), flights: map[string]*flight{}, last: map[string]sandboxd.Preparation{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Close gives up what is being built and waits until it has ended.
func (b *Builder) Close() error {
	b.cancel()
	b.work.Wait()
	return nil
}

// Ready says whether the image of a recipe is there. One that another server built by the
// same recipe is, and gets the name that this one's recipe has.
func (b *Builder) Ready(ctx context.Context, spec recipe.Spec) (bool, error) {
	held, err := b.cfg.Images.FindImage(ctx, spec.Tag)
	if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
		return false, err
	}
	// Somebody else's image of the name is not the one that is meant.
	ready := err == nil && (!spec.Builds() || held.Labels[recipe.LabelDigest] == spec.Digest)
	if !ready && spec.Builds() {
		if ready, err = b.adopt(ctx, spec); err != nil {
			return false, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch last := b.last[spec.Digest]; {
	case ready && last.State != sandboxd.PreparationPrepared:
		b.last[spec.Digest] = sandboxd.Preparation{State: sandboxd.PreparationPrepared}
	case !ready && last.State == sandboxd.PreparationPrepared:
		delete(b.last, spec.Digest) // it was taken away
	}
	return ready, nil
}

// adopt names an image of the recipe's digest as the recipe does. While it is named, its
// last other name may go and it with that: then there is none.
func (b *Builder) adopt(ctx context.Context, spec recipe.Spec) (bool, error) {
	held, err := b.cfg.Images.ListImages(ctx, recipe.LabelDigest)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(held, func(h sandboxd.HeldImage) bool { return h.Labels[recipe.LabelDigest] == spec.Digest })
	if i < 0 {
		return false, nil
	}
	err = b.cfg.Images.TagImage(ctx, held[i].ID, spec.Tag)
	if sandboxd.ClassOf(err) == sandboxd.ClassNotFound {
		return false, nil
	}
	return err == nil, err
}

// Ensure returns when the image of a recipe is there. It is built, or pulled where the
// recipe builds nothing, unless it is there; whoever asks for the same digest meanwhile
// waits for the same build, which is tried as often as the most patient of them wants.
// A caller leaves by its context; a build that nobody waits for is given up.
// made says that this call waited for a build. The error names the step that failed and
// its last lines.
func (b *Builder) Ensure(ctx context.Context, spec recipe.Spec, tries int) (made bool, err error) {
	if ready, err := b.Ready(ctx, spec); ready || err != nil {
		return false, err
	}
	f, err := b.join(spec, max(tries, 1))
	if err != nil {
		return false, err
	}
	select {
	case <-f.done:
		b.mu.Lock()
		defer b.mu.Unlock()
		return true, f.err
	case <-ctx.Done():
		b.leave(f)
		return true, context.Cause(ctx)
	}
}

// join waits in the flight of a digest, and begins it if there is none.
func (b *Builder) join(spec recipe.Spec, tries int) (*flight, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return nil, sandboxd.Errorf(sandboxd.ClassUnavailable, "the server is ending and builds nothing")
	}
	if f := b.flights[spec.Digest]; f != nil {
		f.waiting++
		f.tries = max(f.tries, tries)
		return f, nil
	}
	ctx, cancel := context.WithCancelCause(b.ctx)
	f := &flight{spec: spec, cancel: cancel, done: make(chan struct{}), waiting: 1, tries: tries,
		now: sandboxd.Preparation{State: sandboxd.PreparationWaiting, Doing: "waiting for another build", Since: time.Now().UTC()}}
	b.flights[spec.Digest] = f
	b.work.Go(func() { b.fly(ctx, f) })
	return f, nil
}

var errNobodyWaits = sandboxd.Errorf(sandboxd.ClassUnavailable, "the build was given up: nobody waits for it")

func (b *Builder) leave(f *flight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.waiting--; f.waiting == 0 {
		f.cancel(errNobodyWaits)
		// Who comes now waits for a flight of its own, behind the end of this one.
		if b.flights[f.spec.Digest] == f {
			delete(b.flights, f.spec.Digest)
		}
	}
}

// fly is the whole life of a flight.
func (b *Builder) fly(ctx context.Context, f *flight) {
	defer f.cancel(nil)
	err := b.build(ctx, f)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f.err = err
	over := sandboxd.Preparation{State: sandboxd.PreparationPrepared, Try: f.now.Try, Step: f.now.Step, Steps: f.now.Steps, Since: f.now.Since}
	switch {
	case ctx.Err() != nil:
		over = sandboxd.Preparation{State: sandboxd.PreparationAbsent}
	case err != nil:
		over = f.now
		over.State, over.Error = sandboxd.PreparationFailed, shown(err)
	}
	if b.flights[f.spec.Digest] == f {
		delete(b.flights, f.spec.Digest)
	}
	if b.flights[f.spec.Digest] == nil {
		b.last[f.spec.Digest] = over
	}
	close(f.done)
}

// build tries until the image is there, or as often as is wanted.
func (b *Builder) build(ctx context.Context, f *flight) error {
	select {
	case b.slot <- struct{}{}:
		defer func() { <-b.slot }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for try, pause := 1, b.cfg.Pause; ; try, pause = try+1, 2*pause {
		began := time.Now()
		b.show(f, func(p *sandboxd.Preparation) {
			*p = sandboxd.Preparation{State: sandboxd.PreparationWorking, Try: try, Doing: "looking for " + f.spec.Base, Error: p.Error, Since: p.Since}
		})
		err := b.try(ctx, f, try)
		took := time.Since(began).Round(time.Millisecond)
		if err == nil {
			b.cfg.Log.Info("an image is there", "image", f.spec.Tag, "took", took, "try", try)
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		wanted := 0
		b.show(f, func(p *sandboxd.Preparation) {
			p.State, p.Error, wanted = sandboxd.PreparationWaiting, shown(err), f.tries
		})
		b.cfg.Log.Warn("an image could not be made", "image", f.spec.Tag, "took", took, "try", try, "of", wanted, "err", err)
		// What a recipe gets wrong it gets wrong again.
		if try >= wanted || sandboxd.ClassOf(err) == sandboxd.ClassInvalid {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// show changes what is told of a flight.
func (b *Builder) show(f *flight, change func(*sandboxd.Preparation)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&f.now)
}

// try makes the image once.
func (b *Builder) try(ctx context.Context, f *flight, number int) (err error) {
	// While this one waited for its turn, the image may have come some other way.
	if ready, err := b.Ready(ctx, f.spec); ready || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.TimeLimit,
		sandboxd.Errorf(sandboxd.ClassUnavailable, "it took longer than %s", b.cfg.TimeLimit))
	defer cancel()
	if err := os.MkdirAll(b.cfg.Dir, 0o700); err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "no log of the build can be kept")
	}
	log, err := openLog(b.logFile(f.spec), number)
	if err != nil {
		return sandboxd.Wrap(sandboxd.ClassUnavailable, err, "no log of the build can be kept")
	}
	o := &output{show: func(change func(*sandboxd.Preparation)) { b.show(f, change) }, log: log, todo: instructions(marked(f.spec))}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		err = o.explain(err)
		log.close(err)
	}()
	if _, err := b.cfg.Images.FindImage(ctx, f.spec.Base); err != nil {
		if sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
			return err
		}
		o.doing("pulling " + f.spec.Base)
		if err := b.cfg.Images.PullImage(ctx, f.spec.Base, o.line); err != nil {
			return err
		}
	}
	if !f.spec.Builds() {
		return nil
	}
	archive, err := pack(f.spec)
	if err != nil {
		return err
	}
	o.doing("sending the recipe")
	return b.cfg.Images.BuildImage(ctx, sandboxd.ImageBuild{Context: archive, Tag: f.spec.Tag, Labels: f.spec.Labels, Said: o.line})
}

// Preparation says how far the image of a recipe is, as far as this builder knows: that
// an image has come or gone some other way it learns when somebody wants it.
func (b *Builder) Preparation(spec recipe.Spec) sandboxd.Preparation {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.flights[spec.Digest]; f != nil {
		return f.now
	}
	if over, ok := b.last[spec.Digest]; ok {
		return over
	}
	return sandboxd.Preparation{State: sandboxd.PreparationAbsent}
}
