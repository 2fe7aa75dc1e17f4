package selftest

import (
	"maps"
	"strings"
	"testing"

	"sandboxd"
)

// asItMustBe has an answer to each attempt that the checks name.
func asItMustBe() map[string]string { return answersTo(checks) }

func answersTo(checks []check) map[string]string {
	found := map[string]string{"status Uid": "7 7 7 7", "status Gid": "7 7 7 7", "command lines": "init |/workspace/prober "}
	for _, c := range checks {
		for _, e := range c.expectations {
			name := e.name
			if strings.HasSuffix(name, " ") || strings.HasSuffix(name, "/") {
				name += "example"
			}
			if _, known := found[name]; !known {
				found[name], _, _ = strings.Cut(e.answers, " ")
			}
		}
	}
	return found
}

func verdicts(lines []Line) map[string]Verdict {
	all := map[string]Verdict{}
	for _, l := range lines {
		all[l.Mechanism] = l.Verdict
	}
	return all
}

// TestJudge changes one answer at a time, and takes it away: one mechanism fails.
func TestJudge(t *testing.T) {
	for mechanism, verdict := range verdicts(Judge(asItMustBe())) {
		if verdict != OK {
			t.Errorf("%s is %s of what is right", mechanism, verdict)
		}
	}
	tried := 0
	for name := range asItMustBe() {
		for _, change := range []func(map[string]string){
			func(m map[string]string) { m[name] = "EFAULT" },
			func(m map[string]string) { delete(m, name) },
		} {
			found := asItMustBe()
			change(found)
			report := Report{Lines: Judge(found)}
			if failed := report.Failed(); len(failed) != 1 {
				t.Errorf("with another answer to %q, or none, these fail: %q", name, failed)
			}
			tried++
		}
	}
	if tried < 70 {
		t.Errorf("%d changes were tried", tried)
	}
}

// TestJudgeOfContainers is TestJudge where other answers are right too.
func TestJudgeOfContainers(t *testing.T) {
	for _, own := range []bool{false, true} {
		judge := func(found map[string]string) []Line {
			return (&trial{Config: Config{Image: "image", OwnKernel: own}}).judge(found)
		}
		right := func() map[string]string {
			found := answersTo(containerChecks(own))
			found["command lines"] = "/.sandboxd-init attached |/workspace/prober "
			return found
		}
		if failed := (Report{Lines: judge(right())}).Failed(); len(failed) > 0 {
			t.Errorf("own kernel %v: %q fail of what is right", own, failed)
		}
		for name := range right() {
			found := right()
			found[name] = "EFAULT"
			if failed := (Report{Lines: judge(found)}).Failed(); len(failed) != 1 {
				t.Errorf("own kernel %v: with another answer to %q these fail: %q", own, name, failed)
			}
		}
		found := right()
		found["read /sys"] = "ok"
		if got := verdicts(judge(found))["own root"]; got != Weak {
			t.Errorf("own kernel %v: who can read /sys is %s", own, got)
		}
	}
}

func TestUsers(t *testing.T) {
	for ids, want := range map[string]bool{"7 7 7 7": true, "0 0 0 0": false, "7 7 0 7": false, "7 0 7 7": false, "7 7 7 0": false, "7 7 7": false, "": false} {
		if got := oneUser(ids); got != want {
			t.Errorf("%q: %v", ids, got)
		}
	}
	for lines, want := range map[string]bool{"init |./prober ": true, "init |./prober |sshd ": false, "": false} {
		if got := onlyOurs(lines); got != want {
			t.Errorf("%q: %v", lines, got)
		}
	}
}

func TestLevelBecomesLines(t *testing.T) {
	got := verdicts(level([]sandboxd.LevelLine{{Name: "a", OK: true, Needed: true}, {Name: "b", Needed: true, Why: "w"}, {Name: "c", Why: "w"}}))
	if want := map[string]Verdict{"a": OK, "b": Fail, "c": Weak}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestReports(t *testing.T) {
	r := Report{Version: "v1", Driver: "process", Machine: "Linux 6.1.2-somebody x86_64", Lines: []Line{
		{Section: "machine", Mechanism: "landlock", Tried: "looked for", Got: "ABI 0", Verdict: Weak, Why: "a | b"},
		{Section: "boundary", Mechanism: "seccomp", Tried: "calls", Got: "bpf: ok", Verdict: Fail, Why: "holes", Attempts: map[string]string{"bpf": "ok", "keyctl": "EPERM"}},
		{Section: "boundary", Mechanism: "seccomp", Tried: "more", Got: "ok", Verdict: Fail},
	}}
	for name, print := range map[string]struct {
		do   func(*strings.Builder) error
		want []string
	}{
		"text": {func(b *strings.Builder) error { return r.Text(b) }, []string{"sandboxd v1, driver process, Linux 6.1.2-somebody x86_64\n", "\nmachine\n  WEAK  landlock           looked for: ABI 0\n",
			"\nboundary\n  FAIL  seccomp            calls: bpf: ok\n", "\nred: 3 checks of 4 attempts: 0 ok, 1 weak, 2 failed: seccomp\n"}},
		"markdown": {func(b *strings.Builder) error { return r.Markdown(b) }, []string{"driver `process`, Linux 6.1.2.\n", "\n## Boundary\n", "| landlock | looked for | ABI 0 | WEAK | a \\| b |\n", "The result here is red: 3 checks"}},
		"json":     {func(b *strings.Builder) error { return r.JSON(b) }, []string{`"verdict": "WEAK"`, `"green": false`, `"keyctl": "EPERM"`}},
	} {
		var b strings.Builder
		if err := print.do(&b); err != nil {
			t.Error(err)
		}
		for _, want := range print.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in:\n%s", name, want, b.String())
			}
		}
	}
}
