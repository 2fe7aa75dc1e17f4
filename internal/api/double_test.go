package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
)

const (
	testToken  = "sk_test-api-key"
	otherToken = "test-host-token"
	boxID      = "abcdefghijklmnopqrst"
	boxURL     = "/v1/sandboxes/" + boxID
)

// double is a Host of which a test scripts what it needs; the rest panics.
type double struct {
	sandboxd.Host
	open    func(sandboxd.OpenRequest) (sandboxd.Sandbox, bool, error)
	get     func(id string) (sandboxd.Sandbox, error)
	start   func(sandboxd.CommandSpec) (sandboxd.Command, bool, error)
	command sandboxd.Command
	frames  func() sandboxd.CommandStream
	content []byte
	dial    func(ctx context.Context, port uint16) (sandboxd.PortConn, error)
	ports   sandboxd.PortList
	watcher sandboxd.Watcher
	grepped sandboxd.GrepOptions
	part    sandboxd.UploadPart

	mu      sync.Mutex
	stopped []string
	typed   bytes.Buffer
	sizes   []sandboxd.TTY
	offsets []int64
	changed chan struct{} // one value for each of the above
}

func (d *double) note(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fn()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

func (d *double) Open(_ context.Context, req sandboxd.OpenRequest) (sandboxd.Sandbox, bool, error) {
	return d.open(req)
}

func (d *double) Get(_ context.Context, id string) (sandboxd.Sandbox, error) { return d.get(id) }

func (d *double) List(context.Context, string) ([]sandboxd.Sandbox, error) { return nil, nil }

func (d *double) StartCommand(_ context.Context, _ string, spec sandboxd.CommandSpec) (sandboxd.Command, bool, error) {
	if d.start != nil {
		return d.start(spec)
	}
	return sandboxd.Command{ID: "c1", SandboxID: boxID, TTY: spec.TTY != nil}, true, nil
}

func (d *double) GetCommand(context.Context, string, string) (sandboxd.Command, error) {
	return d.command, nil
}

func (d *double) FollowCommand(_ context.Context, _, _ string, opts sandboxd.FollowOptions) (sandboxd.CommandStream, error) {
	d.note(func() { d.offsets = append(d.offsets, opts.Offset) })
	return d.frames(), nil
}

func (d *double) StopCommand(_ context.Context, _, cmd string, _ sandboxd.Seconds) (sandboxd.Command, error) {
	d.note(func() { d.stopped = append(d.stopped, cmd) })
	return sandboxd.Command{ID: cmd}, nil
}

func (d *double) WriteStdin(_ context.Context, _, _ string, data []byte, _ bool) error {
	d.note(func() { d.typed.Write(data) })
	return nil
}

func (d *double) ResizeCommand(_ context.Context, _, _ string, size sandboxd.TTY) error {
	d.note(func() { d.sizes = append(d.sizes, size) })
	return nil
}

func (d *double) DialPort(ctx context.Context, _ string, port uint16) (sandboxd.PortConn, error) {
	return d.dial(ctx, port)
}

func (d *double) ListPorts(context.Context, string) (sandboxd.PortList, error) { return d.ports, nil }

func (d *double) Files(context.Context, string) (sandboxd.Files, error) {
	return &doubleFiles{d: d}, nil
}

type doubleFiles struct {
	sandboxd.Files
	d *double
}

type doubleFile struct {
	*bytes.Reader
	info sandboxd.FileInfo
}

func (f doubleFile) Close() error            { return nil }
func (f doubleFile) Info() sandboxd.FileInfo { return f.info }

func (f *doubleFiles) Open(_ context.Context, path string) (sandboxd.FileReader, error) {
	return doubleFile{bytes.NewReader(f.d.content), sandboxd.FileInfo{Path: path, Type: sandboxd.TypeFile,
		Size: int64(len(f.d.content)), Mode: 0o640, ModTime: time.Unix(1e9, 5), ETag: `"v1"`}}, nil
}

func (f *doubleFiles) Write(_ context.Context, path string, body io.Reader, opts sandboxd.WriteOptions) (sandboxd.FileInfo, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return sandboxd.FileInfo{}, err
	}
	f.d.note(func() { f.d.content = data })
	return sandboxd.FileInfo{Path: path, Type: sandboxd.TypeFile, Size: int64(len(data)), ETag: `"v2"`}, nil
}

