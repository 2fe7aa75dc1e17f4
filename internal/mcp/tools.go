package mcp

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxd"
	"sandboxd/internal/follow"
)

const (
	maxImage   = 8 << 20 // bytes of a picture that is shown
	maxChars   = 30000   // characters of any text that is shown
	readLines  = 2000    // lines of a file, unless asked otherwise
	sniffBytes = 8 << 10 // of a file's beginning, to tell its kind
)

type openArgs struct{}

type runArgs struct {
	Command  string            `json:"command,omitempty" jsonschema:"a line for /bin/sh; give this or argv"`
	Argv     []string          `json:"argv,omitempty" jsonschema:"program and arguments, without a shell"`
	Cwd      string            `json:"cwd,omitempty" jsonschema:"directory, relative to /workspace"`
	Env      map[string]string `json:"env,omitempty" jsonschema:"variables added to the environment"`
	Stdin    string            `json:"stdin,omitempty" jsonschema:"text for standard input"`
	TimeoutS float64           `json:"timeout_s,omitempty" jsonschema:"seconds until it is ended, default 300"`
}

type readArgs struct {
	Path   string `json:"path" jsonschema:"file, relative to /workspace"`
	Offset int    `json:"offset,omitempty" jsonschema:"first line, counted from 1"`
	Limit  int    `json:"limit,omitempty" jsonschema:"number of lines, default 2000"`
}

type writeArgs struct {
	Path    string `json:"path" jsonschema:"file, relative to /workspace; parents are made"`
	Content string `json:"content" jsonschema:"the whole new content"`
	Base64  bool   `json:"base64,omitempty" jsonschema:"content is base64, for binary files"`
	Append  bool   `json:"append,omitempty" jsonschema:"add to the end instead of replacing"`
}

type lsArgs struct {
	Path  string `json:"path,omitempty" jsonschema:"directory, relative to /workspace"`
	Depth int    `json:"depth,omitempty" jsonschema:"levels, 1 to 6, default 1"`
}

type removeArgs struct {
	Path string `json:"path" jsonschema:"file or directory, relative to /workspace; directories with all they hold"`
}

// runResult is the data beside the text of run. Output is cut as in the text.
type runResult struct {
	ExitCode *int           `json:"exit_code"`
	Stdout   string         `json:"stdout"`
	Stderr   string         `json:"stderr"`
	Cause    sandboxd.Cause `json:"cause"`
	Remedy   string         `json:"remedy,omitempty"`
}

func (s *session) addTools(server *mcp.Server) {
	yes, no := true, false
	reads := &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no}
	changes := &mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no}
	destroys := &mcp.ToolAnnotations{DestructiveHint: &yes, OpenWorldHint: &no}
	add(server, &mcp.Tool{Name: "open", Annotations: changes,
		Description: "Make the sandbox if there is none yet, start it, and say what it is."}, s.open)
	add(server, &mcp.Tool{Name: "run", Annotations: changes,
		Description: "Run a command in the sandbox and wait for it: exit code, output, and why it ended."}, s.run)
	add(server, &mcp.Tool{Name: "read", Annotations: reads,
		Description: "Read a text file by lines, or look at a picture (PNG, JPEG, GIF, WebP up to 8 MiB)."}, s.read)
	add(server, &mcp.Tool{Name: "write", Annotations: destroys,
		Description: "Create or replace a file, whole or not at all."}, s.write)
	add(server, &mcp.Tool{Name: "edit", Annotations: destroys,
		Description: "Replace exact text in a file, whole or not at all. The text must be there once, or as often as count says."}, s.edit)
	add(server, &mcp.Tool{Name: "glob", Annotations: reads,
		Description: "Find files and directories by a pattern: * ? [a-z] {a,b} within a name, ** for any depth."}, s.glob)
	add(server, &mcp.Tool{Name: "grep", Annotations: reads,
		Description: "Find lines in text files by an RE2 expression; binary files are left out."}, s.grep)
	add(server, &mcp.Tool{Name: "ls", Annotations: reads,
		Description: "List a directory with types and sizes."}, s.ls)
	add(server, &mcp.Tool{Name: "remove", Annotations: destroys,
		Description: "Remove a file or a directory with all it holds."}, s.remove)
}

// add turns errors into results that the agent can read and act on.
func add[In any](server *mcp.Server, tool *mcp.Tool, fn func(context.Context, In) (*mcp.CallToolResult, error)) {
	mcp.AddTool(server, tool, func(ctx context.Context, _ *mcp.CallToolRequest, args In) (*mcp.CallToolResult, any, error) {
		result, err := fn(ctx, args)
		if err != nil {
			result = refuse(err)
		}
		return result, nil, nil
	})
}

