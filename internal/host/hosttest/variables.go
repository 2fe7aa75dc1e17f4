package hosttest

import (
	"slices"
	"strings"

	"sandboxd"
)

var variableCases = []testCase{
	{name: "variables are replaced as a whole and only written", run: variables},
	{name: "limits of what runs change with the policy", run: limitsChange},
}

func variables(s *suite) {
	v, ok := s.host.(sandboxd.Variables)
	if !ok {
		s.Fatal("the host keeps no variables")
	}
	sb := s.open(sandboxd.OpenRequest{Env: map[string]string{"FIRST": "1"}})
	seen := func(first, second string) {
		s.Helper()
		out := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("env")}).stdout.String()
		for name, want := range map[string]string{"FIRST": first, "SECOND": second} {
			if there := strings.Contains(out, name+"="); there != (want != "") || !strings.Contains(out, want) {
				s.Errorf("%s: want %q in %q", name, want, out)
			}
		}
	}
	seen("FIRST=1\n", "")
	names := func(want ...string) {
		s.Helper()
		got, err := v.VariableNames(s.ctx, sb.ID)
		s.must(err)
		if !slices.Equal(got, want) {
			s.Errorf("names %q, want %q", got, want)
		}
	}
	names("FIRST")
	s.must(v.SetVariables(s.ctx, sb.ID, map[string]string{"SECOND": "zwei =2"}))
	names("SECOND")
	seen("", "SECOND=zwei =2\n")
	// The rule is the same wherever variables are given.
	for _, bad := range []map[string]string{{"": "x"}, {"A=B": "x"}, {"A\n": "x"}, {"A\x00": "x"}, {"A": "x\x00"}} {
		s.wants(v.SetVariables(s.ctx, sb.ID, bad), sandboxd.ClassInvalid)
		_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Env: bad})
		s.wants(err, sandboxd.ClassInvalid)
		_, _, err = s.host.StartCommand(s.ctx, sb.ID, sandboxd.CommandSpec{Argv: s.program("env"), Env: bad})
		s.wants(err, sandboxd.ClassInvalid)
	}
	odd := map[string]string{"npm_config_@scope:registry": "a", "1 ü.(x)": "b"}
	for name, value := range odd {
		if out := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("env"), Env: odd}).stdout.String(); !strings.Contains(out, name+"="+value+"\n") {
			s.Errorf("no %s in %q", name, out)
		}
	}
	seen("", "SECOND=zwei =2\n")
	// They are the sandbox's, not its environment's.
	_, err := s.host.Stop(s.ctx, sb.ID)
	s.must(err)
	names("SECOND")
	seen("", "SECOND=zwei =2\n")
	s.must(v.SetVariables(s.ctx, sb.ID, nil))
	names()
	seen("", "")
	s.wants(v.SetVariables(s.ctx, sandboxd.NewID(), nil), sandboxd.ClassNotFound)
}

func limitsChange(s *suite) {
	own := s.open(sandboxd.OpenRequest{Limits: sandboxd.Limits{PIDs: 77}})
	before, err := s.lifetimes().Policy(s.ctx)
	s.must(err)
	s.policy(func(p *sandboxd.Policy) { p.Limits.MemoryBytes, p.Limits.PIDs, p.Limits.OpenFiles = 300<<20, 88, 500 })
	defer s.policy(func(p *sandboxd.Policy) { p.Limits = before.Limits })
	var got sandboxd.Sandbox
	if s.fixedLimits {
		got, err = s.host.Get(s.ctx, own.ID)
		s.must(err)
		if got.Limits.MemoryBytes != before.Limits.MemoryBytes || got.Next == nil || got.Next.MemoryBytes != 300<<20 {
			s.Errorf("%+v, next %+v", got.Limits, got.Next)
		}
	} else {
		s.eventually("what runs has its new limits", func() bool {
			got, err = s.host.Get(s.ctx, own.ID)
			s.must(err)
			return got.Limits.MemoryBytes == 300<<20
		})
	}
	if got.Limits.PIDs != 77 || got.Limits.OpenFiles != before.Limits.OpenFiles || got.Next == nil || got.Next.OpenFiles != 500 || got.Next.PIDs != 77 {
		s.Errorf("%+v, next %+v", got.Limits, got.Next)
	}
	s.run(own.ID, sandboxd.CommandSpec{Argv: s.program("true")})
	_, err = s.host.Stop(s.ctx, own.ID)
	s.must(err)
	_, err = s.host.Start(s.ctx, own.ID)
	s.must(err)
	got, err = s.host.Get(s.ctx, own.ID)
	s.must(err)
	if got.Limits.MemoryBytes != 300<<20 || got.Limits.OpenFiles != 500 || got.Next != nil {
		s.Errorf("started again it has %+v, next %+v", got.Limits, got.Next)
	}
}
