package network

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/captest"
	"sandboxd/test/server"
)

// origin is an HTTPS server on this machine, with a certificate of an authority
// that nobody knows but who reads the file.
type origin struct {
	url, addr, authority string
}

func newOrigin(t *testing.T, handler http.Handler) origin {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ip := machineAddress(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.ParseIP(ip)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", net.JoinHostPort(ip, "0"), &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	file := filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	return origin{url: "https://" + l.Addr().String(), addr: l.Addr().String(), authority: file}
}

// TestCurlAndGit use a server whose address the operator lets through and whose
// authority is the operator's own.
func TestCurlAndGit(t *testing.T) {
	path, err := exec.LookPath("git")
	captest.Need(t, "git", err == nil, "git is not installed")
	repository := filepath.Join(t.TempDir(), "repository.git")
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(path, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "--bare", "-b", "main", repository)
	git("-C", repository, "config", "http.receivepack", "true")
	mux := http.NewServeMux()
	mux.Handle("/repository.git/", &cgi.Handler{Path: filepath.Join(git("--exec-path"), "git-http-backend"),
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(repository), "GIT_HTTP_EXPORT_ALL=1"}})
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello from outside") })
	o := newOrigin(t, mux)

	s := serve(t, "--egress-allow-address", o.addr, "--ca-bundle", o.authority)
	host, _, err := net.SplitHostPort(o.addr)
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, s, host)
	b.program("curl")
	b.program("git")
	if got := b.ok("curl -sS " + o.url + "/hello"); got != "hello from outside\n" {
		t.Errorf("curl: %q", got)
	}
	b.ok(`git clone -q ` + o.url + `/repository.git work 2>&1 && cd work && head -c 300000 /dev/urandom >big && git add big &&
		git -c user.name=me -c user.email=me@example.com commit -q -m first && git push -q origin HEAD:main`)
	if got := b.ok("git clone -q " + o.url + "/repository.git again && cmp work/big again/big && git -C again rev-parse HEAD"); strings.TrimSpace(got) != git("-C", repository, "rev-parse", "main") {
		t.Errorf("what was pushed is %q", got)
	}
	// Sandboxes whose list does not have it do not get there, and neither does one
	// without a network.
	other := open(t, s, "elsewhere.example")
	if got := other.run("git clone " + o.url + "/repository.git"); got.code == 0 || !strings.Contains(got.text, "403") || got.took > 2*time.Second {
		t.Errorf("git from a sandbox that may not: %+v", got)
	}
	other.refused(o.addr, sandboxd.DenyNotAllowed)
	if got := openWith(t, s, sandboxd.Network{}).run("curl -sS -m 5 " + o.url + "/hello"); got.code == 0 {
		t.Errorf("curl from a sandbox without a network: %+v", got)
	}
	// The authority is the operator's, not one's that a sandbox could add to.
	if got := b.run("echo x >> $SSL_CERT_FILE || rm $SSL_CERT_FILE || mv $SSL_CERT_FILE /tmp/"); got.code == 0 {
		t.Errorf("the certificates were changed: %s", got.text)
	}
}

// TestWhatNoSandboxReaches has every name allowed and asks for the machine, its
// neighbours and the server, through the proxy and around it.
func TestWhatNoSandboxReaches(t *testing.T) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "REACHED") })}
	go srv.Serve(l)
	defer srv.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	s := serve(t)
	b := open(t, s, "*")
	b.program("curl")
	b.program("bash")
	machine := machineAddress(t)
	for _, host := range []string{"127.0.0.1", "localhost", "localhost.", machine, "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
		"0.0.0.0", "0", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "[::]", "[::127.0.0.1]"} {
		// As a plain request and as a tunnel, each in the spelling of the attack: curl
		// would tidy it up.
		for _, head := range []string{"GET http://" + host + ":" + port + "/ HTTP/1.1", "CONNECT " + host + ":" + port + " HTTP/1.1"} {
			got := b.run(`exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/3128; printf "%s\r\nHost: x\r\nConnection: close\r\n\r\n" "$HEAD" >&3; timeout 5 cat <&3'`, "HEAD="+head)
			if strings.Contains(got.text, "REACHED") || !strings.Contains(got.text, "HTTP/1.1 403 sandboxd: ") {
				t.Errorf("%s: %s", head, got.text)
			}
		}
	}
	for _, around := range []string{
		"curl -sS -m 3 --noproxy '*' http://" + machine + ":" + port + "/", "curl -sS -m 3 --noproxy '*' http://1.1.1.1/",
		"curl -sS -m 3 -x '' http://169.254.169.254/", "curl -sS -m 3 -x socks5h://127.0.0.1:3128 http://" + machine + ":" + port + "/",
	} {
		if got := b.run(around); got.code == 0 || strings.Contains(got.text, "REACHED") {
			t.Errorf("%s: %+v", around, got)
		}
	}
	if got := b.run("curl -sS -m 5 http://[::ffff:169.254.169.254]/latest/meta-data/"); !strings.Contains(got.text, "169.254.169.254, which no sandbox may reach: a cloud's metadata service") {
		t.Errorf("metadata: %+v", got)
	}
	b.refused("169.254.169.254:80", sandboxd.DenyAddress)
	// The port is the init's, and the host neither shows it nor connects to it.
	ports, err := s.C.ListPorts(context.Background(), b.id)
	if err != nil || len(ports.Ports) != 0 {
		t.Errorf("ports %+v, %v", ports, err)
	}
	if conn, err := s.C.DialPort(context.Background(), b.id, sandboxd.ProxyPort); err == nil {
		conn.Close()
		t.Error("the proxy was reached from outside")
	}
	// Nobody inside takes the port, and no other sandbox's is there.
	if got := b.run(`/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 3128))'`); got.code == 0 {
		t.Errorf("the proxy's port was taken: %+v", got)
	}
}

