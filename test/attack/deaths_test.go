package attack

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/test/server"
)

// death is one way for a command to end, and how that must be told.
type death struct {
	name   string
	spec   sandboxd.CommandSpec
	alone  bool                     // in a sandbox of its own, for what would reach others
	limits sandboxd.Limits          // of that
	up     string                   // what it says when it can be acted upon
	act    func(d *dying) error     // what happens to it then
	ask    func(d *dying) error     // how it is started, if not as a background command
	more   func(got outcome) string // what else is wrong with it

	unwatched bool // nobody follows it while it runs
	ends      bool // the sandbox's environment ends too
	gone      bool // and is deleted: only who followed it is told

	cause  sandboxd.Cause
	code   int // unknownCode: none
	signal string
	limit  string // part of the limit; "" means there is none
	remedy string // part of the remedy; "" means there is none
}

const unknownCode = -1

// dying is a death under way.
type dying struct {
	death
	s    *target
	box  string // the sandbox
	id   string // the command
	told sandboxd.Ending
}

// begin starts the command and waits until it can be acted upon.
func (d *dying) begin() error {
	if d.alone {
		var err error
		if d.box, err = grave(d.s, d.limits); err != nil {
			return err
		}
	}
	d.id = sandboxd.NewID()
	if d.ask != nil {
		return d.ask(d)
	}
	spec := d.spec
	spec.ID, spec.Background = d.id, !d.unwatched
	if _, _, err := d.s.C.StartCommand(context.Background(), d.box, spec); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return d.says(d.up)
}

