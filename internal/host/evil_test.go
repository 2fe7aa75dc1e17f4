package host_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/internal/driver/fake"
	"sandboxd/internal/driver/process"
	"sandboxd/internal/guest/wire"
	"sandboxd/internal/host"
	"sandboxd/internal/leaktest"
	"sandboxd/internal/store"
)

// behaviours are what an init does that does what it likes.
var behaviours = map[string]func(*evilInit){"breaks the rules": breaksRules, "claims foreign commands": claims, "makes noise": noise, "floods": floods}

// Such an init is a process of its own, as every init is: this test's binary, with a
// connection to the host and its secret.
const (
	behaviourEnv = "SANDBOXD_TEST_EVIL_INIT"
	secretEnv    = "SANDBOXD_TEST_EVIL_SECRET"
	linkFD       = 3
)

func init() {
	behave := behaviours[os.Getenv(behaviourEnv)]
	if behave == nil {
		return
	}
	conn, err := net.FileConn(os.NewFile(linkFD, "link"))
	if err != nil {
		panic(err)
	}
	behave(&evilInit{conn: conn, r: wire.NewReader(conn), secret: os.Getenv(secretEnv)})
	os.Exit(0)
}

// hostile is a driver whose environments have such an init.
type hostile struct {
	sandboxd.Driver
	behaviour string

	mu      sync.Mutex
	secrets map[string]string
	links   atomic.Int64
}

func (d *hostile) Start(ctx context.Context, spec sandboxd.EnvironmentSpec) (sandboxd.Handle, error) {
	d.mu.Lock()
	d.secrets[spec.ID] = spec.Nonce
	d.mu.Unlock()
	return d.Driver.Start(ctx, spec)
}

func (d *hostile) Connect(_ context.Context, id string) (io.ReadWriteCloser, error) {
	d.mu.Lock()
	secret := d.secrets[id]
	d.mu.Unlock()
	behaviour := d.behaviour
	if d.links.Add(1) == 1 && behaviour == "makes noise" {
		behaviour = "breaks the rules" // so that there is a sandbox
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(ends[1]), "their end")
	defer theirs.Close()
	mine := os.NewFile(uintptr(ends[0]), "our end")
	defer mine.Close()
	conn, err := net.FileConn(mine)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{behaviourEnv + "=" + behaviour, secretEnv + "=" + secret}
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // it ends with the connection
	return conn, nil
}

// evilInit is one connection of such an init.
type evilInit struct {
	conn   net.Conn
	r      *wire.Reader
	w      *wire.Writer
	secret string
}

// greet answers the host's first frame honestly but for the commands it claims.
func (e *evilInit) greet(claims ...string) bool {
	f, err := e.r.Next()
	if err != nil {
		return false
	}
	e.w = wire.NewWriter(e.conn, f.Nonce)
	ack, err := json.Marshal(wire.SyncAck{Version: 1, Proof: wire.Proof(e.secret, wire.SideInit, f.Nonce)})
	if err != nil {
		return false
	}
	frames := []wire.Frame{{Type: wire.TypeSyncAck, Payload: ack}}
	for i, id := range claims {
		frames = append(frames, wire.Frame{Type: wire.TypeKnown, Number: uint32(i + 1), Payload: wire.AppendKnown(nil, wire.Known{ID: id})})
	}
	return e.w.SendAll(append(frames, wire.Frame{Type: wire.TypeKnownEnd})...) == nil
}

// ignore takes what the host says, until the link ends.
func (e *evilInit) ignore() {
	for {
		if _, err := e.r.Next(); err != nil {
			return
		}
	}
}

// breaksRules makes a link and breaks it at once, again and again.
func breaksRules(e *evilInit) {
	if e.greet() {
		go e.ignore()
		_ = e.w.Send(wire.Frame{Type: wire.TypeOutput, Flags: wire.TagStdout, Number: 77, Payload: []byte("x")})
	}
}

// claims says that it runs thousands of commands of others, and goes on as breaksRules.
func claims(e *evilInit) {
	ids := make([]string, 1000)
	for i := range ids {
		ids[i] = sandboxd.NewID()
	}
	if e.greet(ids...) {
		go e.ignore()
		for {
			if e.w.Send(wire.Frame{Type: wire.TypeService, Number: 1, Payload: []byte("none")}) != nil {
				return
			}
		}
	}
}

// noise only writes what is no frame.
func noise(e *evilInit) {
	go e.ignore()
	block := make([]byte, 64<<10)
	for i := range block {
		block[i] = byte(i * 7)
	}
	for {
		if _, err := e.conn.Write(block); err != nil {
			return
		}
	}
}

// floods writes the output of each command as fast as the rules let it.
func floods(e *evilInit) {
	if !e.greet() {
		return
	}
	const window, piece = 256 << 10, 32 << 10
	type flow struct{ at, acked uint64 }
	flows := map[uint32]*flow{}
	payload := make([]byte, piece)
	for {
		f, err := e.r.Next()
		if err != nil {
			return
		}
		var frames []wire.Frame
		switch f.Type {
		case wire.TypeStart:
			flows[f.Number] = &flow{}
			frames = append(frames, wire.Frame{Type: wire.TypeStarted, Number: f.Number})
		case wire.TypeAck:
			if flows[f.Number] != nil {
				flows[f.Number].acked = f.Arg
			}
		}
		for number, flow := range flows {
			for flow.at+piece <= flow.acked+window {
				frames = append(frames, wire.Frame{Type: wire.TypeOutput, Flags: wire.TagStdout, Number: number, Arg: flow.at, Payload: payload})
				flow.at += piece
			}
		}
		if len(frames) > 0 && e.w.SendAll(frames...) != nil {
			return
		}
	}
}

