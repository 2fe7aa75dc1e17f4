package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd"
	"sandboxd/internal/clock"
	"sandboxd/internal/guest/wire"
)

// ended hears from the init how the leader ended, after all its output.
func (c *command) ended(exit wire.Exit) {
	if c.isDone() {
		return
	}
	if c.intended() != "" {
		// The leader obeyed before the grace was over; the rest of the tree goes
		// now, so that the ending says what is true when it is read.
		if c.group {
			c.killGroup(c.env.ctx)
		} else {
			c.killTree(c.env.ctx)
		}
	}
	c.finish(c.explain(exit))
}

// lose ends a command whose environment ended without reporting it.
func (c *command) lose(env sandboxd.Ending) {
	e := sandboxd.Ending{Cause: sandboxd.CauseEnvironment, Message: "its environment ended: " + string(env.Cause), At: time.Now().UTC()}
	if cause := c.intended(); cause != "" && cause != sandboxd.CauseEnvironment {
		e.Cause, e.Message = cause, ""
		if cause == env.Cause {
			e.Message = env.Message
		}
	}
	if e.Cause == sandboxd.CauseStopped {
		code := 128 + int(unix.SIGKILL)
		e.ExitCode, e.Signal = &code, "SIGKILL"
	}
	e.Remedy = remedyOf(e.Cause)
	c.finish(e)
}

// finish stores the ending: in the journal first, which is what followers read,
// then in the store, which is what a later host asks. The first ending stands.
func (c *command) finish(ending sandboxd.Ending) {
	c.once.Do(func() {
		h, id := c.env.b.h, c.env.b.id
		ending.WallS = sandboxd.InSeconds(clock.Elapsed(c.began, h.clock()))
		ending.Truncated = c.journal.Dropped()
		if err := c.journal.Finish(ending); err != nil {
			h.log.Error("ending not in the journal", "sandbox", id, "command", c.id, "err", err)
		}
		fpCommandFinished.Hit()
		// Its followers first, on this very thread: waking another takes longer than
		// all that they have to do.
		runtime.Gosched()
		// A caller's context must not decide whether an ending is kept.
		ctx := context.WithoutCancel(h.ctx)
		c.result.Ending, c.result.Offset = &ending, c.journal.Next()
		kept, err := h.store.EndCommand(ctx, id, c.id, c.result.Offset, ending)
		if err == nil && !kept {
			var rec sandboxd.CommandRecord
			if rec, err = h.store.GetCommand(ctx, id, c.id); err == nil {
				c.result = rec.Command
			}
		}
		if err != nil {
			h.log.Error("ending not recorded", "sandbox", id, "command", c.id, "err", err)
		}
		fpCommandEnded.Hit()
		c.env.remove(c.id)
		if !c.spec.Background {
			c.env.b.work(reasonCommand, "a command ended")
		}
		close(c.done)
		if c.group {
			groups := c.env.b.driver.(sandboxd.CommandGroups)
			err := groups.RemoveGroup(ctx, id, c.id)
			// Busy: it left processes behind; the group goes with the environment.
			if err != nil && sandboxd.ClassOf(err) != sandboxd.ClassBusy && sandboxd.ClassOf(err) != sandboxd.ClassNotFound {
				h.log.Warn("command group not removed", "sandbox", id, "command", c.id, "err", err)
			}
		}
	})
}

// explain says why a command ended, from what the init saw of the leader, what
// this host decided, and what the kernel counted. It never guesses.
func (c *command) explain(exit wire.Exit) sandboxd.Ending {
	e := sandboxd.Ending{CPUS: sandboxd.Seconds(float64(exit.CPUMicros) / 1e6), PeakBytes: exit.MaxRSS, PeakSource: "rusage", At: time.Now().UTC()}
	code := exit.Code
	if exit.Signal != 0 {
		code = 128 + exit.Signal
		e.Signal = signalName(exit.Signal)
	}
	e.ExitCode = &code
	use, counted := c.usage()
	if counted {
		e.CPUS, e.PeakBytes, e.PeakSource, e.LeftBehind = sandboxd.InSeconds(use.CPU), use.PeakBytes, "cgroup", use.Processes
	}
	killed := exit.Signal == int(unix.SIGKILL) || code == 128+int(unix.SIGKILL)
	aborted := exit.Signal == int(unix.SIGABRT) || code == 128+int(unix.SIGABRT)
	switch intended := c.intended(); {
	case exit.Error != "":
		e.Cause, e.Message = sandboxd.CauseStartFailed, exit.Error
	case intended == sandboxd.CauseTimeout, intended == sandboxd.CauseNoOutput:
		code = 124
		e.Cause = intended
		limit := c.spec.Timeout()
		if intended == sandboxd.CauseNoOutput {
			limit = c.spec.NoOutputTimeoutS.Duration()
		}
		e.Limit = fmt.Sprintf("%g s", limit.Seconds())
	case intended == sandboxd.CauseDisk:
		c.explainHome(&e)
	case intended != "":
		e.Cause = intended
	case counted && killed && use.OOMKills > 0:
		e.Cause = sandboxd.CauseMemory
		e.Limit = fmt.Sprintf("%d bytes of memory", use.MemoryLimit)
		if use.OOMInSandbox {
			e.Limit += ", of the whole sandbox"
		}
	case killed && !counted && c.memoryKilled():
		e.Cause = sandboxd.CauseMemory
		e.Limit = fmt.Sprintf("%d bytes of memory, of the whole sandbox", c.env.limits.Load().MemoryBytes)
	case aborted && c.saidLast(heapExhausted):
		e.Cause = sandboxd.CauseMemory
		e.Limit = "the JavaScript heap"
		e.Remedy = "raise the heap: NODE_OPTIONS=--max-old-space-size=<MiB>, below the sandbox's memory limit"
	case exit.Signal != 0:
		e.Cause = sandboxd.CauseSignal
	case counted && use.PIDsRefused > 0 && code != 0:
		e.Cause = sandboxd.CausePIDs
		e.Limit = fmt.Sprintf("%d processes and threads", use.PIDsLimit)
	case !counted && code != 0 && c.processesRefused():
		e.Cause = sandboxd.CausePIDs
		e.Limit = fmt.Sprintf("%d processes and threads, of the whole sandbox", c.env.limits.Load().PIDs)
	default:
		e.Cause = sandboxd.CauseExit
	}
	if e.Remedy == "" {
		e.Remedy = remedyOf(e.Cause)
	}
	return e
}

