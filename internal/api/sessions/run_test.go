package sessions

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
)

func TestRunsHaveOneOfThreeEnds(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		argv []string
		want result
	}{
		{[]string{"echo", "a b", "$x"}, result{Stdout: "a b $x\n", ExitCode: code(0)}},
		{[]string{"stderr", "oops"}, result{Stderr: "oops", ExitCode: code(0)}},
		{[]string{"exit", "3"}, result{ExitCode: code(3)}},
		{[]string{"exit", "137"}, result{ExitCode: code(137)}},
		{[]string{"nothing-of-this-name"}, result{ExitCode: code(127)}},
		{[]string{"/bin/sh", "-c", "pwd ; exit 4"}, result{Stdout: "/workspace\n", ExitCode: code(4)}},
		{[]string{"cat"}, result{ExitCode: code(0)}}, // its input has ended
	} {
		got := r.runs("a", token, c.argv...)
		if fmt.Sprint(deref(got.ExitCode), got.Stdout, got.Stderr, got.TimedOut, got.OutputLimited, got.OutputLimit) !=
			fmt.Sprint(deref(c.want.ExitCode), c.want.Stdout, c.want.Stderr, false, false, c.want.OutputLimit) && c.argv[0] != "stderr" {
			t.Errorf("%q: %+v (exit %d)", c.argv, got, deref(got.ExitCode))
		}
		if c.argv[0] == "stderr" && (got.Stderr == "" || got.Stdout != "") {
			t.Errorf("%+v", got)
		}
	}
	got := r.do("POST", "/sessions/a/run", token, m{"argv": []string{"sleep", "30"}, "timeout_seconds": 0.05, "run_id": runID()})
	if got.status != 200 || got.body != `{"stdout":"","stderr":"","exit_code":null,"timed_out":true,"output_limited":false,"output_limit":null}`+"\n" {
		t.Errorf("timeout: %d %s", got.status, got.body)
	}
	one := sandboxd.Seconds(0.05)
	r.policy.CommandTimeoutS = one
	if got := r.runs("a", token, "sleep", "30"); !got.TimedOut {
		t.Errorf("the ceiling: %+v", got)
	}
}

