package mcp

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxd"
)

// shownMatches is how many matches an agent sees, unless it asks for fewer.
const shownMatches = 200

type editArgs struct {
	Path  string `json:"path" jsonschema:"file, relative to /workspace"`
	Old   string `json:"old" jsonschema:"the exact text to replace, with its spaces and line ends"`
	New   string `json:"new" jsonschema:"what is put in its place; may be empty"`
	Count int    `json:"count,omitempty" jsonschema:"how often old must be there, default 1"`
	All   bool   `json:"all,omitempty" jsonschema:"replace it as often as it is there"`
}

type globArgs struct {
	Pattern    string `json:"pattern" jsonschema:"as src/**/*.go, matched with the path below path"`
	Path       string `json:"path,omitempty" jsonschema:"directory to look in, relative to /workspace"`
	SkipHidden bool   `json:"skip_hidden,omitempty" jsonschema:"leave out names that begin with a dot, and what is below"`
}

type grepArgs struct {
	Pattern    string `json:"pattern" jsonschema:"RE2 expression that a part of a line matches"`
	Path       string `json:"path,omitempty" jsonschema:"file or directory to look in, relative to /workspace"`
	Glob       string `json:"glob,omitempty" jsonschema:"only files that match, as *.go"`
	Literal    bool   `json:"literal,omitempty" jsonschema:"pattern is plain text"`
	IgnoreCase bool   `json:"ignore_case,omitempty" jsonschema:"upper and lower case are the same"`
	Context    int    `json:"context,omitempty" jsonschema:"lines to show before and after a match, at most 20"`
	Limit      int    `json:"limit,omitempty" jsonschema:"most matches, default 200"`
	SkipHidden bool   `json:"skip_hidden,omitempty" jsonschema:"leave out names that begin with a dot, and what is below"`
}

func (s *session) edit(ctx context.Context, args editArgs) (result *mcp.CallToolResult, err error) {
	err = s.files(ctx, func(files sandboxd.Files) error {
		info, replaced, err := files.Edit(ctx, args.Path, sandboxd.Edit{Old: args.Old, New: args.New, Count: args.Count, All: args.All})
		if err != nil {
			return err
		}
		result = say("replaced %d; %s has %d bytes", replaced, info.Path, info.Size)
		return nil
	})
	return result, err
}

func (s *session) glob(ctx context.Context, args globArgs) (result *mcp.CallToolResult, err error) {
	err = s.files(ctx, func(files sandboxd.Files) error {
		found, err := files.Glob(ctx, args.Path, sandboxd.GlobOptions{Pattern: args.Pattern, SkipHidden: args.SkipHidden, MaxEntries: sandboxd.TreeEntries})
		if err != nil {
			return err
		}
		result = say("%s", entries(found, "(nothing matches)\n"))
		return nil
	})
	return result, err
}

// entries shows a listing, a line each.
func entries(listing sandboxd.Listing, none string) string {
	text := newHeadTail()
	for _, info := range listing.Entries {
		switch info.Type {
		case sandboxd.TypeDir:
			fmt.Fprintf(text, "%s/\n", info.Path)
		case sandboxd.TypeLink:
			fmt.Fprintf(text, "%s -> %s\n", info.Path, info.Target)
		default:
			fmt.Fprintf(text, "%s (%d bytes)\n", info.Path, info.Size)
		}
	}
	answer := text.String()
	if len(listing.Entries) == 0 {
		answer = none
	}
	return answer + bounds(listing.Truncated, listing.Incomplete)
}

// bounds says what an answer leaves out.
func bounds(truncated, incomplete bool) string {
	text := ""
	if truncated {
		text += "[more is not shown: look in a directory below, or for less]\n"
	}
	if incomplete {
		text += "[something here could not be read]\n"
	}
	return text
}

func (s *session) grep(ctx context.Context, args grepArgs) (result *mcp.CallToolResult, err error) {
	if args.Limit < 0 {
		return nil, sandboxd.Invalid("limit", "it is at least 1")
	}
	if args.Context < 0 {
		return nil, sandboxd.Invalid("context", "it is 0 to %d lines", sandboxd.GrepContext)
	}
	limit := args.Limit
	if limit == 0 {
		limit = shownMatches
	}
	err = s.files(ctx, func(files sandboxd.Files) error {
		found, err := files.Grep(ctx, args.Path, sandboxd.GrepOptions{Pattern: args.Pattern, Literal: args.Literal, IgnoreCase: args.IgnoreCase,
			Glob: args.Glob, SkipHidden: args.SkipHidden, Before: args.Context, After: args.Context, MaxMatches: limit})
		if err != nil {
			return err
		}
		result = say("%s", matches(found))
		return nil
	})
	return result, err
}

// matches shows lines as grep does: path:line:text, and path-line-text around.
func matches(found sandboxd.GrepResult) string {
	text := newHeadTail()
	for i, m := range found.Matches {
		around := len(m.Before)+len(m.After) > 0
		if around && i > 0 {
			fmt.Fprintln(text, "--")
		}
		for j, line := range m.Before {
			fmt.Fprintf(text, "%s-%d-%s\n", m.Path, m.Line-int64(len(m.Before)-j), line)
		}
		fmt.Fprintf(text, "%s:%d:%s\n", m.Path, m.Line, m.Text)
		for j, line := range m.After {
			fmt.Fprintf(text, "%s-%d-%s\n", m.Path, m.Line+int64(j)+1, line)
		}
	}
	answer := text.String()
	if len(found.Matches) == 0 {
		answer = fmt.Sprintf("(no match in %d files; %d binary files were left out)\n", found.Files, found.Binary)
	}
	return answer + bounds(found.Truncated, found.Incomplete)
}
