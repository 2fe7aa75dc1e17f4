package hosttest

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"

	"sandboxd"
)

var commandCases = []testCase{
	{name: "output and exit code", run: outputAndCode},
	{name: "offsets, from the middle and beyond the end", run: offsets},
	{name: "a follower sees output as it comes", run: followLive},
	{name: "a lot of output arrives whole", run: flood},
	{name: "an id starts one command", run: idempotentID},
	{name: "a bad command names the field", run: badCommand},
	{name: "environment and directory", run: environment},
	{name: "stdin, whole and in pieces", run: stdin},
	{name: "signal", run: signal},
	{name: "stop", run: stop},
	{name: "time runs out", run: timeouts},
	{name: "list and get commands", run: listCommands},
	{name: "a command starts a cold sandbox", run: startsCold},
	{name: "commands end with their environment", run: endWithEnvironment},
	{name: "many at once", run: manyAtOnce},
}

func outputAndCode(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	out := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("echo", "hello", "wörld")})
	s.exits(out, sandboxd.CauseExit, 0)
	if got := out.stdout.String(); got != "hello wörld\n" || out.stderr.Len() != 0 {
		s.Fatalf("stdout %q, stderr %q", got, &out.stderr)
	}
	out = s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("stderr", "oops")})
	s.exits(out, sandboxd.CauseExit, 0)
	if strings.TrimSpace(out.stderr.String()) != "oops" || out.stdout.Len() != 0 {
		s.Fatalf("stdout %q, stderr %q", &out.stdout, &out.stderr)
	}
	s.exits(s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("exit", "3")}), sandboxd.CauseExit, 3)
	out = s.run(sb.ID, sandboxd.CommandSpec{Argv: []string{"/nowhere/program-that-is-not"}})
	s.exits(out, sandboxd.CauseStartFailed, 127)
}

func offsets(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("echo", "0123456789")})
	all := s.finish(sb.ID, cmd)
	if all.next != 11 {
		s.Fatalf("%d bytes", all.next)
	}
	for _, follow := range []bool{true, false} {
		part := s.read(sb.ID, cmd.ID, sandboxd.FollowOptions{Offset: 4, Follow: follow})
		if part.stdout.String() != "456789\n" || part.ending == nil {
			s.Fatalf("follow %v: from 4 %q, ending %v", follow, &part.stdout, part.ending)
		}
		end := s.read(sb.ID, cmd.ID, sandboxd.FollowOptions{Offset: all.next, Follow: follow})
		if end.stdout.Len() != 0 || end.ending == nil {
			s.Fatalf("follow %v: at the end %q, ending %v", follow, &end.stdout, end.ending)
		}
		stream, err := s.host.FollowCommand(s.ctx, sb.ID, cmd.ID, sandboxd.FollowOptions{Offset: all.next + 1, Follow: follow})
		if err == nil {
			_, err = stream.Next(s.ctx)
			_ = stream.Close()
		}
		s.wants(err, sandboxd.ClassRange)
	}
	got, err := s.host.GetCommand(s.ctx, sb.ID, cmd.ID)
	s.must(err)
	if got.Offset != all.next || got.Ending == nil {
		s.Fatalf("%+v", got)
	}
}

func followLive(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("cat"), StdinOpen: true})
	stream, err := s.host.FollowCommand(s.ctx, sb.ID, cmd.ID, sandboxd.FollowOptions{Follow: true})
	s.must(err)
	defer stream.Close()
	var got bytes.Buffer
	for i := range 3 {
		piece := fmt.Sprintf("piece %d\n", i)
		s.must(s.host.WriteStdin(s.ctx, sb.ID, cmd.ID, []byte(piece), false))
		for want := got.Len() + len(piece); got.Len() < want; {
			f, err := stream.Next(s.ctx)
			s.must(err)
			got.Write(f.Data)
		}
	}
	if got.String() != "piece 0\npiece 1\npiece 2\n" {
		s.Fatalf("%q", &got)
	}
	idle := s.read(sb.ID, cmd.ID, sandboxd.FollowOptions{})
	if idle.stdout.String() != got.String() || idle.ending != nil {
		s.Fatalf("without follow %q, ending %v", &idle.stdout, idle.ending)
	}
	s.must(s.host.WriteStdin(s.ctx, sb.ID, cmd.ID, nil, true))
	for {
		f, err := stream.Next(s.ctx)
		s.must(err)
		if f.Ending != nil {
			break
		}
	}
	if _, err := stream.Next(s.ctx); err != io.EOF {
		s.Fatalf("after the ending: %v", err)
	}
}

