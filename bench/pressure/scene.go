package pressure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"sandboxd"
)

// Scene is a server on which one sandbox attacks while the calls of others are
// measured.
type Scene struct {
	Host    sandboxd.Host
	Calls   *Calls
	Program string        // the file of the program Intruder
	Round   time.Duration // of calls
}

// Pair is an idle round and one beside an attack.
type Pair struct{ Idle, Beside Times }

// Run measures an attack in rounds: idle, beside it, beside it, idle.
func (s Scene) Run(ctx context.Context, attack Attack, rounds int) (pairs []Pair, err error) {
	for range rounds {
		var p [2]Pair
		if p[0].Idle, err = s.Calls.Round(s.Round); err != nil {
			return nil, err
		}
		err := s.beside(ctx, attack, func() (err error) {
			for i := range p {
				if p[i].Beside, err = s.Calls.Round(s.Round); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", attack.Name, err)
		}
		if p[1].Idle, err = s.Calls.Round(s.Round); err != nil {
			return nil, err
		}
		pairs = append(pairs, p[:]...)
	}
	return pairs, nil
}

// beside does something while an attack is under way in a sandbox of its own, which is
// stopped when it returns.
func (s Scene) beside(ctx context.Context, attack Attack, do func() error) (err error) {
	sb, _, err := s.Host.Open(ctx, sandboxd.OpenRequest{Limits: Limits})
	if err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		_, serr := s.Host.Stop(ctx, sb.ID) // a delete does not wait for that
		err = errors.Join(err, serr, s.Host.Delete(ctx, sb.ID))
	}()
	files, err := s.Host.Files(ctx, sb.ID)
	if err != nil {
		return err
	}
	program, err := os.Open(s.Program)
	if err != nil {
		return err
	}
	defer program.Close()
	if _, err := files.Write(ctx, Intruder, program, sandboxd.WriteOptions{Executable: true, Size: -1}); err != nil {
		return err
	}
	cmd, _, err := s.Host.StartCommand(ctx, sb.ID, sandboxd.CommandSpec{Shell: attack.Shell, Background: true, OutputLimit: 8 << 20})
	if err != nil {
		return err
	}
	if err := s.says(ctx, sb.ID, cmd.ID, attack.Says); err != nil {
		return err
	}
	if attack.Beside != nil {
		var done sync.WaitGroup
		defer done.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		done.Go(func() { attack.Beside(ctx, s.Calls, sb.ID) })
	}
	return do()
}

// says waits until a command's output holds a text. In a container an attack may end
// its own sandbox, because process 1 shares the limit of processes there.
func (s Scene) says(ctx context.Context, id, command, text string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := s.Host.FollowCommand(ctx, id, command, sandboxd.FollowOptions{Follow: true})
	if err != nil {
		return err
	}
	defer stream.Close()
	said := ""
	for !strings.Contains(said, text) {
		frame, err := stream.Next(ctx)
		switch {
		case err != nil:
			return err
		case frame.Ending != nil && frame.Ending.Cause == sandboxd.CauseEnvironment:
			return nil
		case frame.Ending != nil:
			return fmt.Errorf("it ended with %+v after %q", *frame.Ending, said)
		}
		said += string(frame.Data)
	}
	return nil
}

// Result is what an attack does to the 99th percentiles of others: medians of all
// rounds, in milliseconds, and of the ratios of pairs.
type Result struct {
	Idle, Beside, Ratio float64
}

// Of judges one of the two kinds of times of every pair.
func Of(pairs []Pair, kind func(Times) []float64) Result {
	var idle, beside, ratio []float64
	for _, p := range pairs {
		a, b := P99(kind(p.Idle)), P99(kind(p.Beside))
		idle, beside, ratio = append(idle, a), append(beside, b), append(ratio, b/a)
	}
	return Result{Idle: median(idle), Beside: median(beside), Ratio: median(ratio)}
}

// API and Exec are the kinds for Of.
func API(t Times) []float64  { return t.API }
func Exec(t Times) []float64 { return t.Exec }

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
