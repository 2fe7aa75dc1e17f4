package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// What the host of these tests could tell of itself and reach: its name, its address, and
// a machine beside it.
const (
	ownName    = "the-name-of-this-machine"
	ownAddress = "192.0.2.2"
	elsewhere  = "192.0.2.1"
)

// island is the shipped `host` in a network namespace of its own, which has a way out
// that counts what takes it and leads nowhere.
type island struct {
	*testing.T
	p     *server.Process
	token string
	dials int // made by the test
}

func onIsland(t *testing.T, data string, log *server.Record) *island {
	t.Helper()
	program := filepath.Join(t.TempDir(), "start")
	inside := "hostname " + ownName + " && ip link set lo up && ip link add out type veth peer name beyond && " +
		"for end in out beyond; do echo 1 >/proc/sys/net/ipv6/conf/$end/disable_ipv6 && ip link set $end up || exit 1; done && ip addr add " + ownAddress + "/24 dev out && " +
		"ip neigh add " + elsewhere + " lladdr 02:00:00:00:00:01 dev out && ip route add default via " + elsewhere + " && shift && exec " + server.Program("sandboxd") + ` host "$@"`
	if err := os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\nexec unshare --net --uts sh -c '%s' sh \"$@\"\n", inside), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := server.Start(server.Spec{Program: program, Data: data, Log: log, Env: server.Environ("SANDBOXD_UI_ENABLED=1"), Args: []string{"--driver", "process", "--ready", "0"}})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.Tail())
	}
	t.Cleanup(func() {
		if p.Alive() {
			p.Kill()
		}
	})
	token, err := os.ReadFile(filepath.Join(data, "host-token"))
	if err != nil {
		t.Fatal(err)
	}
	return &island{T: t, p: p, token: strings.TrimSpace(string(token))}
}

// there runs fn in the namespace.
func (i *island) there(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", i.p.PID()))
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// ask sends one request over a connection of its own, and answers all that comes of it
// in two seconds, headers too.
func (i *island) ask(method, path, body string) (int, string) {
	i.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	host := strings.TrimPrefix(i.p.URL, "http://")
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (c net.Conn, err error) {
		i.dials++
		err = i.there(func() error { c, err = net.Dial("tcp4", host); return err })
		return c, err
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, i.p.URL+path, strings.NewReader(body))
	if err != nil {
		i.Fatal(err)
	}
	req.Host = "host.example"
	req.Header.Set("X-Sandbox-Token", i.token)
	res, err := transport.RoundTrip(req)
	if err != nil {
		if ctx.Err() == nil {
			i.Fatalf("%s %s: %v", method, path, err)
		}
		return 0, "" // a stream in which nothing comes
	}
	defer res.Body.Close()
	var text bytes.Buffer
	_ = res.Header.Write(&text)
	_, err = io.Copy(&text, res.Body)
	if err != nil && ctx.Err() == nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		i.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, text.String()
}

func (i *island) must(method, path, body string) string {
	i.Helper()
	code, text := i.ask(method, path, body)
	if code < 200 || code > 299 {
		i.Fatalf("%s %s: %d %s\n%s", method, path, code, text, i.p.Log.Tail())
	}
	return text
}

// traffic is what the namespace counted: packets that left, datagrams, and connections
// that were begun, those within the machine too.
type traffic struct{ packets, datagrams, connections int }

func (i *island) traffic() (sum traffic) {
	i.Helper()
	at := fmt.Sprintf("/proc/%d/net/", i.p.PID())
	read := func(name string) string {
		text, err := os.ReadFile(at + name)
		if err != nil {
			i.Fatal(err)
		}
		return string(text)
	}
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			i.Fatal(err)
		}
		return n
	}
	for line := range strings.Lines(read("dev")) {
		if name, counts, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == "out" {
			sum.packets = number(strings.Fields(counts)[9])
		}
	}
	var names []string
	for line := range strings.Lines(read("snmp")) {
		f := strings.Fields(line)
		if names == nil || names[0] != f[0] {
			names = f
			continue
		}
		for n, name := range names {
			switch f[0] + name {
			case "Tcp:ActiveOpens":
				sum.connections = number(f[n])
			case "Udp:OutDatagrams":
				sum.datagrams += number(f[n])
			}
		}
		names = nil
	}
	for line := range strings.Lines(read("snmp6")) {
		if f := strings.Fields(line); f[0] == "Udp6OutDatagrams" {
			sum.datagrams += number(f[1])
		}
	}
	return sum
}

// quiet fails the test when the host has begun anything itself.
func (i *island) quiet(when string) {
	i.Helper()
	if got, want := i.traffic(), (traffic{connections: i.dials}); got != want {
		i.Errorf("%s: %+v, want %+v, which are the test's own", when, got, want)
	}
}