func (f *doubleFiles) TarOut(_ context.Context, _ string, w io.Writer) error {
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		return err
	}
	return sandboxd.Errorf(sandboxd.ClassUnavailable, "the disk went away")
}

// script is a CommandStream that plays frames, then answers last, or waits for
// ctx when last is nil.
type script struct {
	frames []sandboxd.Frame
	last   error
	closed chan struct{}
}

func (s *script) Next(ctx context.Context) (sandboxd.Frame, error) {
	if len(s.frames) > 0 {
		f := s.frames[0]
		s.frames = s.frames[1:]
		return f, nil
	}
	if s.last == nil {
		<-ctx.Done()
		return sandboxd.Frame{}, ctx.Err()
	}
	return sandboxd.Frame{}, s.last
}

func (s *script) Close() error {
	if s.closed != nil {
		close(s.closed)
	}
	return nil
}

func out(offset int64, data string) sandboxd.Frame {
	return sandboxd.Frame{Stream: sandboxd.StreamStdout, Offset: offset, Data: []byte(data)}
}

func ended(code int) sandboxd.Frame {
	return sandboxd.Frame{Ending: &sandboxd.Ending{Cause: sandboxd.CauseExit, ExitCode: &code}}
}

func plays(frames ...sandboxd.Frame) func() sandboxd.CommandStream {
	return func() sandboxd.CommandStream {
		return &script{frames: append([]sandboxd.Frame{}, frames...), last: io.EOF}
	}
}

// rig is a face on a real TCP port.
type rig struct {
	*testing.T
	double *double
	addr   string
	log    *lockedBuffer
	leave  context.CancelFunc // as the server does before it shuts its listener
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newRig(t *testing.T, k kind, change func(*Config, *pace)) *rig {
	t.Helper()
	r := &rig{T: t, double: &double{changed: make(chan struct{}, 64)}, log: &lockedBuffer{}}
	cfg := Config{Token: testToken, OtherToken: otherToken, Version: "test", Roles: []string{"host"},
		HostFor: func(*http.Request) (sandboxd.Host, error) { return r.double, nil },
		Log:     slog.New(slog.NewTextHandler(r.log, nil))}
	if k == hostListener {
		cfg.Token, cfg.OtherToken = otherToken, testToken
	}
	p := defaultPace()
	if change != nil {
		change(&cfg, &p)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	srv := Server(r.addr, newFace(cfg, k, p))
	requests, leave := context.WithCancel(context.Background())
	r.leave = leave
	srv.BaseContext = func(net.Listener) context.Context { return requests }
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln)
	}()
	t.Cleanup(func() {
		leave()
		_ = srv.Close()
		<-served
	})
	return r
}

// answer is a response whose body was read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) envelope(t testing.TB) EnvelopeError {
	t.Helper()
	var env Envelope
	dec := json.NewDecoder(strings.NewReader(a.body))
	if err := dec.Decode(&env); err != nil || env.Err.Code == "" || env.Err.Message == "" {
		t.Fatalf("status %d, not an envelope (%v): %q", a.status, err, a.body)
	}
	return env.Err
}

// do sends a request as the listener's own caller; header lines are "Name: value".
func (r *rig) do(method, path, body string, header ...string) answer {
	r.Helper()
	req, err := http.NewRequest(method, "http://"+r.addr+path, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testToken)
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		if name == "Host" {
			req.Host = value
		} else if value == "" {
			req.Header.Del(name)
		} else {
			req.Header.Set(name, value)
		}
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(data)}
}

// await waits until ok, which is asked again whenever the double notes something.
func (r *rig) await(what string, ok func(*double) bool) {
	r.Helper()
	deadline := time.After(10 * time.Second)
	for {
		r.double.mu.Lock()
		good := ok(r.double)
		r.double.mu.Unlock()
		if good {
			return
		}
		select {
		case <-r.double.changed:
		case <-deadline:
			r.Fatalf("did not happen: %s", what)
		}
	}
}
