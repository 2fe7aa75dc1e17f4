package attack

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/bench/pressure"
	"sandboxd/client"
	"sandboxd/internal/app/datadir"
	"sandboxd/internal/driver/docker/dockertest"
	"sandboxd/test/server"
)

// What the calls of others may take beside an attack: the goal is twice what they take
// when the machine is idle, which `make bench` measures in long rounds. Rounds of a
// quarter of a second on a machine that also does other things have a 99th percentile of
// a few samples, so that the median of the rounds fails only far beyond: with half of
// the processors taken by the attack, what a busy machine costs anyway is twice.
const (
	latencyRound  = 250 * time.Millisecond
	latencyRounds = 2 // of two pairs each
	latencyTries  = 3
	latencyRatio  = 4
)

// A slack is what a percentile may be without saying anything, in milliseconds: two turns
// of a kernel that looks four milliseconds apart who is next. Containers have the
// engine's weights, where a neighbour is one of equals: a bomb of five hundred
// processes is as heavy as what it is measured against.
var (
	latencySlack   = map[string]float64{"api": 8, "exec": 25}
	containerSlack = map[string]float64{"api": 20, "exec": 100}
)

// TestAttacksLeaveOthersTheirPace: whatever a sandbox takes of the machine, the cheap
// calls of the API and the commands of a neighbour keep their 99th percentile.
func TestAttacksLeaveOthersTheirPace(t *testing.T) {
	long(t)
	s := serve(t)
	judgePace(t, judged{s.C, s.Addr, s.Key, latencySlack})
}

// TestAttacksLeaveOthersTheirPaceInContainers is the same on the docker driver.
func TestAttacksLeaveOthersTheirPaceInContainers(t *testing.T) {
	long(t)
	e := dockertest.Find(t, "runc")
	data := filepath.Join(t.TempDir(), "data")
	p, err := server.Start(server.Spec{Data: data, Env: server.Environ("DOCKER_HOST=" + e.Host),
		Args: []string{"--driver", "docker", "--default-image", e.Image, "--ready", "0"}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := datadir.ReadSecret(filepath.Join(data, datadir.TokenFile))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(p.URL, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Until(t, "all is deleted", 30*time.Second, func() bool {
			left, err := filepath.Glob(filepath.Join(data, "workspaces", "*"))
			return err == nil && len(left) == 0
		})
		if err := p.End(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		c.Close()
	})
	judgePace(t, judged{c, strings.TrimPrefix(p.URL, "http://"), key, containerSlack})
}

// judged is a server, and how slow it may be.
type judged struct {
	c         *client.Client
	addr, key string
	slack     map[string]float64
}

func judgePace(t *testing.T, j judged) {
	t.Helper()
	c := j.c
	ctx := context.Background()
	quiet, _, err := c.Open(ctx, sandboxd.OpenRequest{Key: "quiet"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Delete(ctx, quiet.ID); err != nil {
			t.Error(err)
		}
	}()
	files, err := c.Files(ctx, quiet.ID)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := pressure.NewCalls(ctx, j.addr, j.key, quiet.ID, files)
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	scene := pressure.Scene{Host: c, Calls: calls, Program: server.Program(pressure.Intruder), Round: latencyRound}
	if _, err := calls.Round(latencyRound); err != nil { // warm
		t.Fatal(err)
	}
	for _, attack := range pressure.Attacks() {
		for try := 1; ; try++ {
			pairs, err := scene.Run(ctx, attack, latencyRounds)
			if err != nil {
				t.Fatal(err)
			}
			slow := false
			for name, kind := range map[string]func(pressure.Times) []float64{"api": pressure.API, "exec": pressure.Exec} {
				got := pressure.Of(pairs, kind)
				t.Logf("%-15s %-4s p99 %5.2f ms idle, %6.2f beside, %5.2fx", attack.Name, name, got.Idle, got.Beside, got.Ratio)
				slow = slow || got.Ratio > latencyRatio && got.Beside > j.slack[name]
			}
			if !slow {
				break
			}
			if try == latencyTries {
				t.Errorf("%s: others are slower again and again", attack.Name)
				break
			}
		}
	}
}