func (s *session) open(ctx context.Context, _ openArgs) (result *mcp.CallToolResult, err error) {
	err = s.with(ctx, func(id string) error {
		sb, err := s.host.Start(ctx, id)
		if err != nil {
			return err
		}
		result = say("sandbox %s (key %s) is %s. Files: %s, home: %s. Limits: %d MiB memory, %g cores, %d processes.",
			sb.ID, sb.Key, sb.State, sandboxd.WorkDir, sandboxd.HomeDir, sb.Limits.MemoryBytes>>20, sb.Limits.CPUs, sb.Limits.PIDs)
		result.StructuredContent = sb
		return nil
	})
	return result, err
}

// orphanAfter ends a command whose agent died.
const orphanAfter = 60

func (s *session) run(ctx context.Context, args runArgs) (result *mcp.CallToolResult, err error) {
	spec := sandboxd.CommandSpec{ID: sandboxd.NewID(), Argv: args.Argv, Shell: args.Command, Cwd: args.Cwd, Env: args.Env,
		Stdin: []byte(args.Stdin), OrphanAfterS: orphanAfter}
	if args.TimeoutS != 0 {
		timeout := sandboxd.Seconds(args.TimeoutS)
		spec.TimeoutS = &timeout
	}
	if (spec.Shell == "") == (len(spec.Argv) == 0) {
		return nil, sandboxd.Invalid("command", "give either command or argv")
	}
	err = s.with(ctx, func(id string) error {
		if _, _, err := s.host.StartCommand(ctx, id, spec); err != nil {
			return err
		}
		stdout, stderr := newHeadTail(), newHeadTail()
		ending, err := s.collect(ctx, id, spec.ID, stdout, stderr)
		if err != nil {
			return err
		}
		result = runAnswer(ending, stdout.String(), stderr.String())
		return nil
	})
	return result, err
}

// collect reads a command to its end. An agent that gives up ends the command.
func (s *session) collect(ctx context.Context, id, command string, stdout, stderr io.Writer) (sandboxd.Ending, error) {
	ending, err := follow.Output(ctx, s.host, follow.Command{Sandbox: id, ID: command}, func(frame sandboxd.Frame) error {
		w := stdout
		if frame.Stream == sandboxd.StreamStderr {
			w = stderr
		}
		_, err := w.Write(frame.Data)
		return err
	})
	if err != nil && ctx.Err() != nil {
		_, _ = s.host.StopCommand(context.WithoutCancel(ctx), id, command, 1)
	}
	return ending, err
}

func runAnswer(ending sandboxd.Ending, stdout, stderr string) *mcp.CallToolResult {
	out := runResult{ExitCode: ending.ExitCode, Stdout: stdout, Stderr: stderr, Cause: ending.Cause, Remedy: ending.Remedy}
	var text strings.Builder
	switch {
	case ending.ExitCode == nil:
		text.WriteString("exit code unknown")
	default:
		fmt.Fprintf(&text, "exit code %d", *ending.ExitCode)
	}
	if ending.Cause != sandboxd.CauseExit {
		fmt.Fprintf(&text, " (%s", ending.Cause)
		for _, part := range []string{ending.Signal, ending.Limit, ending.Message} {
			if part != "" {
				text.WriteString(", " + part)
			}
		}
		text.WriteString(")")
	}
	text.WriteString("\n")
	if ending.Remedy != "" {
		text.WriteString("remedy: " + ending.Remedy + "\n")
	}
	for _, part := range []struct{ name, text string }{{"stdout", stdout}, {"stderr", stderr}} {
		if part.text != "" {
			fmt.Fprintf(&text, "--- %s\n%s", part.name, part.text)
			if !strings.HasSuffix(part.text, "\n") {
				text.WriteString("\n")
			}
		}
	}
	result := say("%s", text.String())
	result.StructuredContent = out
	return result
}

// imageKinds are the pictures that models take.
var imageKinds = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true}