// A host opens no connection of its own, to nobody: not at its start and restart, nor for
// what is done with sandboxes without a network. It is asked for a page that it has not,
// and says so once. Its own name and address are in no answer.
func TestAHostCallsNobody(t *testing.T) {
	captest.Root(t)
	_, err := exec.LookPath("ip")
	made := exec.Command("unshare", "--net", "--uts", "sh", "-c", "hostname x && ip link add out type veth peer name beyond").Run()
	captest.Need(t, "veth", err == nil && made == nil, "no network namespace with an interface can be made: iproute2, util-linux and the kernel's veth are needed")
	data, log := filepath.Join(t.TempDir(), "data"), &server.Record{}
	h := onIsland(t, data, log)
	h.quiet("after the start")
	token := h.token
	var sb struct{ ID string }
	open := func(key string) {
		t.Helper()
		h.object("POST", "/v1/sandboxes", `{"key":"`+key+`"}`, &sb)
	}
	open("kept")
	if text := h.must("POST", "/v1/sandboxes/"+sb.ID+"/exec", `{"shell":"echo works >file; cat file"}`); !strings.Contains(text, "works") {
		t.Errorf("%s", text)
	}
	h.must("POST", "/sessions", `{"session_id":"a"}`)
	h.must("POST", "/sessions/a/run", `{"argv":["true"],"run_id":"0123456789abcdef0123456789abcdef"}`)
	h.must("GET", "/readyz", "")
	h.quiet("after it was used")
	h.p.Kill()

	h = onIsland(t, data, log)
	h.quiet("after a restart")
	if h.token != token {
		t.Error("the restart has made another token")
	}
	open("kept")
	if text := h.must("POST", "/v1/sandboxes/"+sb.ID+"/exec", `{"shell":"cat file"}`); !strings.Contains(text, "works") {
		t.Errorf("%s", text)
	}
	h.quiet("after it went on")
	if said := strings.Count(log.String(), "there is no UI"); said != 2 {
		t.Errorf("of two starts %d say that there is no UI", said)
	}
	if code, text := h.ask("GET", "/ui", ""); code != 404 {
		t.Errorf("/ui: %d %s", code, text)
	}
	h.ownFacts(sb.ID)
	h.deleteAll()
	server.Until(t, "its sandboxes are gone", 20*time.Second, func() bool {
		left, err := filepath.Glob(filepath.Join(data, "workspaces", "*"))
		trash, err2 := filepath.Glob(filepath.Join(data, "trash", "*"))
		return err == nil && err2 == nil && len(left)+len(trash) == 0
	})
	h.quiet("in the end")
	// What would be counted is.
	if err := h.there(func() error {
		c, err := net.Dial("udp4", elsewhere+":53")
		if err == nil {
			_, err = c.Write([]byte("x"))
			_ = c.Close()
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if got := h.traffic(); got.datagrams != 1 || got.packets == 0 {
		t.Errorf("a datagram was sent, and counted is %+v", got)
	}
	if err := h.p.End(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// object asks for a JSON object.
func (i *island) object(method, path, body string, into any) {
	i.Helper()
	_, text, _ := strings.Cut(i.must(method, path, body), "{")
	if err := json.Unmarshal([]byte("{"+text), into); err != nil {
		i.Fatalf("%s %s: %v", method, path, err)
	}
}

func (i *island) deleteAll() {
	i.Helper()
	var list struct{ Sandboxes []struct{ ID string } }
	i.object("GET", "/v1/sandboxes", "", &list)
	for _, sb := range list.Sandboxes {
		i.must("DELETE", "/v1/sandboxes/"+sb.ID, "")
	}
}

// ownFacts asks every route that the host lists, in every way, and looks for the host's
// own name and addresses, which are in its log only.
func (i *island) ownFacts(sandbox string) {
	i.Helper()
	var index struct{ Endpoints []string }
	i.object("GET", "/", "", &index)
	var document struct{ Paths map[string]any }
	i.object("GET", "/openapi.json", "", &document)
	paths := append(index.Endpoints, slices.Collect(maps.Keys(document.Paths))...)
	slices.Sort(paths)
	own := strings.TrimPrefix(i.p.URL, "http://")
	if !strings.Contains(i.p.Log.String(), own) {
		i.Error("its address is not in its log")
	}
	answers := 0
	for _, method := range []string{"GET", "PUT", "POST", "DELETE"} {
		for _, path := range slices.Compact(paths) {
			if method == "POST" && path == "/drain" {
				continue // the last of all
			}
			for strings.Contains(path, "{") {
				before, rest, _ := strings.Cut(path, "{")
				_, after, _ := strings.Cut(rest, "}")
				name := "a"
				if before == "/v1/sandboxes/" && method != "DELETE" {
					name = sandbox
				}
				path = before + name + after
			}
			code, text := i.ask(method, path, "{}")
			if code != 0 {
				answers++
			}
			for _, fact := range []string{ownName, ownAddress, own} {
				if strings.Contains(text, fact) {
					i.Errorf("%s %s tells %s: %s", method, path, fact, text)
				}
			}
		}
	}
	if answers < 200 {
		i.Errorf("%d answers only", answers)
	}
	i.must("POST", "/drain", "")
}
