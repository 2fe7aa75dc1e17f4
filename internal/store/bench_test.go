package store

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/store/storetest"
)

// measured runs fn for each iteration and reports its median and 99th percentile.
func measured(b *testing.B, fn func(i int) error) {
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		if err := fn(i); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

// Benchmark is the store of a host with 1,000 sandboxes.
func Benchmark(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "host.db"))
	defer s.Close()
	var rec sandboxd.SandboxRecord
	for i := range 1000 {
		var err error
		if rec, _, err = s.Create(b.Context(), storetest.NewRecord(fmt.Sprint("k", i)), pool); err != nil {
			b.Fatal(err)
		}
	}
	ctx := b.Context()
	b.Run("Create", func(b *testing.B) {
		measured(b, func(int) error {
			rec := storetest.NewRecord(sandboxd.NewID())
			_, _, err := s.Create(ctx, rec, pool)
			return err
		})
	})
	b.Run("Update", func(b *testing.B) {
		measured(b, func(i int) error {
			_, err := s.Update(ctx, rec.ID, func(r *sandboxd.SandboxRecord) error { r.Generation = int64(i); return nil })
			return err
		})
	})
	b.Run("Get", func(b *testing.B) {
		measured(b, func(int) error { _, err := s.Get(ctx, rec.ID); return err })
	})
	b.Run("Command", func(b *testing.B) { // both halves of what each command costs
		code := 0
		measured(b, func(int) error {
			id := sandboxd.NewID()
			if _, _, err := s.CreateCommand(ctx, storetest.NewCommand(rec.ID, id)); err != nil {
				return err
			}
			_, err := s.EndCommand(ctx, rec.ID, id, 10, sandboxd.Ending{Cause: sandboxd.CauseExit, ExitCode: &code, At: time.Now()})
			return err
		})
	})
	b.Run("List", func(b *testing.B) {
		measured(b, func(int) error { _, err := s.List(ctx); return err })
	})
}