func flood(s *suite) {
	const size = 8 << 20
	sb := s.open(sandboxd.OpenRequest{})
	out := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("flood", fmt.Sprint(size))})
	s.exits(out, sandboxd.CauseExit, 0)
	if out.stdout.Len() != size || out.next != size {
		s.Fatalf("%d bytes, last offset %d, want %d", out.stdout.Len(), out.next, size)
	}
}

func idempotentID(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	spec := sandboxd.CommandSpec{ID: "build.1", Argv: s.program("echo", "once")}
	first := s.start(sb.ID, spec)
	if first.ID != "build.1" || first.SandboxID != sb.ID || first.Generation != 1 {
		s.Fatalf("%+v", first)
	}
	s.finish(sb.ID, first)
	again, started, err := s.host.StartCommand(s.ctx, sb.ID, spec)
	s.must(err)
	if started || again.ID != first.ID || !again.StartedAt.Equal(first.StartedAt) || again.Ending == nil {
		s.Fatalf("started %v: %+v", started, again)
	}
	spec.Argv = s.program("echo", "twice")
	_, _, err = s.host.StartCommand(s.ctx, sb.ID, spec)
	s.wants(err, sandboxd.ClassConflict)

	other := s.open(sandboxd.OpenRequest{})
	s.start(other.ID, spec) // an id belongs to its sandbox

	spec = sandboxd.CommandSpec{ID: "race", Argv: s.program("echo", "race")}
	var wg sync.WaitGroup
	var mu sync.Mutex
	count := 0
	for range 16 {
		wg.Go(func() {
			_, started, err := s.host.StartCommand(s.ctx, sb.ID, spec)
			if err != nil {
				s.Errorf("start: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if started {
				count++
			}
		})
	}
	wg.Wait()
	if count != 1 {
		s.Fatalf("%d starts of one id", count)
	}
}

func badCommand(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	const canary = "canary-91cc"
	late := sandboxd.Seconds(-1)
	for _, tc := range []struct {
		field string
		spec  sandboxd.CommandSpec
	}{
		{"argv", sandboxd.CommandSpec{}},
		{"argv", sandboxd.CommandSpec{Argv: []string{canary}, Shell: canary}},
		{"argv", sandboxd.CommandSpec{Argv: []string{canary + "\x00"}}},
		{"command_id", sandboxd.CommandSpec{ID: "a/" + canary, Argv: s.program("pwd")}},
		{"env", sandboxd.CommandSpec{Argv: s.program("pwd"), Env: map[string]string{"": canary}}},
		{"cwd", sandboxd.CommandSpec{Argv: s.program("pwd"), Cwd: canary + "\x00"}},
		{"timeout_s", sandboxd.CommandSpec{Argv: s.program("pwd"), TimeoutS: &late}},
		{"wait", sandboxd.CommandSpec{Argv: s.program("pwd"), Wait: canary}},
	} {
		_, _, err := s.host.StartCommand(s.ctx, sb.ID, tc.spec)
		s.wants(err, sandboxd.ClassInvalid)
		if !strings.Contains(err.Error(), tc.field) || strings.Contains(err.Error(), canary) {
			s.Errorf("%s: the error is %q", tc.field, err)
		}
	}
	_, err := s.host.GetCommand(s.ctx, sb.ID, "never-was")
	s.wants(err, sandboxd.ClassNotFound)
	_, err = s.host.FollowCommand(s.ctx, sb.ID, "never-was", sandboxd.FollowOptions{})
	s.wants(err, sandboxd.ClassNotFound)
	_, err = s.host.StopCommand(s.ctx, sb.ID, "never-was", 1)
	s.wants(err, sandboxd.ClassNotFound)
}

func environment(s *suite) {
	sb := s.open(sandboxd.OpenRequest{Env: map[string]string{"BOTH": "sandbox", "OUTER": "1"}})
	out := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("env"), Env: map[string]string{"BOTH": "command", "INNER": "a b=c"}})
	lines := strings.Split(out.stdout.String(), "\n")
	for _, want := range []string{"BOTH=command", "OUTER=1", "INNER=a b=c", "HOME=" + sandboxd.HomeDir} {
		found := false
		for _, line := range lines {
			found = found || line == want
		}
		if !found {
			s.Errorf("%s is not in %q", want, lines)
		}
	}
	out = s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("pwd")})
	if got := strings.TrimSpace(out.stdout.String()); got != sandboxd.WorkDir {
		s.Errorf("runs in %q", got)
	}
	files, err := s.host.Files(s.ctx, sb.ID)
	s.must(err)
	s.must(files.Mkdir(s.ctx, "deep/er"))
	out = s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("pwd"), Cwd: "deep/er"})
	if got := strings.TrimSpace(out.stdout.String()); got != sandboxd.WorkDir+"/deep/er" {
		s.Errorf("runs in %q", got)
	}
}

