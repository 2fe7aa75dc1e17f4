package attack

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/test/server"
)

// death is one way for a command to end, and how that must be told.
type death struct {
	name   string
	spec   sandboxd.CommandSpec
	during func(t *testing.T, b *box, id string) // what happens to it meanwhile
	cause  sandboxd.Cause
	code   int // -1: not known
	signal string
	limit  string // part of the limit
	remedy string // part of the remedy; "" means there is none
	ends   bool   // the sandbox's environment ends too
	more   func(t *testing.T, got outcome)
}

func shell(text string) sandboxd.CommandSpec { return sandboxd.CommandSpec{Shell: text} }

func with(spec sandboxd.CommandSpec, change func(*sandboxd.CommandSpec)) sandboxd.CommandSpec {
	change(&spec)
	return spec
}

// timeout gives a command half a second.
func timeout(s *sandboxd.CommandSpec) { s.TimeoutS = seconds(0.5) }

// silence gives a command half a second without output.
func silence(s *sandboxd.CommandSpec) { s.NoOutputTimeoutS = 0.5 }

func memory(s *sandboxd.CommandSpec) { s.Limits.MemoryBytes = 64 << 20 }

func counted(t *testing.T, got outcome) {
	if got.ending.PeakBytes < 32<<20 || got.ending.PeakSource != "cgroup" {
		t.Errorf("the peak is %d by %q", got.ending.PeakBytes, got.ending.PeakSource)
	}
}

