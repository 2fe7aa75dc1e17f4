// Package hosttest is the suite of the Host contract. The embedded host runs it
// over every driver, the client runs it over real HTTP.
//
// It is not a test of isolation or of any driver: it asks only what sandboxd.Host
// promises, and uses programs that every driver has.
package hosttest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"time"

	"sandboxd"
)

// Harness makes hosts for the suite.
type Harness struct {
	// New answers a host of its own for one test, with room for so many running
	// sandboxes; what it made is cleaned up with t.
	New func(t *testing.T, places int) sandboxd.Host
	// Program spells a program of the suite as an argv of the driver: echo TEXT,
	// cat, sleep SECONDS, exit CODE, flood BYTES (to stdout), stderr TEXT, env, pwd,
	// fetch URL, which prints the answer of the sandbox's proxy with its head, and
	// listen PORT MODE [ADDRESS] (see listenScript).
	// Nil passes them as they are.
	Program func(name string, args ...string) []string
	// FixedLimits says that the driver cannot change the limits of what runs.
	FixedLimits bool
}

// ShellPrograms is Harness.Program for drivers that run real programs.
func ShellPrograms(name string, args ...string) []string {
	script := map[string]string{
		"exit":   `exit "$1"`,
		"flood":  `head -c "$1" /dev/zero | tr '\000' x`,
		"stderr": `printf '%s\n' "$*" >&2`,
		"pwd":    `pwd`,
		"fetch": `exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128
			printf "GET %s HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n" "$1" >&3; exec cat <&3' bash "$1"`,
	}[name]
	if name == "listen" {
		return append([]string{"python3", "-c", listenScript}, args...)
	}
	if script == "" {
		return append([]string{name}, args...)
	}
	return append([]string{"/bin/sh", "-c", script, "sh"}, args...)
}

// patience bounds every wait of the suite; a healthy host needs a small part.
const patience = 30 * time.Second

// Run runs the suite.
func Run(t *testing.T, harness Harness) {
	if harness.Program == nil {
		harness.Program = func(name string, args ...string) []string { return append([]string{name}, args...) }
	}
	groups := []struct {
		name  string
		cases []testCase
	}{{"lifecycle", lifecycleCases}, {"commands", commandCases}, {"files", fileCases}, {"network", networkCases}, {"ports", portCases}, {"lifetimes", lifetimeCases}, {"variables", variableCases}}
	for _, group := range groups {
		t.Run(group.name, func(t *testing.T) {
			for _, tc := range group.cases {
				t.Run(tc.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
					defer cancel()
					places := tc.places
					if places == 0 {
						places = 20
					}
					tc.run(&suite{T: t, ctx: ctx, host: harness.New(t, places), program: harness.Program, fixedLimits: harness.FixedLimits})
				})
			}
		})
	}
}

type testCase struct {
	name   string
	places int
	run    func(*suite)
}

// suite is one test with its host.
type suite struct {
	*testing.T
	ctx     context.Context
	host    sandboxd.Host
	program func(name string, args ...string) []string

	fixedLimits bool
}

// must fails the test on an error.
func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%v (class %s)", err, sandboxd.ClassOf(err))
	}
}

// wants fails the test unless err has one of the classes.
func (s *suite) wants(err error, classes ...sandboxd.Class) {
	s.Helper()
	if err == nil {
		s.Fatalf("no error, want %v", classes)
	}
	for _, class := range classes {
		if sandboxd.ClassOf(err) == class {
			return
		}
	}
	s.Fatalf("%v has class %s, want %v", err, sandboxd.ClassOf(err), classes)
}

func (s *suite) open(req sandboxd.OpenRequest) sandboxd.Sandbox {
	s.Helper()
	sb, created, err := s.host.Open(s.ctx, req)
	s.must(err)
	if !created {
		s.Fatal("the sandbox was there already")
	}
	return sb
}

func (s *suite) start(id string, spec sandboxd.CommandSpec) sandboxd.Command {
	s.Helper()
	cmd, started, err := s.host.StartCommand(s.ctx, id, spec)
	s.must(err)
	if !started {
		s.Fatal("the command was there already")
	}
	return cmd
}

// output is what was read of a command.
type output struct {
	stdout, stderr bytes.Buffer
	next           int64 // offset after the last byte
	ending         *sandboxd.Ending
}

// read follows a command and checks that offsets leave nothing out.
func (s *suite) read(id, cmd string, opts sandboxd.FollowOptions) *output {
	s.Helper()
	stream, err := s.host.FollowCommand(s.ctx, id, cmd, opts)
	s.must(err)
	defer stream.Close()
	out := &output{next: opts.Offset}
	for {
		f, err := stream.Next(s.ctx)
		if errors.Is(err, io.EOF) {
			return out
		}
		s.must(err)
		if out.ending != nil {
			s.Fatalf("a frame after the ending: %+v", f)
		}
		if f.Gap != nil {
			out.next = f.Gap.To
		}
		if len(f.Data) > 0 {
			if f.Offset != out.next {
				s.Fatalf("a frame at offset %d, want %d", f.Offset, out.next)
			}
			out.next += int64(len(f.Data))
			if f.Stream == sandboxd.StreamStderr {
				out.stderr.Write(f.Data)
			} else {
				out.stdout.Write(f.Data)
			}
		}
		out.ending = f.Ending
	}
}

// finish follows a command to its ending.
func (s *suite) finish(id string, cmd sandboxd.Command) *output {
	s.Helper()
	out := s.read(id, cmd.ID, sandboxd.FollowOptions{Follow: true})
	if out.ending == nil {
		s.Fatal("the stream ended without the ending")
	}
	return out
}

func (s *suite) run(id string, spec sandboxd.CommandSpec) *output {
	s.Helper()
	return s.finish(id, s.start(id, spec))
}

func (s *suite) exits(out *output, cause sandboxd.Cause, code int) {
	s.Helper()
	if out.ending.Cause != cause || out.ending.ExitCode == nil || *out.ending.ExitCode != code {
		got := "none"
		if out.ending.ExitCode != nil {
			got = strconv.Itoa(*out.ending.ExitCode)
		}
		s.Fatalf("ended by %s with exit code %s, want %s with %d: %+v", out.ending.Cause, got, cause, code, *out.ending)
	}
}

// eventually polls until ok, for what the contract lets happen a moment later.
func (s *suite) eventually(what string, ok func() bool) {
	s.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			s.Fatalf("did not happen in %v: %s", patience, what)
		}
	}
}

func cold() *bool { no := false; return &no }