func stdin(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	data := bytes.Repeat([]byte("all \x00 bytes \xff\n"), 10000)
	out := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("cat"), Stdin: data})
	s.exits(out, sandboxd.CauseExit, 0)
	if !bytes.Equal(out.stdout.Bytes(), data) {
		s.Fatalf("%d bytes came back of %d", out.stdout.Len(), len(data))
	}
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("cat"), Stdin: []byte("first "), StdinOpen: true})
	s.must(s.host.WriteStdin(s.ctx, sb.ID, cmd.ID, []byte("second "), false))
	s.must(s.host.WriteStdin(s.ctx, sb.ID, cmd.ID, []byte("third"), true))
	out = s.finish(sb.ID, cmd)
	if out.stdout.String() != "first second third" {
		s.Fatalf("%q", &out.stdout)
	}
	s.wants(s.host.WriteStdin(s.ctx, sb.ID, cmd.ID, []byte("late"), false), sandboxd.ClassConflict)
	s.wants(s.host.ResizeCommand(s.ctx, sb.ID, cmd.ID, sandboxd.TTY{Cols: 80, Rows: 24}), sandboxd.ClassInvalid, sandboxd.ClassConflict)
}

func signal(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	for name, code := range map[string]int{"TERM": 143, "SIGKILL": 137} {
		cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600")})
		s.must(s.host.SignalCommand(s.ctx, sb.ID, cmd.ID, name))
		out := s.finish(sb.ID, cmd)
		if out.ending.ExitCode == nil || *out.ending.ExitCode != code || "SIG"+strings.TrimPrefix(name, "SIG") != out.ending.Signal {
			s.Errorf("%s: %+v", name, *out.ending)
		}
	}
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600")})
	s.wants(s.host.SignalCommand(s.ctx, sb.ID, cmd.ID, "NOSUCH"), sandboxd.ClassInvalid)
}

func stop(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600"), Background: true})
	for range 2 {
		got, err := s.host.StopCommand(s.ctx, sb.ID, cmd.ID, 1)
		s.must(err)
		if got.Ending == nil || got.Ending.Cause != sandboxd.CauseStopped || got.Ending.LeftBehind != 0 {
			s.Fatalf("%+v", got.Ending)
		}
	}
	done := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("exit", "4")})
	s.finish(sb.ID, done)
	got, err := s.host.StopCommand(s.ctx, sb.ID, done.ID, 1)
	s.must(err)
	if got.Ending == nil || got.Ending.Cause != sandboxd.CauseExit {
		s.Fatalf("stopping an ended command changed its ending: %+v", got.Ending)
	}
}