var deaths = []death{
	{name: "exit 0", spec: shell("exit 0"), cause: "exit", code: 0},
	{name: "exit 1", spec: shell("exit 1"), cause: "exit", code: 1},
	{name: "exit 3 after output", spec: shell("echo out; echo err >&2; exit 3"), cause: "exit", code: 3, more: func(t *testing.T, got outcome) {
		if got.stdout != "out\n" || got.stderr != "err\n" {
			t.Errorf("the output is %+v", got)
		}
	}},
	{name: "exit 255", spec: shell("exit 255"), cause: "exit", code: 255},
	{name: "exit 137 without a kill", spec: shell("exit 137"), cause: "exit", code: 137},
	{name: "exit 124 without a timeout", spec: shell("exit 124"), cause: "exit", code: 124},
	{name: "a shell finds no program", spec: shell("no-such-program"), cause: "exit", code: 127},
	{name: "a shell may not execute", spec: shell("/etc/passwd"), cause: "exit", code: 126},
	{name: "no such program", spec: sandboxd.CommandSpec{Argv: []string{"no-such-program"}}, cause: "start_failed", code: 127},
	{name: "not executable", spec: sandboxd.CommandSpec{Argv: []string{"/etc/passwd"}}, cause: "start_failed", code: 126},
	{name: "a directory", spec: sandboxd.CommandSpec{Argv: []string{"/workspace"}}, cause: "start_failed", code: 126},
	{name: "no such directory", spec: sandboxd.CommandSpec{Argv: []string{"true"}, Cwd: "nowhere"}, cause: "start_failed", code: -2},
	{name: "its own TERM", spec: shell("kill -TERM $$"), cause: "signal", code: 143, signal: "SIGTERM"},
	{name: "its own KILL is no want of memory", spec: shell("kill -KILL $$"), cause: "signal", code: 137, signal: "SIGKILL"},
	{name: "SEGV", spec: shell("kill -SEGV $$"), cause: "signal", code: 139, signal: "SIGSEGV"},
	{name: "ABRT", spec: shell("kill -ABRT $$"), cause: "signal", code: 134, signal: "SIGABRT"},
	{name: "timeout", spec: with(shell("sleep 1000"), timeout), cause: "timeout", code: 124, limit: "0.5 s", remedy: "timeout_s"},
	{name: "timeout of one that ignores TERM", spec: with(shell("trap '' TERM INT HUP; while :; do sleep 1; done"), timeout), cause: "timeout", code: 124, limit: "0.5 s", remedy: "timeout_s"},
	{name: "timeout of one that obeys TERM with 0", spec: with(shell("trap 'exit 0' TERM; while :; do sleep 0.1; done"), timeout), cause: "timeout", code: 124, limit: "0.5 s", remedy: "timeout_s"},
	{name: "a child that holds the pipe is not waited for", spec: shell("sleep 1000 & echo done"), cause: "exit", code: 0, more: func(t *testing.T, got outcome) {
		if got.ending.LeftBehind != 1 || got.ending.WallS > 2 {
			t.Errorf("the ending is %+v", got.ending)
		}
	}},
	{name: "timeout of one whose child holds the pipe", spec: with(shell("sleep 1000 & echo done"), func(s *sandboxd.CommandSpec) { timeout(s); s.Wait = sandboxd.WaitPipes }),
		cause: "timeout", code: 124, limit: "0.5 s", remedy: "timeout_s"},
	{name: "silence", spec: with(shell("echo a; sleep 1000"), silence), cause: "no_output", code: 124, limit: "0.5 s", remedy: "no_output_timeout_s"},
	{name: "no silence while it speaks", spec: with(shell("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done"), silence), cause: "exit", code: 0},
	{name: "memory of the leader", spec: with(sandboxd.CommandSpec{Argv: []string{"./intruder", "eat", "500"}}, memory), cause: "out_of_memory", code: 137, signal: "SIGKILL",
		limit: "67108864", remedy: "memory_bytes", more: counted},
	{name: "memory of the whole sandbox", spec: sandboxd.CommandSpec{Argv: []string{"./intruder", "eat", "2000"}}, cause: "out_of_memory", code: 137, signal: "SIGKILL",
		limit: "sandbox", remedy: "memory_bytes", more: counted},
	{name: "memory of a child, which the leader tells", spec: with(shell("./intruder eat 500; exit $?"), memory), cause: "out_of_memory", code: 137, limit: "67108864", remedy: "memory_bytes", more: counted},
	{name: "memory of a child, which the leader survives", spec: with(shell("./intruder eat 500; echo survived"), memory), cause: "exit", code: 0},
	{name: "memory of a child, and then a failure of its own", spec: with(shell("./intruder eat 500; exit 4"), memory), cause: "exit", code: 4},
	{name: "no process left", spec: with(sandboxd.CommandSpec{Argv: []string{"./intruder", "fork"}}, func(s *sandboxd.CommandSpec) { s.Limits.PIDs = 30 }), cause: "process_limit", code: 1,
		limit: "30", remedy: "limits.pids"},
	{name: "no process left, and well all the same", spec: with(shell("./intruder fork; exit 0"), func(s *sandboxd.CommandSpec) { s.Limits.PIDs = 30 }), cause: "exit", code: 0},
	{name: "a stop", spec: shell("sleep 1000"), during: stopIt, cause: "stopped", code: 143, signal: "SIGTERM"},
	{name: "a stop of one that ignores TERM", spec: shell("trap '' TERM; echo up; while :; do sleep 1; done"), during: stopIt, cause: "stopped", code: 137, signal: "SIGKILL"},
	{name: "a signal of the caller", spec: shell("sleep 1000; echo no"), during: func(t *testing.T, b *box, id string) {
		if err := b.s.C.SignalCommand(context.Background(), b.id, id, "USR1"); err != nil {
			t.Error(err)
		}
	}, cause: "signal", code: 138, signal: "SIGUSR1"},
	{name: "one that another command kills", spec: shell("echo $$ >pid; exec sleep 1000"), during: func(t *testing.T, b *box, _ string) {
		server.Until(t, "its number is known", 5*time.Second, func() bool {
			return b.shell("test -s pid").ending.Signal == "" && b.shell("kill -9 $(cat pid)").stderr == ""
		})
	}, cause: "signal", code: 137, signal: "SIGKILL"},
	{name: "the server is killed, and the command ends meanwhile", spec: shell("echo one; sleep 1; echo two; exit 5"), during: restart(1500 * time.Millisecond), cause: "exit", code: 5, more: func(t *testing.T, got outcome) {
		if got.stdout != "one\ntwo\n" {
			t.Errorf("the output is %q", got.stdout)
		}
	}},
	{name: "the server is killed, and the command goes on", spec: shell("echo one; sleep 2; echo two; kill -9 $$"), during: restart(0), cause: "signal", code: 137, signal: "SIGKILL", more: func(t *testing.T, got outcome) {
		if got.stdout != "one\ntwo\n" {
			t.Errorf("the output is %q", got.stdout)
		}
	}},
	{name: "the time is over while there is no server", spec: with(shell("echo one; sleep 1000"), timeout), during: restart(time.Second), cause: "timeout", code: 124, limit: "0.5 s", remedy: "timeout_s"},
	{name: "memory, after the server was killed", spec: with(shell("sleep 1; exec ./intruder eat 500"), memory), during: restart(0), cause: "out_of_memory", code: 137, signal: "SIGKILL", limit: "67108864",
		remedy: "memory_bytes", more: counted},
	{name: "the sandbox is stopped under it", spec: shell("echo up; sleep 1000"), during: func(t *testing.T, b *box, _ string) {
		if _, err := b.s.C.Stop(context.Background(), b.id); err != nil {
			t.Error(err)
		}
	}, cause: "stopped", code: 137, signal: "SIGKILL", ends: true},
	{name: "the init is killed under it", spec: shell("echo up; sleep 1000"), during: func(t *testing.T, b *box, _ string) {
		for _, pid := range server.Processes(b.id) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the first takes the others with it
		}
	}, cause: "environment", code: -1, remedy: "start", ends: true},
}

