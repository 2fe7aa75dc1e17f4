package host

import (
	"context"
	"errors"
	"io"

	"sandboxd"
	"sandboxd/internal/image"
	"sandboxd/internal/workspace/beneath"
)

// blockSize is that of most file systems: what an entry takes at least.
const blockSize = 4096

// seedOf is who makes the home of a sandbox that has none yet.
func (b *box) seedOf(rec sandboxd.SandboxRecord) sandboxd.Seed {
	if b.h.root.HasHome(rec.Key) {
		return nil
	}
	return &homeSeed{b, rec.Limits.HomeBytes}
}

// homeSeed makes the home of one sandbox.
type homeSeed struct {
	b    *box
	most int64
}

// SeedHome implements sandboxd.Seed. What does not fit into a home makes none.
func (s *homeSeed) SeedHome(ctx context.Context, archive io.Reader) error {
	var fill func(beneath.Dir) error
	if archive != nil {
		fill = func(home beneath.Dir) error {
			_, _, err := image.Unpack(ctx, home, archive, sandboxd.TarLimits{MaxBytes: s.most, MaxEntries: s.most / blockSize}, s.b.uid)
			return explainSeed(err)
		}
	}
	err := s.b.h.root.MakeHome(ctx, s.b.key, s.b.id, s.b.uid, fill)
	if err == nil {
		s.b.mu.Lock()
		s.b.home = homeLook{at: s.b.h.uptime()} // as good as seen: it fits
		s.b.mu.Unlock()
	}
	return err
}

// explainSeed blames the image for what it has at HomeDir.
func explainSeed(err error) error {
	var e *sandboxd.Error
	if !errors.As(err, &e) || e.Field != "archive" {
		return err
	}
	return &sandboxd.Error{Class: e.Class, Field: "image", Err: err, Message: "what it has in " + sandboxd.HomeDir + " cannot be copied into a home: " + e.Message,
		Hint: "name an image that has less there, or raise limits.home_bytes"}
}
