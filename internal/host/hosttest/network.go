package hosttest

import (
	"slices"
	"strings"
	"time"

	"sandboxd"
)

var networkCases = []testCase{
	{name: "a sandbox has no network unless it asks", run: noNetwork},
	{name: "the lists are kept in their canonical spelling", run: networkIsKept},
	{name: "a bad network names the field", run: badNetwork},
	{name: "a refusal is told inside and outside", run: refusals},
}

func (s *suite) activity(id string) sandboxd.NetworkActivity {
	s.Helper()
	a, err := s.host.NetworkActivity(s.ctx, id)
	s.must(err)
	if a.Denials == nil {
		s.Fatal("the denials are null, not a list")
	}
	if a.Since.IsZero() || time.Since(a.Since) < 0 {
		s.Fatalf("counted since %v", a.Since)
	}
	return a
}

func noNetwork(s *suite) {
	sb := s.open(sandboxd.OpenRequest{})
	if sb.Network.Mode != sandboxd.NetworkNone {
		s.Fatalf("%+v", sb.Network)
	}
	if env := s.run(sb.ID, sandboxd.CommandSpec{Argv: s.program("env")}).stdout.String(); strings.Contains(strings.ToLower(env), "proxy") {
		s.Fatalf("a sandbox without a network is told of a proxy: %s", env)
	}
	if a := s.activity(sb.ID); a.Connections != 0 || len(a.Denials) != 0 {
		s.Fatalf("%+v", a)
	}
	_, err := s.host.NetworkActivity(s.ctx, sandboxd.NewID())
	s.wants(err, sandboxd.ClassNotFound)
}

func networkIsKept(s *suite) {
	sb := s.open(sandboxd.OpenRequest{Key: "net", Start: cold(), Network: sandboxd.Network{Mode: sandboxd.NetworkProxy,
		Allow: []string{"EXAMPLE.com.", "*.Example.org:443", "0:0::1"}, Deny: []string{"10.0.0.0/8"}}})
	want := []string{"example.com", "*.example.org:443", "::1"}
	again, err := s.host.Get(s.ctx, sb.ID)
	s.must(err)
	for _, got := range []sandboxd.Network{sb.Network, again.Network} {
		if got.Mode != sandboxd.NetworkProxy || !slices.Equal(got.Allow, want) || !slices.Equal(got.Deny, []string{"10.0.0.0/8"}) {
			s.Fatalf("%+v", got)
		}
	}
}

func badNetwork(s *suite) {
	for field, n := range map[string]sandboxd.Network{
		"network.mode":  {Mode: "host"},
		"network":       {Allow: []string{"example.com"}},
		"network.allow": {Mode: sandboxd.NetworkProxy, Allow: []string{"example.com", "ex ample.com"}},
		"network.deny":  {Mode: sandboxd.NetworkProxy, Deny: []string{"0x7f000001"}},
	} {
		_, _, err := s.host.Open(s.ctx, sandboxd.OpenRequest{Network: n})
		s.wants(err, sandboxd.ClassInvalid)
		if !strings.Contains(err.Error(), strings.TrimPrefix(field, "network.")) {
			s.Errorf("%+v: the error does not name %s: %v", n, field, err)
		}
	}
}

func refusals(s *suite) {
	argv := s.program("fetch", "http://Refused.Example.:8080/path")
	sb := s.open(sandboxd.OpenRequest{Network: sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: []string{"allowed.example", "127.0.0.1"}}})
	const why = "refused.example:8080 is not in the allow list of this sandbox"
	for range 2 {
		out := s.run(sb.ID, sandboxd.CommandSpec{Argv: argv})
		if got := out.stdout.String(); !strings.HasPrefix(got, "HTTP/1.1 403 ") || strings.Count(got, why) != 2 {
			s.Fatalf("inside: %s%s", got, out.stderr.String())
		}
	}
	a := s.activity(sb.ID)
	if len(a.Denials) != 1 || a.Connections != 0 {
		s.Fatalf("%+v", a)
	}
	if d := a.Denials[0]; d.Host != "refused.example:8080" || d.Reason != sandboxd.DenyNotAllowed || d.Message != why || d.Count != 2 ||
		d.FirstAt.IsZero() || d.LastAt.Before(d.FirstAt) {
		s.Fatalf("%+v", d)
	}
	// The same way out after a restart of the environment, with what it counted.
	_, err := s.host.Stop(s.ctx, sb.ID)
	s.must(err)
	s.run(sb.ID, sandboxd.CommandSpec{Argv: argv})
	if a := s.activity(sb.ID); len(a.Denials) != 1 || a.Denials[0].Count != 3 {
		s.Fatalf("after a stop and a start: %+v", a)
	}
}