func timeouts(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	short := sandboxd.Seconds(0.3)
	out := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600"), TimeoutS: &short})
	s.exits(out, sandboxd.CauseTimeout, 124)
	out = s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600"), NoOutputTimeoutS: short})
	if out.ending.Cause != sandboxd.CauseNoOutput {
		s.Fatalf("%+v", *out.ending)
	}
	out = s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600"), OrphanAfterS: 600, TimeoutS: &short})
	s.exits(out, sandboxd.CauseTimeout, 124)
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600"), OrphanAfterS: short})
	s.eventually("a command that nobody follows ends", func() bool {
		got, err := s.host.GetCommand(s.ctx, sb.ID, cmd.ID)
		s.must(err)
		return got.Ending != nil && got.Ending.Cause == sandboxd.CauseOrphaned
	})
}

func listCommands(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	none, err := s.host.ListCommands(s.ctx, sb.ID)
	s.must(err)
	if len(none) != 0 {
		s.Fatalf("%+v", none)
	}
	a := s.start(sb.ID, sandboxd.CommandSpec{ID: "a", Argv: s.program("sleep", "600"), Background: true})
	b := s.start(sb.ID, sandboxd.CommandSpec{ID: "b", Argv: s.program("echo", "hi")})
	s.finish(sb.ID, b)
	all, err := s.host.ListCommands(s.ctx, sb.ID)
	s.must(err)
	if len(all) != 2 || all[0].ID != a.ID || all[1].ID != b.ID {
		s.Fatalf("%+v", all)
	}
	if all[0].Ending != nil || all[1].Ending == nil || all[1].Offset != 3 {
		s.Fatalf("%+v", all)
	}
}

func startsCold(s *suite) {
	sb := s.open(sandboxd.OpenRequest{Start: cold()})
	out := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("echo", "awake")})
	s.exits(out, sandboxd.CauseExit, 0)
	got, err := s.host.Get(s.ctx, sb.ID)
	s.must(err)
	if got.State != sandboxd.StateRunning || got.Generation != 1 {
		s.Fatalf("%+v", got)
	}
}

func endWithEnvironment(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	cmd := s.start(sb.ID, sandboxd.CommandSpec{Argv: s.program("sleep", "600"), Background: true})
	_, err := s.host.Stop(s.ctx, sb.ID)
	s.must(err)
	out := s.finish(sb.ID, cmd)
	if c := out.ending.Cause; c != sandboxd.CauseEnvironment && c != sandboxd.CauseStopped {
		s.Fatalf("%+v", *out.ending)
	}
	all, err := s.host.ListCommands(s.ctx, sb.ID)
	s.must(err)
	if len(all) != 1 || all[0].Ending == nil {
		s.Fatalf("%+v", all)
	}
}

func manyAtOnce(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	files, err := s.host.Files(s.ctx, sb.ID)
	s.must(err)
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			text := fmt.Sprintf("number %d", i)
			switch i % 3 {
			case 0:
				cmd, _, err := s.host.StartCommand(s.ctx, sb.ID, sandboxd.CommandSpec{Argv: s.program("echo", text)})
				if err != nil {
					s.Errorf("start: %v", err)
					return
				}
				stream, err := s.host.FollowCommand(s.ctx, sb.ID, cmd.ID, sandboxd.FollowOptions{Follow: true})
				if err != nil {
					s.Errorf("follow: %v", err)
					return
				}
				defer stream.Close()
				var got bytes.Buffer
				for {
					f, err := stream.Next(s.ctx)
					if err != nil {
						if err != io.EOF || got.String() != text+"\n" {
							s.Errorf("%q, %v", &got, err)
						}
						return
					}
					got.Write(f.Data)
				}
			case 1:
				name := fmt.Sprintf("f%d", i)
				if _, err := files.Write(s.ctx, name, strings.NewReader(text), sandboxd.WriteOptions{Size: int64(len(text))}); err != nil {
					s.Errorf("write: %v", err)
				} else if got := s.content(files, name); got != text {
					s.Errorf("%q, want %q", got, text)
				}
			default:
				if _, err := s.host.List(s.ctx, ""); err != nil {
					s.Errorf("list: %v", err)
				}
				if _, err := s.host.ListCommands(s.ctx, sb.ID); err != nil {
					s.Errorf("commands: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
