// Package crash ends the server with kill -9 while it works and looks whether
// anything that it acknowledged is lost: at every named point between two durable
// steps, and at random moments. The server is this test's own binary, run as
// `serve` on the process driver, so that a point can be armed without a switch in
// the product.
package crash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/app"
	"sandboxd/internal/captest"
	"sandboxd/internal/failpoint"
	"sandboxd/test/server"
)

const (
	childEnv = "CRASH_TEST_SERVER"
	pointEnv = "CRASH_TEST_POINT"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(server.Main(m))
	}
	if point := os.Getenv(pointEnv); point != "" {
		failpoint.Arm(func(name string) {
			if name == point {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // nothing after the point may run
			}
		})
	}
	os.Exit(app.Main(context.Background(), app.Process{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ()}))
}

// child is this test's own binary as a server.
var child = server.Options{Program: "/proc/self/exe", Args: []string{"--max-sandboxes", "200"}, Ready: 8, Env: append(os.Environ(), childEnv+"=1", pointEnv+"=")}

// start runs the server, which dies at a point unless that is "".
func start(s *server.Instance, point string) {
	s.Env = append(slices.Clone(s.Env), pointEnv+"="+point)
	s.Start()
}

// ledger is what a client was told, and so what must hold after a crash.
type ledger struct {
	mu      sync.Mutex
	files   map[string]map[string]string // sandbox -> path -> acknowledged hash
	writing map[string]map[string]string // the same for a write that was not answered
	running map[string]int64             // sandbox -> acknowledged generation
	deleted map[string]bool
	unsure  map[string]bool                     // sandboxes with an unanswered lifecycle operation
	output  map[string]map[string]*bytes.Buffer // sandbox -> command -> bytes seen
}

func newLedger() *ledger {
	return &ledger{
		files: map[string]map[string]string{}, writing: map[string]map[string]string{}, running: map[string]int64{},
		deleted: map[string]bool{}, unsure: map[string]bool{}, output: map[string]map[string]*bytes.Buffer{},
	}
}

func hash(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:]) }

// counterLines is the output that a counting command has after n lines.
func counterLines(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.Bytes()
}

// work runs a mix of opens, writes, commands and deletes until the server is gone
// or rounds are done, which it says, and notes what was acknowledged.
func (l *ledger) work(ctx context.Context, c *client.Client, name string, rounds int) bool {
	for i := range rounds {
		if !l.round(ctx, c, fmt.Sprintf("%s-%d", name, i), i) {
			return false
		}
	}
	return true
}

func (l *ledger) round(ctx context.Context, c *client.Client, key string, i int) bool {
	sb, _, err := c.Open(ctx, sandboxd.OpenRequest{Key: key})
	if err != nil {
		return false
	}
	l.mu.Lock()
	l.running[sb.ID] = sb.Generation
	l.files[sb.ID], l.writing[sb.ID] = map[string]string{}, map[string]string{}
	l.output[sb.ID] = map[string]*bytes.Buffer{}
	l.mu.Unlock()
	f, err := c.Files(ctx, sb.ID)
	if err != nil {
		return false
	}
	for n := range 3 {
		body := bytes.Repeat([]byte(fmt.Sprintf("%s %d %d|", key, i, n)), 1000)
		path := fmt.Sprintf("dir/file-%d", n%2) // the third replaces the first
		l.mu.Lock()
		l.writing[sb.ID][path] = hash(body)
		l.mu.Unlock()
		if _, err := f.Write(ctx, path, bytes.NewReader(body), sandboxd.WriteOptions{Size: int64(len(body))}); err != nil {
			return false
		}
		l.mu.Lock()
		l.files[sb.ID][path] = hash(body)
		l.mu.Unlock()
	}
	cmd, _, err := c.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{
		ID: "count", Background: true,
		Shell: `i=0; while [ $i -lt 40 ]; do echo "line $i"; i=$((i+1)); sleep 0.01; done; sleep 3600`,
	})
	if err != nil {
		return false
	}
	seen := &bytes.Buffer{}
	l.mu.Lock()
	l.output[sb.ID][cmd.ID] = seen
	l.mu.Unlock()
	l.follow(ctx, c, sb.ID, cmd.ID, seen, 10)
	if _, _, err := c.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{ID: "brief", Background: true, Argv: []string{"sleep", "3600"}}); err != nil {
		return false
	}
	if _, err := c.StopCommand(ctx, sb.ID, "brief", 0.1); err != nil {
		return false
	}
	switch i % 3 {
	case 1:
		l.mu.Lock()
		l.unsure[sb.ID] = true
		l.mu.Unlock()
		if _, err := c.Stop(ctx, sb.ID); err != nil {
			return false
		}
		l.mu.Lock()
		delete(l.unsure, sb.ID)
		delete(l.running, sb.ID)
		l.mu.Unlock()
	case 2:
		l.mu.Lock()
		l.unsure[sb.ID] = true
		l.mu.Unlock()
		if err := c.Delete(ctx, sb.ID); err != nil {
			return false
		}
		l.mu.Lock()
		l.deleted[sb.ID] = true
		l.mu.Unlock()
	}
	return true
}

