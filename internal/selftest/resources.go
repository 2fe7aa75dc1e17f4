package selftest

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"sandboxd"
)

// small is a sandbox that can be filled in a moment. What is taken of it stops at
// twice each limit, so that a missing one costs the machine little.
var small = sandboxd.Limits{MemoryBytes: 128 << 20, PIDs: 100, CPUs: 1, TmpBytes: 8 << 20, OpenFiles: 256}

// resources takes all that can be had, in one sandbox, and looks how another fares.
func (t *trial) resources(ctx context.Context) ([]Line, error) {
	if t.first == nil {
		return nil, nil
	}
	b, err := t.open(ctx, small)
	if err != nil {
		return nil, err
	}
	quiet, _, err := t.first.begin(ctx, "meet", "sandboxd-selftest-"+sandboxd.NewID())
	if err != nil {
		return nil, err
	}
	var lines []Line
	for _, try := range []struct {
		mechanism, tried, why string
		args                  []string
		cause                 sandboxd.Cause // by which it may end, or
		errno                 string         // what it may get
	}{
		{"cgroup limits", fmt.Sprintf("%d processes where %d may be", 2*small.PIDs, small.PIDs), "a fork bomb takes the machine's processes",
			[]string{"fork", strconv.FormatInt(2*small.PIDs, 10)}, sandboxd.CausePIDs, "EAGAIN"},
		{"cgroup limits", fmt.Sprintf("%d MiB of memory where %d may be", small.MemoryBytes>>19, small.MemoryBytes>>20), "the kernel would kill somebody else for what this one took",
			[]string{"eat", strconv.FormatInt(small.MemoryBytes>>19, 10)}, sandboxd.CauseMemory, "ENOMEM"},
		{"size of /tmp", fmt.Sprintf("%d MiB where %d may be", small.TmpBytes>>19, small.TmpBytes>>20), "its files are the machine's memory",
			[]string{"fill", "/tmp", strconv.FormatInt(small.TmpBytes>>19, 10)}, sandboxd.CauseDisk, "ENOSPC"},
		{"size of /dev/shm", fmt.Sprintf("%d MiB where %d may be", small.TmpBytes>>19, small.TmpBytes>>20), "its files are the machine's memory",
			[]string{"fill", "/dev/shm", strconv.FormatInt(small.TmpBytes>>19, 10)}, sandboxd.CauseDisk, "ENOSPC"},
		{"open files", fmt.Sprintf("%d descriptors where %d may be", 2*small.OpenFiles, small.OpenFiles), "each is memory of the kernel",
			[]string{"descriptors", strconv.FormatInt(2*small.OpenFiles, 10)}, "", "EMFILE"},
	} {
		out, err := b.exhaust(ctx, try.args...)
		if err != nil {
			return lines, err
		}
		l := Line{Section: "resources", Mechanism: try.mechanism, Tried: try.tried, Why: try.why, Got: out.String(), Verdict: Fail}
		var got struct{ Taken, Outcome string }
		said := json.Unmarshal([]byte(out.stdout), &got) == nil // who was killed says nothing
		if said {
			l.Got = fmt.Sprintf("%s, then %s", got.Taken, got.Outcome)
		}
		if said && got.Outcome == try.errno || out.ending.Cause == try.cause {
			l.Verdict = OK
		} else if said && got.Outcome == "ok" {
			l.Got = "it got " + got.Taken
		}
		lines = append(lines, l)
	}
	return append(lines, t.only(ctx, b, quiet)), nil
}

// exhaust runs the prober and ends what it left behind, which still holds what it
// took.
func (b *box) exhaust(ctx context.Context, args ...string) (output, error) {
	cmd, _, err := b.host.StartCommand(ctx, b.sb.ID, prober(args...))
	if err != nil {
		return output{}, err
	}
	out, err := b.follow(ctx, cmd.ID)
	if err != nil {
		return output{}, err
	}
	if out.ending.PeakSource != "cgroup" {
		// Nothing but the sandbox's end reaches what an ended command without a cgroup
		// left. The next command starts it again.
		_, err = b.host.Stop(ctx, b.sb.ID)
		return out, err
	}
	_, err = b.host.StopCommand(ctx, b.sb.ID, cmd.ID, 0)
	return out, err
}

// only says whether the other sandbox was spared, and whether the one that took
// everything works again.
func (t *trial) only(ctx context.Context, b *box, quiet string) Line {
	l := Line{Section: "resources", Mechanism: "own limits", Tried: "whether another sandbox, and the next command of this one, work after that", Verdict: OK,
		Why: "who takes too much may harm nobody but himself"}
	began := time.Now()
	for _, one := range []*box{t.first, b} {
		if _, err := one.ask(ctx); err != nil {
			l.Got, l.Verdict = err.Error(), Fail
			return l
		}
	}
	l.Got = fmt.Sprintf("both answer, within %s", roughly(time.Since(began)))
	if err := t.first.alive(ctx, quiet); err != nil {
		l.Got, l.Verdict = "a program of another sandbox: "+err.Error(), Fail
	}
	return l
}

// roughly names a bound that a time met: exact ones differ from run to run.
func roughly(d time.Duration) string {
	for _, bound := range []time.Duration{time.Second, 5 * time.Second} {
		if d < bound {
			return bound.String()
		}
	}
	return d.Round(time.Second).String()
}
