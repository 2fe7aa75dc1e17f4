package api

import (
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"sandboxd"
)

// grepAnswer is what a search for content answers.
type grepAnswer struct {
	Matches    []sandboxd.MatchEntry `json:"matches" nullable:"false"`
	Truncated  bool                  `json:"truncated" doc:"A bound was met"`
	Incomplete bool                  `json:"incomplete" doc:"Something could not be read"`
	Files      int64                 `json:"files" doc:"Files that were read"`
	Binary     int64                 `json:"binary" doc:"Files left out because they have a NUL byte"`
	Bytes      int64                 `json:"bytes" doc:"Bytes that were read"`
}

// switches reads boolean parameters.
func switches(query url.Values, set map[string]*bool) error {
	for name, to := range set {
		on, err := boolean(query, name)
		if err != nil {
			return err
		}
		*to = on
	}
	return nil
}

// numbers reads parameters that are whole numbers, 0 when they are not there.
func numbers(query url.Values, set map[string]*int64) (err error) {
	for name, to := range set {
		if *to, err = integer(query, name); err != nil {
			return err
		}
	}
	return nil
}

func small(n int64) int { return int(min(n, math.MaxInt32)) }

// seconds is a bound of time; what is longer than any search is the longest.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(sandboxd.SearchTime/time.Second))) * time.Second
}

func (f *face) glob(w http.ResponseWriter, r *http.Request, query url.Values) error {
	files, name, err := f.filesOf(r, query)
	if err != nil {
		return err
	}
	opts := sandboxd.GlobOptions{Pattern: query.Get("pattern")}
	var most, limit int64
	if err := numbers(query, map[string]*int64{"max": &most, "time_s": &limit}); err != nil {
		return err
	}
	if err := switches(query, map[string]*bool{"skip_hidden": &opts.SkipHidden}); err != nil {
		return err
	}
	opts.MaxEntries, opts.MaxTime = small(most), seconds(limit)
	found, err := files.Glob(r.Context(), name, opts)
	if err != nil {
		return err
	}
	answerJSON(w, http.StatusOK, listingOf(name, true, found))
	return nil
}

// listingOf is found as JSON carries it.
func listingOf(name string, recursive bool, found sandboxd.Listing) listing {
	out := listing{Path: strings.ToValidUTF8(name, "\uFFFD"), Recursive: recursive, Entries: make([]sandboxd.Entry, 0, len(found.Entries)),
		Truncated: found.Truncated, Incomplete: found.Incomplete}
	for _, info := range found.Entries {
		out.Entries = append(out.Entries, sandboxd.EntryOf(info))
	}
	return out
}

func (f *face) grep(w http.ResponseWriter, r *http.Request, query url.Values) error {
	files, name, err := f.filesOf(r, query)
	if err != nil {
		return err
	}
	opts := sandboxd.GrepOptions{Pattern: query.Get("pattern"), Glob: query.Get("glob")}
	var before, after, context, most, limit int64
	if err := numbers(query, map[string]*int64{"before": &before, "after": &after, "context": &context, "max": &most,
		"max_bytes": &opts.MaxBytes, "time_s": &limit}); err != nil {
		return err
	}
	if err := switches(query, map[string]*bool{"literal": &opts.Literal, "ignore_case": &opts.IgnoreCase, "skip_hidden": &opts.SkipHidden}); err != nil {
		return err
	}
	opts.Before, opts.After = small(max(before, context)), small(max(after, context))
	opts.MaxMatches, opts.MaxTime = small(most), seconds(limit)
	found, err := files.Grep(r.Context(), name, opts)
	if err != nil {
		return err
	}
	out := grepAnswer{Matches: make([]sandboxd.MatchEntry, 0, len(found.Matches)), Truncated: found.Truncated, Incomplete: found.Incomplete,
		Files: found.Files, Binary: found.Binary, Bytes: found.Bytes}
	for _, m := range found.Matches {
		out.Matches = append(out.Matches, sandboxd.MatchOf(m))
	}
	answerJSON(w, http.StatusOK, out)
	return nil
}