// follow reads until it saw so many lines, or the stream breaks.
func (l *ledger) follow(ctx context.Context, c *client.Client, id, cmd string, into *bytes.Buffer, lines int) {
	s, err := c.FollowCommand(ctx, id, cmd, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		return
	}
	defer s.Close()
	for {
		frame, err := s.Next(ctx)
		if err != nil {
			return
		}
		l.mu.Lock()
		into.Write(frame.Data)
		n := bytes.Count(into.Bytes(), []byte("\n"))
		l.mu.Unlock()
		if n >= lines {
			return
		}
	}
}

// check compares a healthy server with the ledger.
func (l *ledger) check(t *testing.T, s *server.Instance) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ctx := s.Client(), t.Context()
	for id, files := range l.files {
		if l.deleted[id] {
			if _, err := c.Get(ctx, id); sandboxd.ClassOf(err) != sandboxd.ClassGone {
				t.Errorf("sandbox %s was deleted and answers %v", id, err)
			}
			continue
		}
		sb, err := c.Get(ctx, id)
		if l.unsure[id] {
			if err != nil {
				continue // the delete that was not answered was accepted
			}
		} else if err != nil {
			t.Errorf("sandbox %s is lost: %v", id, err)
			continue
		}
		l.checkFiles(t, c, id, files)
		if gen, ok := l.running[id]; ok && !l.unsure[id] {
			if sb.State != sandboxd.StateRunning || sb.Generation != gen {
				t.Errorf("sandbox %s was running in generation %d and is %s in %d: %+v", id, gen, sb.State, sb.Generation, sb.LastEnding)
				continue
			}
			l.checkOutput(t, c, id)
		}
	}
}

func (l *ledger) checkFiles(t *testing.T, c *client.Client, id string, files map[string]string) {
	t.Helper()
	f, err := c.Files(t.Context(), id)
	if err != nil {
		t.Errorf("files of %s: %v", id, err)
		return
	}
	for path, want := range files {
		r, err := f.Open(t.Context(), path)
		if err != nil {
			t.Errorf("acknowledged file %s of %s: %v", path, id, err)
			continue
		}
		body, err := io.ReadAll(r)
		r.Close()
		// A write that was under way may have happened or not, but whole.
		if got := hash(body); err != nil || (got != want && got != l.writing[id][path]) {
			t.Errorf("acknowledged file %s of %s has other content (%d bytes, %v)", path, id, len(body), err)
		}
	}
}

// checkOutput reads a surviving command's whole output: it must begin with what
// was seen and be exactly what a counter writes.
func (l *ledger) checkOutput(t *testing.T, c *client.Client, id string) {
	t.Helper()
	for cmd, seen := range l.output[id] {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		got := &bytes.Buffer{}
		s, err := c.FollowCommand(ctx, id, cmd, sandboxd.FollowOptions{Follow: true})
		if err != nil {
			t.Errorf("output of %s in %s: %v", cmd, id, err)
			cancel()
			continue
		}
		want := counterLines(40)
		for got.Len() < len(want) {
			frame, err := s.Next(ctx)
			if err != nil {
				t.Errorf("output of %s in %s broke after %d bytes: %v", cmd, id, got.Len(), err)
				break
			}
			if frame.Ending != nil {
				t.Errorf("command %s in %s ended: %+v", cmd, id, frame.Ending)
				break
			}
			got.Write(frame.Data)
		}
		s.Close()
		cancel()
		if !bytes.HasPrefix(got.Bytes(), seen.Bytes()) || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("output of %s in %s: %d bytes seen before, %d now, not the same", cmd, id, seen.Len(), got.Len())
		}
	}
}

// reach works until the server has ended at the point: again where it takes time to get
// there, as until an environment is ready.
func (l *ledger) reach(t *testing.T, s *server.Instance, point string, size int) {
	t.Helper()
	began := time.Now()
	for round := 0; time.Since(began) < time.Minute; round++ {
		if l.work(t.Context(), s.Client(), fmt.Sprintf("mix%d-", round), size) {
			continue
		}
		select {
		case <-s.Done():
			return
		case <-time.After(20 * time.Second):
			t.Fatalf("the mix was refused and never reached %s", point)
		}
	}
	t.Fatalf("the mix never reached %s", point)
}

// TestEveryPoint ends the server at each named point once, and fails for a point
// that the mix never reaches.
func TestEveryPoint(t *testing.T) {
	captest.Root(t)
	for _, point := range failpoint.All() {
		if strings.HasPrefix(point, "docker.") || strings.HasPrefix(point, preparePoints) || strings.HasPrefix(point, imagePoints) {
			continue // TestEveryPointOfContainers, TestEveryPointOfAPreparation, TestEveryPointOfAnImage
		}
		t.Run(point, func(t *testing.T) {
			s := server.New(t, child)
			start(s, "")
			l := newLedger()
			l.work(t.Context(), s.Client(), "before", 1)
			s.Kill()
			start(s, point)
			l.reach(t, s, point, 3)
			start(s, "")
			l.check(t, s)
		})
	}
}