// evilTime is how long each init is at it: a quarter of SANDBOXD_TEST_EVIL seconds.
func evilTime(t *testing.T) time.Duration {
	t.Helper()
	seconds := 8.0
	if text := os.Getenv("SANDBOXD_TEST_EVIL"); text != "" {
		var err error
		if seconds, err = strconv.ParseFloat(text, 64); err != nil {
			t.Fatal(err)
		}
	}
	return time.Duration(seconds / 4 * float64(time.Second))
}

// jitter is what a sample may be without saying anything: one turn of the Go
// scheduler. An init that floods within the rules, as any program may, has a busy
// thread of its own and one of the host's at times: there the turns are the kernel's.
func jitter(behaviour string) time.Duration {
	if behaviour == "floods" {
		return 25 * time.Millisecond
	}
	return 10 * time.Millisecond
}

// TestEvilInitsHurtNobodyElse: whatever an init does to its link, the host's memory
// stays where it was and a neighbour's commands take what they took.
func TestEvilInitsHurtNobodyElse(t *testing.T) {
	captest.Root(t)
	if testing.Short() {
		captest.Need(t, "patience", false, "not in the short run: make test")
	}
	for _, behaviour := range slices.Sorted(maps.Keys(behaviours)) {
		t.Run(behaviour, func(t *testing.T) {
			evil := &hostile{Driver: fake.New(fake.NewWorld(fake.Config{})), behaviour: behaviour, secrets: map[string]string{}}
			h := evilHost(t, evil)
			quiet := opened(t, h, "process")
			tempo(t, h, quiet, 300*time.Millisecond) // warm
			idle := tempo(t, h, quiet, evilTime(t)/2)
			before := heapInUse()

			id := opened(t, h, "fake")
			if behaviour == "floods" {
				if _, _, err := h.StartCommand(t.Context(), id, sandboxd.CommandSpec{Argv: []string{"flood"}, Background: true, OutputLimit: 4 << 20}); err != nil {
					t.Fatal(err)
				}
			}
			// A machine that also does other things jitters: what is too slow again and
			// again fails.
			for try := 1; ; try++ {
				p99 := tempo(t, h, quiet, evilTime(t))
				grown := heapInUse() - before
				t.Logf("%d links; the neighbour's p99 is %v, idle %v; the host grew by %d KiB", evil.links.Load(), p99, idle, grown>>10)
				if grown > 8<<20 {
					t.Errorf("the host's memory grew by %d bytes", grown)
				}
				if p99 <= 2*idle || p99 <= jitter(behaviour) {
					break
				}
				if try == 4 {
					t.Errorf("the neighbour's p99 is %v, idle %v", p99, idle)
					break
				}
			}
		})
	}
}

func evilHost(t *testing.T, evil *hostile) *host.Host {
	t.Helper()
	dir := t.TempDir()
	leaktest.Sandboxes(dir)
	honest, err := process.New(process.Config{DataDir: dir, RunDir: filepath.Join(dir, "run")})
	if err != nil {
		t.Fatal(err)
	}
	found := honest.Fingerprint(t.Context())
	captest.Need(t, "process", found.Works, found.Reason)
	db, err := store.OpenSQLite(context.Background(), filepath.Join(dir, "host.db"))
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(context.Background(), host.Config{DataDir: dir, Store: db, Drivers: []sandboxd.Driver{honest, evil}, UIDs: sandboxd.UIDPool{First: 230000, Last: 230999}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.StopAll(context.Background()); err != nil {
			t.Errorf("stop all: %v", err)
		}
		for _, close := range []func() error{h.Close, honest.Close, evil.Close, db.Close} {
			if err := close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return h
}

func opened(t *testing.T, h *host.Host, driver string) string {
	t.Helper()
	sb, _, err := h.Open(t.Context(), sandboxd.OpenRequest{Driver: driver})
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID
}

// tempo runs a small command again and again, for so long and 30 times at least, and
// answers the 99th percentile of what it took.
func tempo(t *testing.T, h *host.Host, id string, d time.Duration) time.Duration {
	t.Helper()
	var took []time.Duration
	for began := time.Now(); time.Since(began) < d || len(took) < 30; {
		start := time.Now()
		cmd, _, err := h.StartCommand(t.Context(), id, sandboxd.CommandSpec{Argv: []string{"true"}, Background: true})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := h.FollowCommand(t.Context(), id, cmd.ID, sandboxd.FollowOptions{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		frame, err := stream.Next(t.Context())
		if err != nil || frame.Ending == nil || frame.Ending.Cause != sandboxd.CauseExit {
			t.Fatalf("the quiet sandbox: %+v, %v", frame, err)
		}
		took = append(took, time.Since(start))
		if err := stream.Close(); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