// newsTime is how long after a kill for memory a driver may not know of it yet.
const newsTime = 250 * time.Millisecond

// memoryKilled says whether the kernel killed something of the sandbox for memory
// while the command ran, where only the driver hears of that. It waits a moment
// for the news.
func (c *command) memoryKilled() bool {
	d, ok := c.env.b.driver.(sandboxd.MemoryKills)
	if !ok {
		return false
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(newsTime); ; {
		if d.MemoryKills(c.env.b.id) > c.killsBefore {
			return true
		}
		select {
		case <-tick.C:
		case <-late:
			return false
		case <-c.env.ctx.Done():
			return false
		}
	}
}

// processesRefused says whether something of the sandbox met the limit of processes
// while the command ran, where only the driver can tell.
func (c *command) processesRefused() bool {
	d, ok := c.env.b.driver.(sandboxd.ProcessRefusals)
	if !ok {
		return false
	}
	n, counted := d.ProcessRefusals(c.env.b.id)
	return counted && n > c.refusedBefore
}

// signalName is a signal's name; one of the real-time signals, which have none that
// everybody knows, is named by its number.
func signalName(number int) string {
	if name := unix.SignalName(unix.Signal(number)); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", number)
}

func (c *command) usage() (sandboxd.GroupUsage, bool) {
	groups, ok := c.env.b.driver.(sandboxd.CommandGroups)
	if !ok || !c.group {
		return sandboxd.GroupUsage{}, false
	}
	use, err := groups.GroupUsage(c.env.ctx, c.env.b.id, c.id)
	if err != nil {
		c.env.b.h.log.Warn("counters not read", "sandbox", c.env.b.id, "command", c.id, "err", err)
		return use, false
	}
	return use, true
}

// heapExhausted is what V8 says before it aborts. Output of others may stand before it on
// its line; a stack follows.
var heapExhausted = regexp.MustCompile(`FATAL ERROR: .*JavaScript heap out of memory`)

// saidLast looks in the last 16 KiB of output.
func (c *command) saidLast(words *regexp.Regexp) bool {
	stream, err := c.journal.Follow(sandboxd.FollowOptions{Offset: max(0, c.journal.Next()-16<<10)})
	if err != nil {
		return false
	}
	defer stream.Close()
	var tail []byte
	for {
		f, err := stream.Next(c.env.ctx)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return false
			}
			return words.Match(tail)
		}
		tail = append(tail, f.Data...)
	}
}

func remedyOf(cause sandboxd.Cause) string {
	switch cause {
	case sandboxd.CauseTimeout:
		return "raise timeout_s, or run it in the background and follow its output"
	case sandboxd.CauseNoOutput:
		return "raise no_output_timeout_s, or let the program report progress; a prompt that waits for input looks the same"
	case sandboxd.CauseMemory:
		return "raise limits.memory_bytes of the sandbox or the command, or use less memory"
	case sandboxd.CausePIDs:
		return "raise limits.pids, or start fewer processes at once"
	case sandboxd.CauseDisk:
		return "free space on the host's disk, or remove files of the workspace"
	case sandboxd.CauseOrphaned:
		return "run it in the background to keep it without a follower"
	case sandboxd.CauseEvicted:
		return "start the sandbox again; its files are kept; give sandboxes less memory, or the machine more"
	case sandboxd.CauseIdle, sandboxd.CauseAsleep:
		return "the next command starts the sandbox again; a hold keeps it awake"
	case sandboxd.CauseEnvironment, sandboxd.CauseHostRestart, sandboxd.CauseEngine, sandboxd.CauseRemoved:
		return "start the sandbox again; its files are kept"
	}
	return ""
}

// publicText is what of an error may be shown to a caller.
func publicText(err error) string {
	var e *sandboxd.Error
	if errors.As(err, &e) {
		return e.Public()
	}
	return "internal error"
}