// TestEndingsAtEveryPoint ends the server at each point of a command's life and wants
// the next one to tell how the command ended.
func TestEndingsAtEveryPoint(t *testing.T) {
	captest.Root(t)
	for _, point := range failpoint.All() {
		if !strings.HasPrefix(point, "command.") || point == "command.intended" {
			continue
		}
		t.Run(point, func(t *testing.T) {
			s := server.New(t, child)
			start(s, "")
			sb, _, err := s.C.Open(t.Context(), sandboxd.OpenRequest{})
			if err != nil {
				t.Fatal(err)
			}
			s.Kill()
			start(s, point)
			// The answer is lost with the server, or it died after it.
			_, _, _ = s.C.StartCommand(t.Context(), sb.ID, sandboxd.CommandSpec{ID: "dies", Shell: "exit 7", Background: true})
			select {
			case <-s.Done():
			case <-time.After(20 * time.Second):
				t.Fatalf("the command never reached %s", point)
			}
			start(s, "")
			var cmd sandboxd.Command
			s.Until("the command has an ending", 10*time.Second, func() bool {
				cmd, err = s.C.GetCommand(t.Context(), sb.ID, "dies")
				return err == nil && cmd.Ending != nil
			})
			code := -1
			if cmd.Ending.ExitCode != nil {
				code = *cmd.Ending.ExitCode
			}
			// Recorded only, it never ran, which is said; from then on it did.
			if point == "command.recorded" {
				if cmd.Ending.Cause != sandboxd.CauseStartFailed || code != -1 {
					t.Errorf("it is told as %+v", cmd.Ending)
				}
			} else if cmd.Ending.Cause != sandboxd.CauseExit || code != 7 {
				t.Errorf("it is told as %+v", cmd.Ending)
			}
		})
	}
}

// TestIntentOutlivesTheServer ends the server between its decision to end a command
// and doing so: the next one does it, and tells whose doing it was.
func TestIntentOutlivesTheServer(t *testing.T) {
	captest.Root(t)
	const obeys, ignores = `trap "exit 9" TERM; while :; do sleep 0.05; done`, `trap "" TERM; while :; do sleep 0.05; done`
	for name, c := range map[string]struct {
		spec sandboxd.CommandSpec
		stop bool
		want sandboxd.Cause
	}{
		"stopped":       {sandboxd.CommandSpec{Shell: obeys}, true, sandboxd.CauseStopped},
		"stopped, deaf": {sandboxd.CommandSpec{Shell: ignores}, true, sandboxd.CauseStopped},
		"out of time":   {sandboxd.CommandSpec{Shell: obeys, TimeoutS: new(sandboxd.InSeconds(300 * time.Millisecond))}, false, sandboxd.CauseTimeout},
		"silent":        {sandboxd.CommandSpec{Shell: obeys, NoOutputTimeoutS: sandboxd.InSeconds(300 * time.Millisecond)}, false, sandboxd.CauseNoOutput},
	} {
		t.Run(name, func(t *testing.T) {
			s := server.New(t, child)
			start(s, "")
			sb, _, err := s.C.Open(t.Context(), sandboxd.OpenRequest{})
			if err != nil {
				t.Fatal(err)
			}
			s.Kill()
			start(s, "command.intended")
			c.spec.ID, c.spec.Background = "c", true
			if _, _, err := s.C.StartCommand(t.Context(), sb.ID, c.spec); err != nil {
				t.Fatal(err)
			}
			if c.stop {
				_, _ = s.C.StopCommand(t.Context(), sb.ID, "c", 1) // its answer is lost with the server
			}
			select {
			case <-s.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("nothing was intended")
			}
			start(s, "")
			var cmd sandboxd.Command
			s.Until("the command has an ending", 10*time.Second, func() bool {
				cmd, err = s.C.GetCommand(t.Context(), sb.ID, "c")
				return err == nil && cmd.Ending != nil
			})
			if cmd.Ending.Cause != c.want {
				t.Errorf("it is told as %+v", cmd.Ending)
			}
		})
	}
}

// randomKills is how many random kills TestRandom makes; each server dies once a
// round and is looked at after it.
const randomKills = 200

func TestRandom(t *testing.T) {
	captest.Root(t)
	kills := randomKills
	if testing.Short() {
		kills = 10
	}
	s := server.New(t, child)
	seed := time.Now().UnixNano()
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	t.Logf("seed %d", seed)
	start(s, "")
	for n := range kills {
		l := newLedger()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for worker := range 2 {
			c := s.Client()
			wg.Go(func() { l.work(ctx, c, fmt.Sprintf("r%d-%d", n, worker), 6) })
		}
		select {
		case <-time.After(time.Duration(5+rng.IntN(400)) * time.Millisecond):
		case <-s.Done():
			t.Fatalf("the server died by itself: %s", s.Log.Tail())
		}
		s.Kill()
		wg.Wait()
		cancel()
		start(s, "")
		l.check(t, s)
		if t.Failed() {
			t.Fatalf("after kill %d\n%s", n, s.Log.Tail())
		}
		s.DeleteAll()
	}
	t.Logf("%d random kills", kills)
}
