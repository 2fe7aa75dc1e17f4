// Package attack is the adversary: it drives the shipped program from outside, as
// a hostile caller, and from inside a sandbox, as hostile code, and looks for what
// neither may get. It knows nothing of the program's insides but the layout of the
// data directory that a machine's root can see.
package attack

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

func TestMain(m *testing.M) {
	os.Exit(server.Main(m, "./test/attack/intruder", "./internal/isolate/prober"))
}

// target is the server under attack.
type target struct {
	*server.Instance
	t testing.TB
}

// serve starts a server that the end of the test ends, with all its sandboxes.
func serve(t testing.TB) *target {
	t.Helper()
	s := &target{Instance: server.New(t, server.Options{Args: []string{"--max-sandboxes", "100"}, Host: true}), t: t}
	s.Start()
	t.Cleanup(plain.CloseIdleConnections) // before the server is looked at
	t.Cleanup(func() {
		if !s.Alive() {
			t.Errorf("the server did not survive the test: %s", s.Log.Tail())
		}
	})
	return s
}

// long marks a test that takes seconds and says little that the others do not.
func long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		captest.Need(t, "patience", false, "not in the short run: make test")
	}
}

// request is one raw exchange. The path is sent as it is.
type request struct {
	method, path string
	header       map[string]string
	body         io.Reader
	token        string // default the API key; "-" sends none
	addr         string // default the control listener
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

var plain = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true},
	Timeout:       30 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// send answers the exchange; an answer that the server broke off has the bytes
// that came.
func (s *target) send(in request) (answer, error) {
	addr, token := s.Addr, s.Key
	if in.addr != "" {
		addr = in.addr
	}
	if in.token != "" {
		token = in.token
	}
	req, err := http.NewRequest(in.method, "http://"+addr+in.path, in.body)
	if err != nil {
		return answer{}, err
	}
	if token != "-" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for name, value := range in.header {
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	res, err := plain.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		// It has no end; what comes in a moment is looked at.
		defer time.AfterFunc(150*time.Millisecond, func() { res.Body.Close() }).Stop()
		body, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		return answer{status: res.StatusCode, header: res.Header, body: body}, nil
	}
	// Bounded, because one attack is a file of a terabyte.
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return answer{}, err
	}
	return answer{status: res.StatusCode, header: res.Header, body: body}, nil
}

func (s *target) must(in request) answer {
	s.t.Helper()
	got, err := s.send(in)
	if err != nil {
		s.t.Fatalf("%s %s: %v", in.method, in.path, err)
	}
	return got
}

// box is one sandbox with the hostile programs in it.
type box struct {
	s     *target
	id    string
	files sandboxd.Files
}

func (s *target) open(req sandboxd.OpenRequest) *box {
	s.t.Helper()
	ctx := context.Background()
	sb, _, err := s.C.Open(ctx, req)
	if err != nil {
		s.t.Fatalf("open: %v\n%s", err, s.Log.Tail())
	}
	files, err := s.C.Files(ctx, sb.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	b := &box{s: s, id: sb.ID, files: files}
	for name, source := range map[string]string{"intruder": server.Program("intruder"), "prober": server.Program("prober")} {
		b.upload(name, source)
	}
	return b
}

func (b *box) upload(name, source string) {
	b.s.t.Helper()
	f, err := os.Open(source)
	if err != nil {
		b.s.t.Fatal(err)
	}
	defer f.Close()
	if _, err := b.files.Write(context.Background(), name, f, sandboxd.WriteOptions{Executable: true, Size: -1}); err != nil {
		b.s.t.Fatal(err)
	}
}

// outcome is a command that ended.
type outcome struct {
	stdout, stderr string
	ending         sandboxd.Ending
}

// run runs a command to its end.
func (b *box) run(spec sandboxd.CommandSpec) outcome {
	b.s.t.Helper()
	return b.wait(b.begin(spec))
}

func (b *box) shell(text string) outcome {
	b.s.t.Helper()
	return b.run(sandboxd.CommandSpec{Shell: text})
}

// ok runs a command that must succeed and answers its output.
func (b *box) ok(text string) string {
	b.s.t.Helper()
	got := b.shell(text)
	if got.ending.ExitCode == nil || *got.ending.ExitCode != 0 {
		b.s.t.Fatalf("%s: %+v", text, got)
	}
	return got.stdout
}

// begin starts a command in the background.
func (b *box) begin(spec sandboxd.CommandSpec) string {
	b.s.t.Helper()
	cmd, _, err := b.s.C.StartCommand(context.Background(), b.id, spec)
	if err != nil {
		b.s.t.Fatalf("start of %q %q: %v\n%s", spec.Argv, spec.Shell, err, b.s.Log.Tail())
	}
	return cmd.ID
}

// wait reads a command to its end, which must come.
func (b *box) wait(id string) outcome {
	b.s.t.Helper()
	got, err := b.read(id, "")
	if err != nil {
		b.s.t.Fatalf("command %s: %v\n%s", id, err, b.s.Log.Tail())
	}
	return got
}

// says waits until a command's output holds a text.
func (b *box) says(id, text string) {
	b.s.t.Helper()
	got, err := b.read(id, text)
	if err != nil || !strings.Contains(got.stdout, text) {
		b.s.t.Fatalf("waiting for %q: %v, %+v", text, err, got)
	}
}

func (b *box) read(id, stopAt string) (got outcome, err error) {
	stream, err := b.s.C.FollowCommand(context.Background(), b.id, id, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		return got, err
	}
	return drain(stream, stopAt)
}

// drain reads a stream until the ending, or until the output holds a text.
func drain(stream sandboxd.CommandStream, stopAt string) (got outcome, err error) {
	defer stream.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		frame, err := stream.Next(ctx)
		if err != nil {
			return got, err
		}
		if frame.Ending != nil {
			got.ending = *frame.Ending
			return got, nil
		}
		if frame.Stream == sandboxd.StreamStderr {
			got.stderr += string(frame.Data)
		} else {
			got.stdout += string(frame.Data)
		}
		if stopAt != "" && strings.Contains(got.stdout, stopAt) {
			return got, nil
		}
	}
}

// stop ends a command and answers how long that took.
func (b *box) stop(id string) time.Duration {
	b.s.t.Helper()
	began := time.Now()
	if _, err := b.s.C.StopCommand(context.Background(), b.id, id, 0); err != nil {
		b.s.t.Fatalf("stop: %v", err)
	}
	return time.Since(began)
}

// path is a route of the sandbox.
func (b *box) path(rest string) string { return "/v1/sandboxes/" + b.id + rest }
