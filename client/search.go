package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sandboxd"
)

// bounds sets the parameters that are not zero; the server has the defaults.
func bounds(query url.Values, set map[string]int64) {
	for name, n := range set {
		if n != 0 {
			query.Set(name, strconv.FormatInt(n, 10))
		}
	}
}

func switches(query url.Values, set map[string]bool) {
	for name, on := range set {
		if on {
			query.Set(name, "true")
		}
	}
}

// wholeSeconds rounds up, so that a bound is not taken for none.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Glob implements sandboxd.Files.
func (f *files) Glob(ctx context.Context, path string, opts sandboxd.GlobOptions) (sandboxd.Listing, error) {
	in := f.call(http.MethodGet, path, "glob")
	in.query.Set("pattern", opts.Pattern)
	bounds(in.query, map[string]int64{"max": int64(opts.MaxEntries), "time_s": wholeSeconds(opts.MaxTime)})
	switches(in.query, map[string]bool{"skip_hidden": opts.SkipHidden})
	return f.listing(ctx, in)
}

// Grep implements sandboxd.Files.
func (f *files) Grep(ctx context.Context, path string, opts sandboxd.GrepOptions) (sandboxd.GrepResult, error) {
	in := f.call(http.MethodGet, path, "grep")
	in.query.Set("pattern", opts.Pattern)
	if opts.Glob != "" {
		in.query.Set("glob", opts.Glob)
	}
	bounds(in.query, map[string]int64{"before": int64(opts.Before), "after": int64(opts.After), "max": int64(opts.MaxMatches),
		"max_bytes": opts.MaxBytes, "time_s": wholeSeconds(opts.MaxTime)})
	switches(in.query, map[string]bool{"literal": opts.Literal, "ignore_case": opts.IgnoreCase, "skip_hidden": opts.SkipHidden})
	var out struct {
		Matches    []sandboxd.MatchEntry `json:"matches"`
		Truncated  bool                  `json:"truncated"`
		Incomplete bool                  `json:"incomplete"`
		Files      int64                 `json:"files"`
		Binary     int64                 `json:"binary"`
		Bytes      int64                 `json:"bytes"`
	}
	_, err := f.c.ask(ctx, &out, in)
	found := sandboxd.GrepResult{Matches: make([]sandboxd.Match, 0, len(out.Matches)), Truncated: out.Truncated, Incomplete: out.Incomplete,
		Files: out.Files, Binary: out.Binary, Bytes: out.Bytes}
	for _, m := range out.Matches {
		found.Matches = append(found.Matches, m.Match())
	}
	return found, err
}