func stopIt(t *testing.T, b *box, id string) {
	began := time.Now()
	if _, err := b.s.C.StopCommand(context.Background(), b.id, id, 0.3); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the stop took %v", took)
	}
}

// restart kills the server and starts it again after a while.
func restart(after time.Duration) func(*testing.T, *box, string) {
	return func(t *testing.T, b *box, _ string) {
		b.s.Kill()
		timer := time.NewTimer(after)
		<-timer.C
		b.s.Start()
	}
}

func TestDeaths(t *testing.T) {
	long(t)
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	for _, d := range deaths {
		t.Run(strings.ReplaceAll(d.name, " ", "-"), func(t *testing.T) {
			spec := d.spec
			spec.Background = true
			id := b.begin(spec)
			if d.during != nil {
				if strings.Contains(spec.Shell, "echo up") {
					b.says(id, "up")
				}
				if strings.Contains(spec.Shell, "echo one") {
					b.says(id, "one")
				}
				d.during(t, b, id)
			}
			got := b.wait(id)
			e := got.ending
			code := -1
			if e.ExitCode != nil {
				code = *e.ExitCode
			}
			if e.Cause != d.cause || code != d.code && d.code != -2 || e.Signal != d.signal && d.cause != sandboxd.CauseTimeout && d.cause != sandboxd.CauseNoOutput {
				t.Errorf("it ended by %q with %d and signal %q, want %q, %d, %q (%s)", e.Cause, code, e.Signal, d.cause, d.code, d.signal, e.Message)
			}
			if !strings.Contains(e.Limit, d.limit) || d.limit == "" && e.Limit != "" {
				t.Errorf("the limit is %q, want %q", e.Limit, d.limit)
			}
			if !strings.Contains(e.Remedy, d.remedy) || d.remedy == "" && e.Remedy != "" {
				t.Errorf("the remedy is %q, want %q", e.Remedy, d.remedy)
			}
			if e.At.IsZero() || e.WallS <= 0 || e.WallS > 20 {
				t.Errorf("it ended at %v after %v s", e.At, e.WallS)
			}
			if d.more != nil {
				d.more(t, got)
			}
			// It is told the same way to whoever asks later.
			server.Until(t, "the ending is in the command's description", 2*time.Second, func() bool {
				cmd, err := s.C.GetCommand(context.Background(), b.id, id)
				return err == nil && cmd.Ending != nil
			})
			if cmd, err := s.C.GetCommand(context.Background(), b.id, id); err != nil || cmd.Ending == nil || cmd.Ending.Cause != e.Cause {
				t.Errorf("later it is told as %+v, %v", cmd.Ending, err)
			}
			switch sb, err := s.C.Get(context.Background(), b.id); {
			case err != nil:
				t.Error(err)
			case !d.ends && sb.State != sandboxd.StateRunning:
				t.Errorf("the sandbox is %s, and ended with %+v", sb.State, sb.LastEnding)
			}
		})
	}
}

