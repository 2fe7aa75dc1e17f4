package attack

import (
	"context"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/test/server"
)

func stopIt(t *testing.T, b *box, id string) {
	began := time.Now()
	if _, err := b.s.C.StopCommand(context.Background(), b.id, id, 0.3); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the stop took %v", took)
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