func deref(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

func TestTooMuchOutputStopsTheRun(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	if got := r.runs("a", token, "flood", fmt.Sprint(outputLimit)); deref(got.ExitCode) != 0 || len(got.Stdout) < outputLimit || got.OutputLimited {
		t.Errorf("at the limit: exit %d, %d bytes", deref(got.ExitCode), len(got.Stdout))
	}
	got := r.runs("a", token, "flood", fmt.Sprint(outputLimit+1))
	if got.ExitCode != nil || !got.OutputLimited || deref(got.OutputLimit) != 10485760 || len(got.Stdout) < partialOutput || len(got.Stdout) > 3*partialOutput {
		t.Errorf("beyond it: %d bytes, %v", len(got.Stdout), got.OutputLimit)
	}
}

func TestRunRefuses(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	ok := m{"argv": []string{"true"}, "run_id": runID()}
	with := func(k string, v any) m {
		body := m{}
		for name, value := range ok {
			body[name] = value
		}
		body[k] = v
		return body
	}
	for name, body := range map[string]m{
		"no argv": {"run_id": runID()}, "empty argv": with("argv", []string{}), "a word": with("argv", "true"), "a number in argv": with("argv", []any{"a", 1}),
		"null in argv": with("argv", []any{nil}), "no run id": {"argv": []string{"true"}}, "a short run id": with("run_id", "abc"), "an upper run id": with("run_id", strings.Repeat("A", 32)),
		"no time": with("timeout_seconds", 0), "less time": with("timeout_seconds", -1), "a word for a time": with("timeout_seconds", "soon"),
		"a list for env": with("env", []string{}), "a number in env": with("env", m{"A": 1}), "null env": with("env", nil),
		"NUL in argv": with("argv", []string{"echo", "a\x00b"}), "NUL in env": with("env", m{"A": "\x00"}), "an equals sign": with("env", m{"A=B": "c"}),
		"an empty program": with("argv", []string{""}),
	} {
		if got := r.do("POST", "/sessions/a/run", token, body); got.status != 422 || !strings.HasPrefix(got.detail(t), `[{`) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	// A null for an optional field is an absent one; what is unknown is not looked at.
	if got := r.do("POST", "/sessions/a/run", token, with("timeout_seconds", nil)); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := r.do("POST", "/sessions/a/run", token, with("cwd", "/tmp")); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	// What is wrong in many places or with much is not repeated in all of them.
	for name, body := range map[string]string{
		"many numbers in argv":   `{"argv":[1` + strings.Repeat(",1", 1<<20) + `]}`,
		"numbers in argv":        `{"argv":[1` + strings.Repeat(",1", 9000) + `]}`,
		"many numbers in env":    `{"argv":["a"],"env":{"a":1` + strings.Repeat(`,"a":1`, 1<<20) + `}}`,
		"many fields":            `{"a":1` + strings.Repeat(`,"a":1`, 1<<20) + `}`,
		"much that is no answer": `{"a":"` + strings.Repeat("x", 8<<20) + `"}`,
		"much that is no list":   `{"argv":"` + strings.Repeat("\u00e9", 1<<20) + `"}`,
	} {
		if got := r.do("POST", "/sessions/a/run", token, body); got.status != 422 || len(got.body) > 64<<10 || !json.Valid([]byte(got.body)) {
			t.Errorf("%s: %d, %d bytes", name, got.status, len(got.body))
		}
	}
	big := `{"argv":["` + strings.Repeat("x", runBody) + `"]}`
	if got := r.do("POST", "/sessions/a/run", token, big); got.status != 413 {
		t.Errorf("a body over the limit: %d", got.status)
	}
	if got := r.do("POST", "/sessions/a/run", "", big); got.status != 401 {
		t.Errorf("a stranger's: %d", got.status)
	}
}

func TestEnvIsOfOneRun(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	got := r.do("POST", "/sessions/a/run", token, m{"argv": []string{"env"}, "env": m{"CITY": "Zürich=1", "EMPTY": ""}, "run_id": runID()})
	var res result
	got.json(t, &res)
	if !strings.Contains(res.Stdout, "CITY=Zürich=1\n") || !strings.Contains(res.Stdout, "EMPTY=\n") || !strings.Contains(res.Stdout, "GIT_CONFIG_VALUE_1=Agent\n") {
		t.Errorf("%s", res.Stdout)
	}
	if res := r.runs("a", token, "env"); strings.Contains(res.Stdout, "CITY=") {
		t.Errorf("it stayed: %s", res.Stdout)
	}
}

// begun starts a run and waits until its command is there.
func (r *rig) begun(id, token, run string, argv ...string) chan reply {
	r.t.Helper()
	answered := make(chan reply, 1)
	go func() {
		answered <- r.do("POST", "/sessions/"+id+"/run", token, m{"argv": argv, "run_id": run})
	}()
	until(r.t, "the run began", func() bool {
		rec, err := r.store.GetSession(r.t.Context(), id)
		if err != nil {
			return false
		}
		_, err = r.GetCommand(r.t.Context(), rec.SandboxID, run)
		return err == nil
	})
	return answered
}

func TestStop(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	stop := func(run string) {
		t.Helper()
		if got := r.do("POST", "/sessions/a/runs/"+run+"/stop", token, nil); got.status != 204 || got.body != "" {
			t.Errorf("stop: %d %q", got.status, got.body)
		}
	}
	run := runID()
	answered := r.begun("a", token, run, "sleep", "60")
	stop(run)
	var res result
	(<-answered).json(t, &res)
	if deref(res.ExitCode) != 143 {
		t.Errorf("%+v exit %d", res, deref(res.ExitCode))
	}
	stop(run) // again, and it is over

	// The stop is heard before the run is.
	early := runID()
	stop(early)
	if got := r.do("POST", "/sessions/a/run", token, m{"argv": []string{"sleep", "60"}, "run_id": early}); !strings.Contains(got.body, `"exit_code":143`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	// A run that another process of the host began.
	late := runID()
	answered = r.begun("a", token, late, "sleep", "60")
	r.restart()
	stop(late)
	if got := <-answered; !strings.Contains(got.body, `"exit_code":143`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := r.do("POST", "/sessions/a/runs/short/stop", token, nil); got.status != 422 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestARunIDNamesWhatRunsNow(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	run := runID()
	ask := func(argv ...string) reply {
		return r.do("POST", "/sessions/a/run", token, m{"argv": argv, "run_id": run})
	}
	for range 3 {
		if got := ask("echo", "again"); !strings.Contains(got.body, "again") {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if got := ask("echo", "other"); !strings.Contains(got.body, "other") {
		t.Errorf("%d %s", got.status, got.body)
	}
	second := runID()
	answered := r.begun("a", token, second, "sleep", "60")
	run = second
	if got := ask("echo", "beside it"); got.status != 409 {
		t.Errorf("another command of a run that runs: %d %s", got.status, got.body)
	}
	r.do("POST", "/sessions/a/runs/"+second+"/stop", token, nil)
	<-answered
}

func TestARunWhoseSandboxEndsIsGone(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	rec, err := r.store.GetSession(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	answered := r.begun("a", token, runID(), "sleep", "60")
	r.fake.Kill(rec.SandboxID)
	if got := <-answered; got.status != 410 || !strings.HasPrefix(got.detail(t), "the sandbox stopped while the command was running") {
		t.Errorf("killed: %d %s", got.status, got.body)
	}
	until(t, "it is noticed", func() bool {
		sb, err := r.Get(t.Context(), rec.SandboxID)
		return err == nil && sb.State == sandboxd.StateCold
	})
	var dead info
	r.do("GET", "/sessions/a", token, nil).json(t, &dead)
	if dead.Alive || dead.State != "running" {
		t.Errorf("%+v", dead)
	}
	if again, _ := r.open(m{"session_id": "a", "reuse": true}); again.Alive {
		t.Errorf("attaching healed it: %+v", again)
	}
	// Its files are kept, so the next command finds it well.
	if res := r.runs("a", token, "echo", "well"); res.Stdout != "well\n" {
		t.Errorf("%+v", res)
	}
	answered = r.begun("a", token, runID(), "sleep", "60")
	if got := r.do("DELETE", "/sessions/a?purge=true", serviceToken, nil); got.status != 204 {
		t.Errorf("%d", got.status)
	}
	if got := <-answered; got.status != 410 || got.detail(t) != "The sandbox of session a is gone, and its files with it" {
		t.Errorf("purged: %d %s", got.status, got.body)
	}
	if got := r.do("POST", "/sessions", serviceToken, m{"session_id": "a", "attach": true}); got.status != 404 {
		t.Errorf("after the purge: %d %s", got.status, got.body)
	}
}

func TestPurgeNeedsNoOpenSession(t *testing.T) {
	r := newRig(t)
	r.open(m{"session_id": "a"})
	r.do("DELETE", "/sessions/a", serviceToken, nil)
	none := 0
	r.policy.MaxRunning = &none
	if got := r.do("DELETE", "/sessions/a?purge=true", serviceToken, nil); got.status != 204 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := r.do("DELETE", "/sessions/a?purge=true", serviceToken, nil); got.status != 404 || got.detail(t) != "No such session: a" {
		t.Errorf("again: %d %s", got.status, got.body)
	}
	if got := r.do("DELETE", "/sessions/a?purge=perhaps", serviceToken, nil); got.status != 422 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestHibernated(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	rec, _ := r.store.GetSession(t.Context(), "a")
	r.sleep(t, rec.SandboxID)
	var i info
	r.do("GET", "/sessions/a", token, nil).json(t, &i)
	if i.State != "hibernated" || i.Alive {
		t.Errorf("%+v", i)
	}
	var h health
	r.do("GET", "/healthz", "", nil).json(t, &h)
	if h.Sessions != 0 || h.OpenSessions != 1 {
		t.Errorf("%+v", h)
	}
	// Looking and stopping wake nothing.
	for _, ask := range [][2]string{{"GET", "/sessions/a/events"}, {"GET", "/sessions/a?usage=true"}, {"POST", "/sessions/a/runs/" + runID() + "/stop"}} {
		if got := r.do(ask[0], ask[1], token, nil); got.status >= 300 {
			t.Errorf("%v: %d", ask, got.status)
		}
	}
	if sb, _ := r.Get(t.Context(), rec.SandboxID); sb.State != sandboxd.StateCold {
		t.Errorf("it is %s", sb.State)
	}
	if got := r.do("POST", "/sessions/a/files/write?path=/workspace/f", token, "x"); got.status != 204 {
		t.Errorf("a file of one that sleeps: %d %s", got.status, got.body)
	}
	if res := r.runs("a", token, "echo", "awake"); res.Stdout != "awake\n" {
		t.Errorf("%+v", res)
	}
	r.sleep(t, rec.SandboxID)
	if woken, same := r.open(m{"session_id": "a", "attach": true}); !woken.Alive || woken.State != "running" || same != token {
		t.Errorf("%+v", woken)
	}
}

// What cannot be woken is told in the wire's words, to whoever attaches or runs something.
func TestWhatCannotBeWoken(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	rec, _ := r.store.GetSession(t.Context(), "a")
	r.sleep(t, rec.SandboxID)
	for _, c := range []struct {
		err            error
		status         int
		attached, runs string
	}{
		{&sandboxd.Error{Class: sandboxd.ClassCapacity, RetryS: 3, Ceiling: &sandboxd.Ceiling{Name: sandboxd.CeilingRunning, Limit: 20}}, 429,
			"Cannot wake session a: Session limit of 20 reached. Release an idle session before opening another.",
			"Cannot wake session a: Session limit of 20 reached. Release an idle session before opening another."},
		{sandboxd.Errorf(sandboxd.ClassGone, "it went"), 410,
			"The sandbox of session a is gone, and its files with it", stoppedUnder},
	} {
		r.mu.Lock()
		r.wakes = c.err
		r.mu.Unlock()
		if got := r.do("POST", "/sessions", serviceToken, m{"session_id": "a", "attach": true}); got.status != c.status || got.detail(t) != c.attached {
			t.Errorf("attached: %d %s", got.status, got.body)
		}
		for path, body := range map[string]m{"run": {"argv": []string{"true"}, "run_id": runID()}, "exec": {"command": "true"}, "grep": {"pattern": "x"}} {
			if got := r.do("POST", "/sessions/a/"+path, token, body); got.status != c.status || got.detail(t) != c.runs {
				t.Errorf("%s: %d %s", path, got.status, got.body)
			}
		}
	}
	// What nobody foresaw says nothing of itself.
	r.mu.Lock()
	r.wakes = errors.New("secret inside")
	r.mu.Unlock()
	for _, path := range []string{"/sessions/a/run", "/sessions"} {
		body := m{"argv": []string{"true"}, "run_id": runID(), "session_id": "a", "attach": true}
		if got := r.do("POST", path, serviceToken, body); got.status != 500 || got.body != "Internal Server Error" {
			t.Errorf("%s: %d %q", path, got.status, got.body)
		}
	}
}

// TestASessionThatTheHostClosedIsClosed has the host's clock, or somebody else, close or
// delete the sandbox.
func TestASessionThatTheHostClosedIsClosed(t *testing.T) {
	r := newRig(t)
	for _, end := range []func(id string) error{
		func(id string) error { _, err := r.lifetimes.CloseSandbox(t.Context(), id); return err },
		func(id string) error { return r.Delete(t.Context(), id) },
	} {
		_, token := r.open(m{"session_id": "a", "reuse": true})
		rec, _ := r.store.GetSession(t.Context(), "a")
		if err := end(rec.SandboxID); err != nil {
			t.Fatal(err)
		}
		var l listing
		r.do("GET", "/sessions", serviceToken, nil).json(t, &l)
		if len(l.Sessions) != 0 {
			t.Errorf("listed: %+v", l)
		}
		if got := r.do("GET", "/sessions/a", token, nil); got.status != 401 {
			t.Errorf("its token: %d", got.status)
		}
		if got := r.do("GET", "/sessions/a", serviceToken, nil); got.status != 404 {
			t.Errorf("%d", got.status)
		}
		if recs, _ := r.store.ListSessions(t.Context()); len(recs) != 0 {
			t.Errorf("kept: %+v", recs)
		}
	}
}

func TestEvents(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	events := func(after int64) eventList {
		t.Helper()
		var l eventList
		r.do("GET", fmt.Sprint("/sessions/a/events?after=", after), token, nil).json(t, &l)
		return l
	}
	if l := events(0); l.LatestSeq != 0 || len(l.Events) != 0 {
		t.Errorf("%+v", l)
	}
	r.runs("a", token, "echo", "it's", strings.Repeat("x", 300))
	r.runs("a", token, "exit", "3")
	r.do("POST", "/sessions/a/run", token, m{"argv": []string{"sleep", "9"}, "timeout_seconds": 0.01, "run_id": runID()})
	l := events(0)
	if l.LatestSeq != 3 || len(l.Events) != 3 {
		t.Fatalf("%+v", l)
	}
	if e := l.Events[0]; e.Seq != 1 || e.Op != "run" || !e.OK || e.Detail != "exit 0" || !strings.HasPrefix(e.Target, `echo 'it'"'"'s' xxx`) || len([]rune(e.Target)) != 201 || !strings.HasSuffix(e.Target, "…") {
		t.Errorf("%+v", e)
	}
	if e := l.Events[1]; e.OK || e.Detail != "exit 3" {
		t.Errorf("%+v", e)
	}
	if e := l.Events[2]; e.OK || e.Detail != "timed out" {
		t.Errorf("%+v", e)
	}
	if l := events(2); len(l.Events) != 1 || l.Events[0].Seq != 3 {
		t.Errorf("%+v", l)
	}
	for range ringSize {
		r.do("POST", "/sessions/a/exists", token, m{"path": "x"})
	}
	if l := events(0); len(l.Events) != ringSize || l.LatestSeq != 3+ringSize || l.Events[0].Seq != 4 || l.Events[0].Detail != "missing" {
		t.Errorf("%d events, latest %d", len(l.Events), l.LatestSeq)
	}
	// Numbers go on after a restart, when the events themselves are gone.
	r.restart()
	if l := events(0); len(l.Events) != 0 || l.LatestSeq != 3+ringSize {
		t.Errorf("%+v", l)
	}
	r.runs("a", token, "true")
	if l := events(0); len(l.Events) != 1 || l.Events[0].Seq != 4+ringSize {
		t.Errorf("%+v", l)
	}
	for _, after := range []string{"-1", "x", ""} {
		if got := r.do("GET", "/sessions/a/events?after="+after, token, nil); got.status != 422 {
			t.Errorf("after %q: %d", after, got.status)
		}
	}
}

func TestActivityIsOfUseOnly(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	r.pass(time.Minute)
	for range 2 {
		var i info
		r.do("GET", "/sessions/a?usage=1", token, nil).json(t, &i)
		if i.IdleSeconds != 60 || i.LastActivity != i.CreatedAt {
			t.Errorf("%+v", i)
		}
		r.do("GET", "/sessions/a/events", token, nil)
		r.do("POST", "/workspaces/a/ls", serviceToken, m{"path": "."})
	}
	r.runs("a", token, "true")
	r.pass(time.Second)
	r.restart()
	var i info
	r.do("GET", "/sessions/a", token, nil).json(t, &i)
	if i.IdleSeconds != 1 || i.LastActivity != i.CreatedAt+60 {
		t.Errorf("%+v", i)
	}
}

func TestUsageIsSampledSeldom(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	cpu, memory := 1.0, int64(77)
	r.used = sandboxd.SandboxUsage{CPUSeconds: &cpu, MemoryBytes: &memory}
	use := func() usage {
		t.Helper()
		var i info
		r.do("GET", "/sessions/a?usage=true", token, nil).json(t, &i)
		if i.Usage == nil {
			t.Fatal("no usage")
		}
		return *i.Usage
	}
	if u := use(); u.CPUPercent != nil || *u.MemoryBytes != 77 || u.PIDs != nil {
		t.Errorf("%+v", u)
	}
	more := 2.0
	r.mu.Lock()
	r.used.CPUSeconds = &more
	r.mu.Unlock()
	r.pass(sampleAge - time.Millisecond)
	if u := use(); u.CPUPercent != nil {
		t.Errorf("sampled again: %+v", u)
	}
	r.pass(time.Millisecond)
	if u := use(); u.CPUPercent == nil || *u.CPUPercent != 20 {
		t.Errorf("%+v", u)
	}
	var l listing
	r.do("GET", "/sessions?usage=true", serviceToken, nil).json(t, &l)
	if len(l.Sessions) != 1 || l.Sessions[0].Usage == nil || *l.Limit != 20 || l.OpenLimit != nil || *l.TenantLimit != 10 {
		t.Errorf("%+v", l)
	}
	if got := r.do("GET", "/sessions?usage=much", serviceToken, nil); got.status != 422 {
		t.Errorf("%d", got.status)
	}
}

// TestManyRunsHoldUpNothing has forty commands run and asks what an operator asks.
func TestManyRunsHoldUpNothing(t *testing.T) {
	r := newRig(t)
	_, token := r.open(m{"session_id": "a"})
	var all sync.WaitGroup
	ids := make([]string, 40)
	for i := range ids {
		ids[i] = runID()
		all.Go(func() {
			if got := r.do("POST", "/sessions/a/run", token, m{"argv": []string{"sleep", "60"}, "run_id": ids[i]}); !strings.Contains(got.body, `"exit_code":143`) {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	rec, _ := r.store.GetSession(t.Context(), "a")
	until(t, "all forty run", func() bool {
		list, err := r.ListCommands(t.Context(), rec.SandboxID)
		return err == nil && len(list) == 40
	})
	for _, path := range []string{"/policy", "/sessions", "/sessions/a"} {
		if got := r.do("GET", path, serviceToken, nil); got.status != 200 {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	for _, id := range ids {
		all.Go(func() { r.do("POST", "/sessions/a/runs/"+id+"/stop", token, nil) })
	}
	all.Wait()
}
