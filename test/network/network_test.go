// Package network tries the network `proxy` from inside sandboxes of the shipped
// binary: the tools that people install packages with, and what must not work. It
// names no registry: each tool says by its own configuration where it would go.
package network

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/client"
	"sandboxd/internal/captest"
	"sandboxd/internal/follow"
	"sandboxd/test/server"
)

func TestMain(m *testing.M) { os.Exit(server.Main(m)) }

func serve(t *testing.T, args ...string) *server.Instance {
	t.Helper()
	s := server.New(t, server.Options{Args: args})
	s.Start()
	return s
}

// box is one sandbox.
type box struct {
	*testing.T
	c  *client.Client
	id string
}

func open(t *testing.T, s *server.Instance, allow ...string) *box {
	t.Helper()
	return openWith(t, s, sandboxd.Network{Mode: sandboxd.NetworkProxy, Allow: allow})
}

func openWith(t *testing.T, s *server.Instance, n sandboxd.Network) *box {
	t.Helper()
	return openRequest(t, s.C, sandboxd.OpenRequest{Network: n})
}

func openRequest(t *testing.T, c *client.Client, req sandboxd.OpenRequest) *box {
	t.Helper()
	req.Limits = sandboxd.Limits{MemoryBytes: 2 << 30, TmpBytes: 256 << 20}
	sb, _, err := c.Open(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return &box{T: t, c: c, id: sb.ID}
}

// result is how a script ended, and when.
type result struct {
	text string // both streams
	code int
	took time.Duration
}

func (b *box) run(script string, env ...string) result {
	b.Helper()
	vars := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	began := time.Now()
	cmd, _, err := b.c.StartCommand(ctx, b.id, sandboxd.CommandSpec{Shell: script, Env: vars})
	if err != nil {
		b.Fatal(err)
	}
	var text bytes.Buffer
	ending, err := follow.Output(ctx, b.c, follow.Command{Sandbox: b.id, ID: cmd.ID}, func(f sandboxd.Frame) error {
		text.Write(f.Data)
		return nil
	})
	if err != nil {
		b.Fatalf("%s: %v\n%s", script, err, &text)
	}
	r := result{text: text.String(), code: -1, took: time.Since(began)}
	if ending.ExitCode != nil {
		r.code = *ending.ExitCode
	}
	return r
}

// ok runs a script that has to succeed.
func (b *box) ok(script string, env ...string) string {
	b.Helper()
	r := b.run(script, env...)
	if r.code != 0 {
		b.Fatalf("%s: exit code %d\n%s\n%+v", script, r.code, r.text, b.denials())
	}
	return r.text
}

func (b *box) denials() []sandboxd.Denial {
	b.Helper()
	a, err := b.c.NetworkActivity(context.Background(), b.id)
	if err != nil {
		b.Fatal(err)
	}
	return a.Denials
}

// refused asserts a denial of a host for a reason, in the log of the server and in
// what the sandbox reads.
func (b *box) refused(host string, reason sandboxd.DenyReason) {
	b.Helper()
	all := b.denials()
	i := slices.IndexFunc(all, func(d sandboxd.Denial) bool { return d.Host == host && d.Reason == reason })
	if i < 0 {
		b.Errorf("%s was not refused for %s: %+v", host, reason, all)
		return
	}
	if inside := b.ok("curl -sS http://127.0.0.1:3128/denials"); !strings.Contains(inside, all[i].Message) {
		b.Errorf("the sandbox reads %q and not %q", inside, all[i].Message)
	}
}

// program asks whether a sandbox has a program.
func (b *box) program(name string) {
	b.Helper()
	captest.Need(b, name, b.run("command -v "+name).code == 0, name+" is not among the machine's programs")
}

// addresses are where names are, as rules; a name that has none is a capability
// that is missing.
func addresses(t *testing.T, names ...string) (rules []string) {
	t.Helper()
	for _, name := range names {
		found, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip", name+".")
		var dns *net.DNSError
		if errors.As(err, &dns) {
			captest.Need(t, "internet", false, err.Error())
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range found {
			rules = append(rules, addr.Unmap().String())
		}
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

// operator is the flags by which an operator lets addresses through.
func operator(rules []string) (flags []string) {
	for _, r := range rules {
		flags = append(flags, "--egress-allow-address", r)
	}
	return flags
}

// machineAddress is one of this machine that is not its loopback: programs do not
// ask a proxy for that.
func machineAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return n.IP.String()
		}
	}
	captest.Need(t, "interface", false, "the machine has no address beside its loopback")
	return ""
}
