package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"sandboxd"
)

// search measures commands in one sandbox while the files of another are searched,
// by one caller and by four. It waits for no line in the files, so that each
// search reads all of them.
func (b *bench) search() (row, error) {
	ctx := context.Background()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for i := range 10000 {
		body := strings.Repeat(fmt.Sprintf("a line of text, number %d\n", i), 80)
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i%100, i), Mode: 0o644, Size: int64(len(body))}); err != nil {
			return row{}, err
		}
		if _, err := w.Write([]byte(body)); err != nil {
			return row{}, err
		}
	}
	if err := w.Close(); err != nil {
		return row{}, err
	}
	searched, err := b.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, searched.ID)
	files, err := b.c.Files(ctx, searched.ID)
	if err != nil {
		return row{}, err
	}
	if _, err := files.TarIn(ctx, "", &archive, sandboxd.TarLimits{}); err != nil {
		return row{}, err
	}
	quiet, err := b.open(ctx)
	if err != nil {
		return row{}, err
	}
	defer b.c.Delete(ctx, quiet.ID)
	caller, err := b.wire()
	if err != nil {
		return row{}, err
	}
	defer caller.close()
	commands := func() ([]float64, error) { return times(200, func() error { return caller.true(quiet.ID) }) }
	samples, worst, text := map[string][]float64{}, 0.0, ""
	for _, searchers := range []int{1, 4} {
		var took []float64
		beside := func() ([]float64, error) {
			stop, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			var mu sync.Mutex
			var failed error
			for range searchers {
				wg.Go(func() {
					for stop.Err() == nil {
						began := time.Now()
						found, err := files.Grep(stop, "", sandboxd.GrepOptions{Pattern: `not (here|there)\d`})
						mu.Lock()
						switch {
						case err == nil && found.Files == 10000:
							took = append(took, millis(time.Since(began)))
						case stop.Err() == nil:
							failed = fmt.Errorf("a search: %+v, %w", found, err)
						}
						mu.Unlock()
					}
				})
			}
			s, err := commands()
			cancel()
			wg.Wait()
			if err == nil {
				err = failed
			}
			return s, err
		}
		base, prod, err := b.abba(commands, beside)
		if err != nil {
			return row{}, err
		}
		r := ratios(base, prod, 0.99)
		worst = max(worst, percentile(r, 0.5))
		samples[fmt.Sprintf("idle_%d", searchers)], samples[fmt.Sprintf("beside_%d", searchers)] = flat(base), flat(prod)
		samples[fmt.Sprintf("search_%d", searchers)] = took
		text += fmt.Sprintf("beside %d: p50 %s, p99 %s, a search %.0f ms; ", searchers, spread(ratios(base, prod, 0.5)), spread(r), percentile(took, 0.5))
	}
	return row{Goal: "exec p99 2x while 10,000 files are searched", Result: strings.TrimSuffix(text, "; "), Met: worst <= 2, Samples: samples}, nil
}