// grave opens a sandbox with the intruder in it.
func grave(s *target, limits sandboxd.Limits) (string, error) {
	ctx := context.Background()
	sb, _, err := s.C.Open(ctx, sandboxd.OpenRequest{Limits: limits})
	if err != nil {
		return "", fmt.Errorf("open: %w", err)
	}
	files, err := s.C.Files(ctx, sb.ID)
	if err != nil {
		return "", err
	}
	f, err := os.Open(server.Program("intruder"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = files.Write(ctx, "intruder", f, sandboxd.WriteOptions{Executable: true, Size: -1})
	return sb.ID, err
}

// says waits for a text in the output.
func (d *dying) says(text string) error {
	if text == "" {
		return nil
	}
	got, err := (&box{s: d.s, id: d.box}).read(d.id, text)
	if err != nil || !strings.Contains(got.stdout, text) {
		return fmt.Errorf("waiting for %q: %w, %+v", text, err, got)
	}
	return nil
}

// end does to the command what is to be done, reads it to its end, and answers what
// of that is told wrongly.
func (d *dying) end() (wrong []string, err error) {
	type reading struct {
		got outcome
		err error
	}
	read := make(chan reading, 1)
	follow := func() error {
		stream, err := d.s.C.FollowCommand(context.Background(), d.box, d.id, sandboxd.FollowOptions{Follow: true})
		if err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		go func() {
			got, err := drain(stream, "")
			read <- reading{got, err}
		}()
		return nil
	}
	if !d.unwatched {
		if err := follow(); err != nil {
			return nil, err
		}
	}
	if d.act != nil {
		if err := d.act(d); err != nil {
			return nil, err
		}
	}
	if d.unwatched {
		if err := d.ended(); err != nil {
			return nil, err
		}
		if err := follow(); err != nil {
			return nil, err
		}
	}
	r := <-read
	if r.err != nil {
		return nil, fmt.Errorf("following it: %w", r.err)
	}
	wrong = d.judge(r.got)
	if d.gone {
		if _, err := d.s.C.GetCommand(context.Background(), d.box, d.id); sandboxd.ClassOf(err) != sandboxd.ClassGone {
			wrong = append(wrong, fmt.Sprintf("asked later: %v", err))
		}
		return wrong, nil
	}
	if err := d.ended(); err != nil {
		return wrong, err
	}
	// Followers hear of an ending a moment before it is in every description.
	sb := sandboxd.Sandbox{}
	soon(func() bool {
		sb, err = d.s.C.Get(context.Background(), d.box)
		return err == nil && d.ends == (sb.State != sandboxd.StateRunning)
	})
	if err == nil && d.ends == (sb.State == sandboxd.StateRunning) {
		wrong = append(wrong, fmt.Sprintf("the sandbox is %s, and ended with %+v", sb.State, sb.LastEnding))
	}
	return wrong, err
}

// hasty are the causes for which the program has a fifth of a second to obey: on a
// busy machine it may not come to that, and is killed.
var hasty = []sandboxd.Cause{sandboxd.CauseTimeout, sandboxd.CauseNoOutput, sandboxd.CauseOrphaned}

func (d *dying) judge(got outcome) (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	e := got.ending
	d.told = e
	code := unknownCode
	if e.ExitCode != nil {
		code = *e.ExitCode
	}
	signal := d.signal
	if e.Signal == "SIGKILL" && slices.Contains(hasty, d.cause) {
		signal = e.Signal
		if d.cause != sandboxd.CauseTimeout && d.cause != sandboxd.CauseNoOutput && code == 137 {
			code = d.code
		}
	}
	if e.Cause != d.cause || code != d.code || e.Signal != signal {
		add("it is told as %q, code %d, signal %q; want %q, %d, %q (%s)", e.Cause, code, e.Signal, d.cause, d.code, d.signal, e.Message)
	}
	if !strings.Contains(e.Limit, d.limit) || d.limit == "" && e.Limit != "" {
		add("the limit is %q, want %q", e.Limit, d.limit)
	}
	if !strings.Contains(e.Remedy, d.remedy) || d.remedy == "" && e.Remedy != "" {
		add("the remedy is %q, want %q", e.Remedy, d.remedy)
	}
	if e.At.IsZero() || e.WallS <= 0 || e.WallS > 30 {
		add("it ended at %v after %v s", e.At, e.WallS)
	}
	if d.more != nil {
		if text := d.more(got); text != "" {
			add("%s", text)
		}
	}
	return wrong
}

// ended waits until the command's description has an ending.
func (d *dying) ended() (err error) {
	cmd := sandboxd.Command{}
	if !soon(func() bool {
		cmd, err = d.s.C.GetCommand(context.Background(), d.box, d.id)
		return err == nil && cmd.Ending != nil
	}) {
		return fmt.Errorf("its description has no ending: %+v, %w", cmd, err)
	}
	return nil
}

// soon waits for a condition and says whether it came true.
func soon(condition func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}

// remembered compares what is told later, by another server, with what was told.
func (d *dying) remembered() (wrong string) {
	cmd, err := d.s.C.GetCommand(context.Background(), d.box, d.id)
	if err != nil || cmd.Ending == nil {
		return fmt.Sprintf("later it is told as %+v, %v", cmd, err)
	}
	is, was := *cmd.Ending, d.told
	if is.Cause != was.Cause || is.Signal != was.Signal || is.Limit != was.Limit || is.Remedy != was.Remedy ||
		(is.ExitCode == nil) != (was.ExitCode == nil) || is.ExitCode != nil && *is.ExitCode != *was.ExitCode {
		return fmt.Sprintf("later it is told as %+v, before as %+v", is, was)
	}
	return ""
}

// How many commands die at the same time, in how many sandboxes, and how many ways
// to die there are to be.
const (
	atOnce  = 12
	graves  = 4
	atLeast = 200
)

// TestDeaths has every death told, and told right, by the shipped program over
// HTTP: while it serves, when it was killed before the end, during it and after it.
func TestDeaths(t *testing.T) {
	long(t)
	began := time.Now()
	s := serve(t)
	var shared []string
	for range graves {
		id, err := grave(s, sandboxd.Limits{PIDs: 2048})
		if err != nil {
			t.Fatal(err)
		}
		shared = append(shared, id)
	}
	next := 0
	prepare := func(table []death) (all []*dying) {
		for _, d := range table {
			one := &dying{death: d, s: s}
			one.alone = d.alone || d.ends || d.gone
			if !one.alone {
				one.box = shared[next%graves]
				next++
			}
			all = append(all, one)
		}
		return all
	}
	failed := map[*dying]bool{}
	var mu sync.Mutex
	judge := func(d *dying, wrong ...string) {
		mu.Lock()
		defer mu.Unlock()
		for _, text := range wrong {
			if text != "" {
				failed[d] = true
				t.Errorf("%s: %s", d.name, text)
			}
		}
	}
	// each runs do for all, some at a time.
	each := func(all []*dying, do func(*dying) error) {
		queue := make(chan *dying, len(all))
		for _, d := range all {
			queue <- d
		}
		close(queue)
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() {
				for d := range queue {
					if err := do(d); err != nil {
						judge(d, err.Error())
					}
				}
			})
		}
		wg.Wait()
	}
	end := func(d *dying) error {
		wrong, err := d.end()
		judge(d, wrong...)
		return err
	}
	die := func(d *dying) error {
		if err := d.begin(); err != nil {
			return err
		}
		return end(d)
	}

	all := prepare(deaths())
	each(all, die)
	for _, round := range killedRounds() {
		batch := prepare(round.deaths)
		all = append(all, batch...)
		each(batch, (*dying).begin)
		round.before(batch)
		s.Kill()
		round.meanwhile()
		s.Start()
		each(batch, end)
	}
	// A server that saw none of it tells the same.
	s.Kill()
	s.Start()
	each(all, func(d *dying) error {
		if !failed[d] && !d.gone {
			judge(d, d.remembered())
		}
		return nil
	})

	names, causes := map[string]bool{}, map[sandboxd.Cause]int{}
	for _, d := range all {
		if names[d.name] {
			t.Errorf("two deaths are called %q", d.name)
		}
		names[d.name] = true
		causes[d.cause]++
	}
	var counts []string
	for _, cause := range slices.SortedFunc(maps.Keys(causes), func(a, b sandboxd.Cause) int { return causes[b] - causes[a] }) {
		counts = append(counts, fmt.Sprintf("%s %d", cause, causes[cause]))
	}
	t.Logf("deaths: %d of %d right: %s; in %.1f s", len(all)-len(failed), len(all), strings.Join(counts, ", "), time.Since(began).Seconds())
	if len(all) < atLeast {
		t.Errorf("%d deaths, want at least %d", len(all), atLeast)
	}
}