// A delete is the end of its commands too: followers are told, and nothing runs on.
func TestDeletedUnderACommand(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	id := b.begin(sandboxd.CommandSpec{Shell: "echo up; setsid sleep 1000 & sleep 1000", Background: true})
	b.says(id, "up")
	stream, err := s.C.FollowCommand(context.Background(), b.id, id, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := s.C.Delete(context.Background(), b.id); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		frame, err := stream.Next(ctx)
		if err != nil {
			t.Fatalf("the follower was told %v", err)
		}
		if frame.Ending != nil {
			if frame.Ending.Cause != sandboxd.CauseStopped {
				t.Errorf("the follower was told %+v", frame.Ending)
			}
			break
		}
	}
	if _, err := s.C.GetCommand(context.Background(), b.id, id); sandboxd.ClassOf(err) != sandboxd.ClassGone {
		t.Errorf("asked later: %v", err)
	}
	server.Until(t, "its processes are gone", 5*time.Second, func() bool { return len(server.Processes(b.id)) == 0 })
}

// Whatever a command made itself look like, a timeout and a stop leave nothing of
// it, and nothing of another command is touched.
func TestNothingIsLeftOfACommand(t *testing.T) {
	long(t)
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{})
	before := len(server.Processes(b.id))
	bystander := b.begin(sandboxd.CommandSpec{Argv: []string{"sleep", "2000"}, Background: true})
	const tree = `trap '' TERM; setsid sh -c 'trap "" TERM HUP; (setsid sh -c "trap \"\" TERM HUP INT; sleep 1000; sleep 1000" &) ; setsid sleep 1000 & nohup sleep 1000 >/dev/null 2>&1 </dev/null & exit' &
		(sh -c 'sleep 1000 & kill -STOP $$; sleep 1000' &); i=0; while [ $i -lt 150 ]; do sleep 1000 & i=$((i+1)); done; echo up; sleep 1000`
	for _, way := range []string{"timeout", "stop", "stop without grace"} {
		spec := sandboxd.CommandSpec{Shell: tree, Background: true}
		if way == "timeout" {
			spec.TimeoutS = seconds(1.5)
		}
		id := b.begin(spec)
		b.says(id, "up")
		server.Until(t, "the tree is there", 5*time.Second, func() bool { return len(server.Processes(b.id)) > before+150 })
		began := time.Now()
		switch way {
		case "timeout":
			got := b.wait(id)
			if got.ending.Cause != sandboxd.CauseTimeout || got.ending.WallS > 5 {
				t.Errorf("it ended with %+v", got.ending)
			}
			began = time.Now()
		case "stop":
			stopIt(t, b, id)
		default:
			b.stop(id)
		}
		server.Until(t, way+": only the bystander is left", 2*time.Second, func() bool { return len(server.Processes(b.id)) == before+1 })
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: the last of them ended after %v", way, took)
		}
		if cmd, err := s.C.GetCommand(context.Background(), b.id, id); err != nil || cmd.Ending == nil || cmd.Ending.LeftBehind != 0 {
			t.Errorf("%s: the ending is %+v, %v", way, cmd.Ending, err)
		}
	}
	if cmd, err := s.C.GetCommand(context.Background(), b.id, bystander); err != nil || cmd.Ending != nil {
		t.Errorf("the bystander: %+v, %v", cmd, err)
	}
}

// What a command left behind when it ended goes with a stop of it, too: otherwise
// a fork bomb whose first process gave up could be ended only with the sandbox.
func TestAStopEndsWhatWasLeftBehind(t *testing.T) {
	s := serve(t)
	b := s.open(sandboxd.OpenRequest{Limits: sandboxd.Limits{PIDs: 64}})
	before := len(server.Processes(b.id))
	for _, text := range []string{"setsid sleep 1000 & exit 0", "while :; do setsid sleep 1000 & done"} {
		id := b.begin(sandboxd.CommandSpec{Shell: text, Background: true})
		if got := b.wait(id); got.ending.LeftBehind == 0 {
			t.Errorf("%s: left behind is not told: %+v", text, got.ending)
		}
		b.stop(id)
		server.Until(t, "a stop ends what was left behind", 2*time.Second, func() bool { return len(server.Processes(b.id)) == before })
	}
}