func (s *session) read(ctx context.Context, args readArgs) (result *mcp.CallToolResult, err error) {
	if args.Offset < 0 || args.Limit < 0 {
		return nil, sandboxd.Invalid("offset", "offset and limit are at least 1")
	}
	err = s.files(ctx, func(files sandboxd.Files) error {
		file, err := files.Open(ctx, args.Path)
		if err != nil {
			return err
		}
		defer file.Close()
		body := bufio.NewReaderSize(file, sniffBytes)
		start, err := body.Peek(sniffBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		err = nil // the file may be shorter than the sniff
		kind := http.DetectContentType(start)
		switch {
		case imageKinds[kind]:
			result, err = picture(body, kind, file.Info().Size)
		case !textual(start):
			result = refused(refusal{Code: sandboxd.ClassUnsupported, Message: fmt.Sprintf("a binary file (%s, %d bytes) is not shown", kind, file.Info().Size),
				Hint: "look at it with a program, as: run file, xxd | head, or convert it", Kind: kind, Size: file.Info().Size})
		default:
			result, err = lines(body, args)
		}
		return err
	})
	return result, err
}

func picture(body io.Reader, kind string, size int64) (*mcp.CallToolResult, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxImage+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxImage {
		return refused(refusal{Code: sandboxd.ClassTooLarge, Message: fmt.Sprintf("a picture of %d bytes is not shown; at most %d are", max(size, int64(len(data))), maxImage),
			Hint: "make it smaller with a program and read that", Kind: kind, Size: size}), nil
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{Data: data, MIMEType: kind}}}, nil
}

// textual says whether the beginning of a file is UTF-8 text. A character cut at
// the end of what was sniffed does not count against it.
func textual(start []byte) bool {
	for cut := 0; cut < utf8.UTFMax && cut <= len(start); cut++ {
		part := start[:len(start)-cut]
		if utf8.Valid(part) {
			return !strings.ContainsRune(string(part), 0)
		}
		if len(start) < sniffBytes {
			return false
		}
	}
	return false
}

// lines answers a part of a text. It reads on past the part to count, so that the
// agent knows how much there is, and holds no more than what it shows.
func lines(body *bufio.Reader, args readArgs) (*mcp.CallToolResult, error) {
	first, limit := max(args.Offset, 1), args.Limit
	if limit == 0 {
		limit = readLines
	}
	shown := newHeadTail()
	count, midLine := 0, false
	for {
		piece, err := body.ReadSlice('\n')
		if len(piece) > 0 {
			if !midLine {
				count++
			}
			if count >= first && count-first < limit {
				_, _ = shown.Write(piece)
			}
			midLine = piece[len(piece)-1] != '\n'
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
	if first > max(count, 1) {
		return nil, sandboxd.Errorf(sandboxd.ClassRange, "the file has %d lines and the reading would begin at %d", count, first)
	}
	text := shown.String()
	if last := min(count, first+limit-1); first > 1 || last < count {
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += fmt.Sprintf("[lines %d to %d of %d]\n", first, last, count)
	}
	return say("%s", text), nil
}

func (s *session) write(ctx context.Context, args writeArgs) (result *mcp.CallToolResult, err error) {
	data := []byte(args.Content)
	if args.Base64 {
		if data, err = base64.StdEncoding.DecodeString(args.Content); err != nil {
			return nil, sandboxd.Invalid("content", "it is not base64")
		}
	}
	err = s.files(ctx, func(files sandboxd.Files) error {
		info, err := files.Write(ctx, args.Path, strings.NewReader(string(data)), sandboxd.WriteOptions{Size: int64(len(data)), Append: args.Append})
		if err != nil {
			return err
		}
		result = say("wrote %d bytes; %s has %d bytes", len(data), info.Path, info.Size)
		return nil
	})
	return result, err
}

func (s *session) ls(ctx context.Context, args lsArgs) (result *mcp.CallToolResult, err error) {
	if args.Depth < 0 || args.Depth > sandboxd.TreeDepth {
		return nil, sandboxd.Invalid("depth", "it is 1 to %d", sandboxd.TreeDepth)
	}
	err = s.files(ctx, func(files sandboxd.Files) error {
		listing, err := files.List(ctx, args.Path, sandboxd.ListOptions{Depth: max(args.Depth, 1), MaxEntries: sandboxd.TreeEntries})
		if err != nil {
			return err
		}
		result = say("%s", entries(listing, "(empty)\n"))
		return nil
	})
	return result, err
}

func (s *session) remove(ctx context.Context, args removeArgs) (result *mcp.CallToolResult, err error) {
	err = s.files(ctx, func(files sandboxd.Files) error {
		if err := files.Remove(ctx, args.Path); err != nil {
			return err
		}
		result = say("removed %s", args.Path)
		return nil
	})
	return result, err
}
