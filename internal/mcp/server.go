// Package mcp is the face that an agent speaks MCP to: nine tools over one
// sandbox. It holds no rule about sandboxes; everything is asked of a
// sandboxd.Host. It is for one session on one transport, as a child process of
// the agent has it.
package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxd"
)

// Options say which sandbox a session has.
type Options struct {
	Key     string // the sandbox of this key; empty: a fresh one
	Keep    bool   // do not delete it when the session ends
	Version string // what the server says of itself
}

// briefing is the fixed text that every agent gets at the start.
const briefing = `You have one private Linux sandbox. Nothing in it can reach the user's machine, and there is no network.
- Your files live in /workspace. Paths of the file tools are relative to it.
- run executes a command and waits for it (300 s unless timeout_s says otherwise). Each run is a new process: only files stay; chain steps with "cd x && y".
- What a program prints is cut in the middle beyond 30,000 characters: send long output to a file and read parts of it.
- read shows text by lines (offset, limit) and PNG, JPEG, GIF and WebP pictures as pictures.
- To change a part of a file, edit it: old must be there exactly once unless count says otherwise. glob finds names, grep finds lines.
- The sandbox is made at the first use and deleted when the session ends, unless the user keeps it.`

// deleteTimeout bounds the clean-up at the end of a session.
const deleteTimeout = 15 * time.Second

// Serve answers one session on the transport until the peer or ctx ends it, then
// deletes the sandbox if this session made it and Keep is not set.
func Serve(ctx context.Context, host sandboxd.Host, opts Options, transport mcp.Transport) error {
	s := &session{host: host, opts: opts}
	server := mcp.NewServer(&mcp.Implementation{Name: "sandboxd", Version: opts.Version},
		&mcp.ServerOptions{Instructions: briefing, Capabilities: &mcp.ServerCapabilities{}})
	s.addTools(server)
	err := server.Run(ctx, transport)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	if derr := s.close(clean); derr != nil {
		return derr
	}
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Stdio is the transport of a child process.
func Stdio(in io.Reader, out io.Writer) mcp.Transport {
	return &mcp.IOTransport{Reader: io.NopCloser(in), Writer: writer{out}}
}

type writer struct{ io.Writer }

func (writer) Close() error { return nil }

// session owns at most one sandbox.
type session struct {
	host sandboxd.Host
	opts Options

	mu   sync.Mutex
	id   string
	made bool // by this session, so that it may delete it
}

// sandbox makes the session's sandbox at the first call.
func (s *session) sandbox(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != "" {
		return s.id, nil
	}
	sb, created, err := s.host.Open(ctx, sandboxd.OpenRequest{Key: s.opts.Key, Labels: map[string]string{"made-by": "mcp"}})
	if err != nil {
		return "", err
	}
	s.id, s.made = sb.ID, created
	return s.id, nil
}

// with calls fn with the sandbox. One that somebody deleted is forgotten, so that
// the next call gets a new one; the agent is told that its files are gone.
func (s *session) with(ctx context.Context, fn func(id string) error) error {
	id, err := s.sandbox(ctx)
	if err != nil {
		return err
	}
	err = fn(id)
	if sandboxd.ClassOf(err) != sandboxd.ClassGone {
		return err
	}
	// What is gone may be its environment only; the files are then still there.
	if _, lookup := s.host.Get(ctx, id); sandboxd.ClassOf(lookup) != sandboxd.ClassGone {
		var e *sandboxd.Error
		if errors.As(err, &e) {
			kept := *e
			return kept.WithHint("the files are kept; open starts the sandbox again")
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == id {
		s.id, s.made = "", false
	}
	return sandboxd.Wrap(sandboxd.ClassGone, err, "the sandbox was deleted").
		WithHint("its files are lost; the next call makes a new one")
}

// files calls fn with the workspace.
func (s *session) files(ctx context.Context, fn func(sandboxd.Files) error) error {
	return s.with(ctx, func(id string) error {
		files, err := s.host.Files(ctx, id)
		if err != nil {
			return err
		}
		return fn(files)
	})
}

func (s *session) close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == "" || !s.made || s.opts.Keep {
		return nil
	}
	err := s.host.Delete(ctx, s.id)
	s.id = ""
	if sandboxd.ClassOf(err) == sandboxd.ClassGone {
		return nil
	}
	return err
}

// refusal is an error as the agent sees it: the text, and the same as data.
type refusal struct {
	Code    sandboxd.Class `json:"code"`
	Message string         `json:"message"`
	Hint    string         `json:"hint,omitempty"`
	Kind    string         `json:"kind,omitempty"` // media type of a file that is not shown
	Size    int64          `json:"size,omitempty"` // of that file, bytes
}

// refuse makes the tool result of an error. Nothing but what is public leaves.
func refuse(err error) *mcp.CallToolResult {
	r := refusal{Code: sandboxd.ClassOf(err), Message: "internal error"}
	var e *sandboxd.Error
	if errors.As(err, &e) {
		r.Message, r.Hint = e.Public(), e.Hint
	}
	return refused(r)
}

func refused(r refusal) *mcp.CallToolResult {
	text := fmt.Sprintf("%s: %s", r.Code, r.Message)
	if r.Hint != "" {
		text += "\nhint: " + r.Hint
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}},
		StructuredContent: map[string]any{"error": r}}
}

func say(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}