// TestTheServerItselfIsOutOfReach has an operator let everything through.
func TestTheServerItselfIsOutOfReach(t *testing.T) {
	s := serve(t, "--egress-allow-address", "0.0.0.0/0", "--egress-allow-address", "::/0")
	b := open(t, s, "*")
	b.program("curl")
	_, port, _ := net.SplitHostPort(s.Addr)
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"} {
		if got := b.run("curl -sS -m 5 --noproxy '' http://" + host + ":" + port + "/healthz"); !strings.Contains(got.text, "server's own address") &&
			(host != "localhost" || !strings.Contains(got.text, "connection refused")) { // it may be ::1, where the server is not
			t.Errorf("%s: %+v", host, got)
		}
	}
}

// TestTheProxyOutlivesTheServer kills the server under a sandbox: a request that is
// made meanwhile is answered by the next one.
func TestTheProxyOutlivesTheServer(t *testing.T) {
	o := newOrigin(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "still here") }))
	s := serve(t, "--egress-allow-address", o.addr, "--ca-bundle", o.authority)
	host, _, _ := net.SplitHostPort(o.addr)
	b := open(t, s, host)
	b.program("curl")
	b.ok("curl -sS " + o.url)
	cmd, _, err := s.C.StartCommand(context.Background(), b.id, sandboxd.CommandSpec{ID: "meanwhile",
		Shell: "touch waiting; until [ -e gone ]; do sleep 0.05; done; touch asked; curl -sS -m 60 " + o.url + " >answer; touch answered"})
	if err != nil {
		t.Fatal(err)
	}
	workspaces, err := filepath.Glob(filepath.Join(s.Data, "workspaces", "*", "workspace"))
	if err != nil || len(workspaces) != 1 {
		t.Fatal(workspaces, err)
	}
	there := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(workspaces[0], name)); return err == nil }
	}
	server.Until(t, "the command waits", 30*time.Second, there("waiting"))
	s.Kill()
	if err := os.WriteFile(filepath.Join(workspaces[0], "gone"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	server.Until(t, "the request is made", 30*time.Second, there("asked"))
	s.Start()
	server.Until(t, "the request is answered", 30*time.Second, there("answered"))
	if answer, err := os.ReadFile(filepath.Join(workspaces[0], "answer")); err != nil || string(answer) != "still here" {
		t.Errorf("answer %q, %v; command %s", answer, err, cmd.ID)
	}
	if got := b.ok("curl -sS " + o.url); got != "still here" {
		t.Errorf("after the restart: %q", got)
	}
	if sb, err := s.C.Get(context.Background(), b.id); err != nil || sb.Generation != 1 || len(sb.Network.Allow) != 1 {
		t.Errorf("%+v, %v", sb, err)
	}
}

// flood holds as many connections to the proxy as it can get, some silent, some
// with half a request, and asks for what is refused as fast as it can.
const flood = `
import socket, time
held = []
for i in range(400):
    s = socket.socket(); s.setblocking(False); s.connect_ex(("127.0.0.1", 3128)); held.append(s)
time.sleep(0.2)
for s in held[::2]:
    try: s.send(b"GET http://a.example/ HTTP/1.1\r\nX: ")
    except OSError: pass
open("holding", "w").close()
time.sleep(60)
`

// TestAFloodHurtsItself has one sandbox take every connection of its proxy: its
// other programs wait, and nobody else notices.
func TestAFloodHurtsItself(t *testing.T) {
	o := newOrigin(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fine") }))
	s := serve(t, "--egress-allow-address", o.addr, "--ca-bundle", o.authority)
	host, _, _ := net.SplitHostPort(o.addr)
	evil, other := open(t, s, host), open(t, s, host)
	evil.program("python3")
	evil.program("curl")
	cmd, _, err := s.C.StartCommand(context.Background(), evil.id, sandboxd.CommandSpec{Argv: []string{"/usr/bin/python3", "-c", flood}})
	if err != nil {
		t.Fatal(err)
	}
	server.Until(t, "the flood holds what it can", 30*time.Second, func() bool { return evil.run("test -e holding").code == 0 })
	for range 5 {
		if got := other.run("curl -sS -m 5 " + o.url); got.text != "fine" || got.took > 2*time.Second {
			t.Errorf("another sandbox: %+v", got)
		}
	}
	if got := evil.run("true"); got.code != 0 || got.took > 2*time.Second {
		t.Errorf("a command beside the flood: %+v", got)
	}
	if _, err := s.C.StopCommand(context.Background(), evil.id, cmd.ID, 0); err != nil {
		t.Fatal(err)
	}
	if got := evil.ok("curl -sS -m 10 " + o.url); got != "fine" {
		t.Errorf("after the flood: %q", got)
	}
	// The log of a program that is refused without end stays small.
	evil.ok(`for i in $(seq 400); do echo "url = http://h$i.example/"; done >list; curl -sS -K list >/dev/null`)
	a, err := s.C.NetworkActivity(context.Background(), evil.id)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Denials) != 256 || a.DenialsDropped < 144 {
		t.Errorf("%d denials, %d dropped", len(a.Denials), a.DenialsDropped)
	}
}
