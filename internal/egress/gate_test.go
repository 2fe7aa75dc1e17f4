package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxd"
	"sandboxd/internal/leaktest"
	"sandboxd/internal/relay"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// world is a network that no test has to have: names resolve as they are told, and
// every public address leads to one server. It counts.
type world struct {
	mu     sync.Mutex
	names  map[string][][]netip.Addr // answers in turn; the last one stays
	dialed []netip.AddrPort
	to     string // the address of what all addresses lead to
}

func (w *world) resolve(_ context.Context, name string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	answers := w.names[name]
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	if len(answers) > 1 {
		w.names[name] = answers[1:]
	}
	return answers[0], nil
}

func (w *world) dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	w.dialed = append(w.dialed, addr)
	w.mu.Unlock()
	var d net.Dialer
	return d.DialContext(ctx, "tcp", w.to)
}

func (w *world) seen() []netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dialed)
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// gateway is a gate with a sandbox's end: every connection to it is one stream.
type gateway struct {
	*Gate
	t    *testing.T
	addr string
}

func open(t *testing.T, cfg Config, allow, deny []string) *gateway {
	t.Helper()
	p := New(cfg)
	g, err := p.Gate(allow, deny)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { g.Serve(tcpStream{conn.(*net.TCPConn)}) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		// Every client is gone; the standard library's server waits half a second before
		// it closes a connection whose request it could not read.
		serving.Wait()
		p.Close()
		g.Close()
	})
	return &gateway{Gate: g, t: t, addr: l.Addr().String()}
}

// say sends raw bytes and answers all that comes back.
func (g *gateway) say(text string) string {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(conn, text)
	got, err := io.ReadAll(conn)
	if err != nil && len(got) == 0 {
		g.t.Fatalf("%q: %v", text, err)
	}
	return string(got)
}

func (g *gateway) client() *http.Client {
	transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: g.addr}), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	g.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func (g *gateway) get(target string) (int, string) {
	g.t.Helper()
	res, err := g.client().Get(target)
	if err != nil {
		g.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// refused asserts that the last request was refused and answers why.
func (g *gateway) refused(answer string, reason sandboxd.DenyReason, words string) {
	g.t.Helper()
	head, body, _ := strings.Cut(answer, "\r\n\r\n")
	if !strings.HasPrefix(head, "HTTP/1.1 403 sandboxd: ") || !strings.Contains(head, "X-Sandboxd-Denied: "+string(reason)) || !strings.Contains(body, words) {
		g.t.Errorf("answer %q, want 403 for %s with %q", answer, reason, words)
	}
	denials := g.Activity().Denials
	if len(denials) == 0 || denials[len(denials)-1].Reason != reason || !strings.Contains(denials[len(denials)-1].Message, words) {
		g.t.Errorf("log %+v, want %s with %q at its end", denials, reason, words)
	}
}

func connect(target string) string { return "CONNECT " + target + " HTTP/1.1\r\nHost: x\r\n\r\n" }

func newWorld(t *testing.T, handler http.HandlerFunc) *world {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return &world{to: srv.Listener.Addr().String(), names: map[string][][]netip.Addr{
		"public.example":   {addrs("1.1.1.1")},
		"other.example":    {addrs("8.8.8.8")},
		"metadata.example": {addrs("169.254.169.254")},
		"mixed.example":    {addrs("10.0.0.1", "fe80::1", "9.9.9.9")},
		"mapped.example":   {addrs("::ffff:169.254.169.254", "64:ff9b::7f00:1")},
		"turning.example":  {addrs("1.1.1.1"), addrs("127.0.0.1")},
		"local.example":    {addrs("127.0.0.1")},
		"host.example":     {addrs("4.4.4.4")},
	}}
}

func (w *world) config() Config {
	return Config{Resolve: w.resolve, Dial: w.dial, Interfaces: func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.IPv4(4, 4, 4, 4), Mask: net.CIDRMask(24, 32)}}, nil
	}}
}

func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Host", r.Host)
	for name := range r.Header {
		w.Header().Add("X-Got", name)
	}
	io.Copy(w, r.Body)
	io.WriteString(w, r.Method+" "+r.RequestURI)
}

func TestWhatIsAllowedGoesThrough(t *testing.T) {
	w := newWorld(t, echo)
	g := open(t, w.config(), []string{"public.example"}, nil)
	if code, body := g.get("http://Public.Example./a?b=c"); code != 200 || body != "GET /a?b=c" {
		t.Fatal(code, body)
	}
	got := g.say("POST http://public.example/p HTTP/1.1\r\nHost: forged.example\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: x\r\n" +
		"X-Forwarded-For: 1.2.3.4\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
	if !strings.Contains(got, "X-Host: public.example\r\n") || strings.Contains(got, "X-Got: Proxy") || !strings.HasSuffix(got, "helloPOST /p") {
		t.Fatal(got)
	}
	if got := g.say("CONNECT PUBLIC.example.:80 HTTP/1.1\r\nHost: x\r\n\r\nGET /t HTTP/1.0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, "GET /t") {
		t.Fatal(got)
	}
	for _, at := range w.seen() {
		if at != netip.MustParseAddrPort("1.1.1.1:80") {
			t.Errorf("dialled %s", at)
		}
	}
	a := g.Activity()
	if a.Connections != int64(len(w.seen())) || a.SentBytes < 100 || a.ReceivedBytes < 300 || len(a.Denials) != 0 {
		t.Errorf("%+v after %v", a, w.seen())
	}
}

func TestAnEmptyListMeansNo(t *testing.T) {
	w := newWorld(t, echo)
	g := open(t, w.config(), nil, nil)
	g.refused(g.say(connect("public.example:443")), sandboxd.DenyNotAllowed, "public.example:443 is not in the allow list")
	g.refused(g.say("GET http://public.example/ HTTP/1.1\r\nHost: public.example\r\n\r\n"), sandboxd.DenyNotAllowed, "public.example:80")
	if len(w.seen()) != 0 {
		t.Errorf("dialled %v", w.seen())
	}
}

// TestAddresses asks for what no sandbox may reach in every spelling, through
// CONNECT and as a plain request, with every name allowed.
func TestAddresses(t *testing.T) {
	w := newWorld(t, echo)
	g := open(t, w.config(), []string{"*"}, nil)
	for _, c := range []struct {
		host   string
		reason sandboxd.DenyReason
		words  string
	}{
		{"169.254.169.254", sandboxd.DenyAddress, "metadata"},
		{"169.254.169.254.", sandboxd.DenyAddress, "metadata"},
		{"[::ffff:169.254.169.254]", sandboxd.DenyAddress, "metadata"},
		{"[::ffff:a9fe:a9fe]", sandboxd.DenyAddress, "metadata"},
		{"[64:ff9b::169.254.169.254]", sandboxd.DenyAddress, "metadata"},
		{"[2002:a9fe:a9fe::]", sandboxd.DenyAddress, "metadata"},
		{"[fd00:ec2::254]", sandboxd.DenyAddress, "private"},
		{"100.100.100.200", sandboxd.DenyAddress, "carrier"},
		{"127.0.0.1", sandboxd.DenyAddress, "this machine"},
		{"0.0.0.0", sandboxd.DenyAddress, "this machine"},
		{"[::]", sandboxd.DenyAddress, "this machine"},
		{"[::1]", sandboxd.DenyAddress, "this machine"},
		{"10.1.2.3", sandboxd.DenyAddress, "private"},
		{"192.0.2.1", sandboxd.DenyAddress, "documentation"},
		{"224.0.0.251", sandboxd.DenyAddress, "multicast"},
		{"4.4.4.4", sandboxd.DenyAddress, "this machine"},
		{"metadata.example", sandboxd.DenyAddress, "169.254.169.254"},
		{"mapped.example", sandboxd.DenyAddress, "metadata"},
		{"local.example", sandboxd.DenyAddress, "this machine"},
		{"host.example", sandboxd.DenyAddress, "this machine"},
		{"0251.0376.0251.0376", sandboxd.DenyMalformed, "four decimal"},
		{"0xa9.0xfe.0xa9.0xfe", sandboxd.DenyMalformed, "four decimal"},
		{"0xa9fea9fe", sandboxd.DenyMalformed, "four decimal"},
		{"2852039166", sandboxd.DenyMalformed, "four decimal"},
		{"127.1", sandboxd.DenyMalformed, "four decimal"},
	} {
		g.refused(g.say(connect(c.host+":80")), c.reason, c.words)
		g.refused(g.say("GET http://"+c.host+"/ HTTP/1.1\r\nHost: public.example\r\n\r\n"), c.reason, c.words)
	}
	if len(w.seen()) != 0 {
		t.Errorf("dialled %v", w.seen())
	}
}

// TestARebindingNameGainsNothing has a name resolve to a public address when it is
// asked about, and to the machine itself ever after.
func TestARebindingNameGainsNothing(t *testing.T) {
	w := newWorld(t, echo)
	g := open(t, w.config(), []string{"*"}, nil)
	if got := g.say("CONNECT turning.example:80 HTTP/1.1\r\nHost: x\r\n\r\nGET /t HTTP/1.0\r\n\r\n"); !strings.HasSuffix(got, "GET /t") {
		t.Fatal(got)
	}
	g.refused(g.say(connect("turning.example:80")), sandboxd.DenyAddress, "127.0.0.1")
	// Of several addresses those that may be reached are.
	if code, _ := g.get("http://mixed.example/"); code != 200 {
		t.Fatal(code)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("1.1.1.1:80"), netip.MustParseAddrPort("9.9.9.9:80")}
	if !slices.Equal(w.seen(), want) {
		t.Errorf("dialled %v, want %v", w.seen(), want)
	}
}

// TestARedirectIsANewRequest follows one from an allowed host to where no sandbox
// may go.
func TestARedirectIsANewRequest(t *testing.T) {
	w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+r.URL.Query().Get("to")+"/", http.StatusFound)
	})
	g := open(t, w.config(), []string{"public.example", "metadata.example"}, nil)
	for to, words := range map[string]string{"metadata.example": "169.254.169.254", "other.example": "not in the allow list", "127.0.0.1": "not in the allow list"} {
		if code, body := g.get("http://public.example/?to=" + to); code != http.StatusForbidden || !strings.Contains(body, words) {
			t.Errorf("to %s: %d %s", to, code, body)
		}
	}
}

func TestDenyWins(t *testing.T) {
	w := newWorld(t, echo)
	g := open(t, w.config(), []string{"*.example", "1.1.1.1"}, []string{"other.example", "1.1.1.0/24"})
	g.refused(g.say(connect("other.example:443")), sandboxd.DenyRule, "by its rule other.example")
	g.refused(g.say(connect("1.1.1.1:443")), sandboxd.DenyRule, "by its rule 1.1.1.0/24")
	// Also an address that is found behind an allowed name.
	g.refused(g.say(connect("public.example:443")), sandboxd.DenyRule, "which is denied to this sandbox by its rule 1.1.1.0/24")
}

func TestTheOperatorLetsAddressesThrough(t *testing.T) {
	w := newWorld(t, echo)
	cfg := w.config()
	var err error
	if cfg.AllowAddresses, err = ParseAddressRules([]string{"127.0.0.1:80", "4.4.4.4"}); err != nil {
		t.Fatal(err)
	}
	g := open(t, cfg, []string{"local.example", "host.example", "metadata.example"}, nil)
	for _, name := range []string{"local.example", "host.example"} {
		if code, _ := g.get("http://" + name + "/"); code != 200 {
			t.Errorf("%s: %d", name, code)
		}
	}
	g.refused(g.say(connect("local.example:81")), sandboxd.DenyAddress, "this machine")
	g.refused(g.say(connect("metadata.example:80")), sandboxd.DenyAddress, "metadata")
	g.refused(g.say(connect("127.0.0.1:80")), sandboxd.DenyNotAllowed, "allow list") // the sandbox's own list has the names
	// What the server itself listens on is out of reach all the same.
	for _, own := range []string{"127.0.0.1:80", "0.0.0.0:80", "[::]:80"} {
		g.proxy.mu.Lock()
		g.proxy.protected = nil
		g.proxy.mu.Unlock()
		g.proxy.Protect(netip.MustParseAddrPort(own))
		g.refused(g.say(connect("local.example:80")), sandboxd.DenyAddress, "server's own")
	}
	for _, bad := range []string{"example.com", "*", "10.0.0.1/8", ""} {
		if _, err := ParseAddressRules([]string{bad}); err == nil {
			t.Errorf("%q was taken for an address", bad)
		}
	}
}

func TestRequestsThatHaveNoMeaning(t *testing.T) {
	w := newWorld(t, echo)
	g := open(t, w.config(), []string{"*"}, nil)
	for request, reason := range map[string]sandboxd.DenyReason{
		"GET http://user:pw@public.example/ HTTP/1.1\r\nHost: x\r\n\r\n":       sandboxd.DenyMalformed,
		"GET http://public.example@other.example/ HTTP/1.1\r\nHost: x\r\n\r\n": sandboxd.DenyMalformed,
		"GET https://public.example/ HTTP/1.1\r\nHost: x\r\n\r\n":              sandboxd.DenyMalformed,
		"GET ftp://public.example/ HTTP/1.1\r\nHost: x\r\n\r\n":                sandboxd.DenyMalformed,
		"TRACE http://public.example/ HTTP/1.1\r\nHost: x\r\n\r\n":             sandboxd.DenyMalformed,
		connect("public.example"):                                              sandboxd.DenyMalformed,
		connect("b\xc3\xbccher.example:443"):                                   sandboxd.DenyMalformed,
	} {
		g.refused(g.say(request), reason, "")
	}
	for _, request := range []string{
		connect("public.example\x00.evil.example:443"), connect("public.example :443"), connect("public.example:x"),
		"GET http://public.example\x00.evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
		"GET http://public.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: gibberish\r\n\r\n",
		"GET http://public.example/ HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
		"\x16\x03\x01 this is TLS\r\n\r\n",
		"GET http://public.example/ HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("a", 2*headerBytes) + "\r\n\r\n",
	} {
		if got := g.say(request); !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 501") {
			t.Errorf("%.80q: %q", request, got)
		}
	}
	if len(w.seen()) != 0 {
		t.Errorf("dialled %v", w.seen())
	}
}

// What is dialled over IPv6 is denied by who denies IPv6, also where it ends up at an
// IPv4 address that is not denied.
func TestDenyMeansTheAddressAsDialledToo(t *testing.T) {
	w := newWorld(t, echo)
	w.names["translated.example"] = [][]netip.Addr{addrs("64:ff9b::808:808")}
	for _, rule := range []string{"::/0", "64:ff9b::/96", "8.8.8.8"} {
		g := open(t, w.config(), []string{"*"}, []string{rule})
		g.refused(g.say(connect("translated.example:80")), sandboxd.DenyRule, "64:ff9b::808:808")
	}
	if len(w.seen()) != 0 {
		t.Errorf("dialled %v", w.seen())
	}
}

func TestWhatCannotBeReachedIsNoDenial(t *testing.T) {
	w := newWorld(t, echo)
	cfg := w.config()
	cfg.Dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	g := open(t, cfg, []string{"*"}, nil)
	for host, words := range map[string]string{"nowhere.example": "there is no such name", "public.example": "connection refused"} {
		for _, request := range []string{connect(host + ":443"), "GET http://" + host + "/ HTTP/1.1\r\nHost: x\r\n\r\n"} {
			if got := g.say(request); !strings.HasPrefix(got, "HTTP/1.1 502 ") || !strings.Contains(got, words) {
				t.Errorf("%s: %s", host, got)
			}
		}
	}
	if a := g.Activity(); len(a.Denials) != 0 || a.Connections != 0 {
		t.Errorf("%+v", a)
	}
}

func TestTheLogIsBounded(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := New(Config{Now: func() time.Time { now = now.Add(time.Second); return now }})
	defer p.Close()
	g, err := p.Gate(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * kept {
		for _, host := range []string{fmt.Sprintf("h%d.example:80", i), "again.example:80"} {
			g.note(&Refusal{Host: host, Reason: sandboxd.DenyNotAllowed})
		}
	}
	a := g.Activity()
	last := a.Denials[len(a.Denials)-1]
	if len(a.Denials) != kept || last.Host != "again.example:80" || last.Count != 3*kept || a.DenialsDropped != 2*kept+1 {
		t.Errorf("%d denials, %d dropped, last %+v", len(a.Denials), a.DenialsDropped, last)
	}
	if !last.FirstAt.Equal(time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)) || !last.LastAt.Equal(now) {
		t.Errorf("times %s, %s", last.FirstAt, last.LastAt)
	}
}

func TestTheSandboxReadsItsOwnLog(t *testing.T) {
	w := newWorld(t, echo)
	g := open(t, w.config(), nil, nil)
	g.say(connect("public.example:443"))
	got := g.say("GET /denials HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.Contains(got, "not_allowed 1x: public.example:443 is not in the allow list") {
		t.Error(got)
	}
	for _, request := range []string{"GET / HTTP/1.1", "POST /denials HTTP/1.1", "OPTIONS * HTTP/1.1"} {
		if got := g.say(request + "\r\nHost: public.example\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\nContent-Length: 0") {
			t.Errorf("%s: %s", request, got)
		}
	}
}

// TestHalfCloseTravels sends to the end of a tunnel and reads afterwards.
func TestHalfCloseTravels(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		b, _ := io.ReadAll(conn) // ends by the half close
		conn.Write(bytes.ToUpper(b))
	}()
	w := newWorld(t, echo)
	w.to = l.Addr().String()
	g := open(t, w.config(), []string{"*"}, nil)
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := strings.Repeat("half", 100_000)
	io.WriteString(conn, connect("public.example:7"))
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	go func() {
		io.WriteString(conn, text)
		conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != strings.ToUpper(text) {
		t.Fatalf("%d bytes back, %v", len(got), err)
	}
	if a := g.Activity(); a.SentBytes != int64(len(text)) || a.ReceivedBytes != int64(len(text)) {
		t.Errorf("%+v", a)
	}
}

func TestUpstream(t *testing.T) {
	type asked struct{ line, auth string }
	seen := make(chan asked, 16)
	origin := httptest.NewTLSServer(http.HandlerFunc(echo))
	defer origin.Close()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- asked{r.Method + " " + r.RequestURI, r.Header.Get("Proxy-Authorization")}
		if r.Method != http.MethodConnect {
			io.WriteString(w, "from upstream")
			return
		}
		if strings.HasPrefix(r.Host, "other.") {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		there, err := net.Dial("tcp", origin.Listener.Addr().String())
		if err != nil {
			return
		}
		defer there.Close()
		here, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer here.Close()
		io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n")
		relay.Join(here.(relay.Conn), there.(relay.Conn))
	})
	auth := "Basic " + base64.StdEncoding.EncodeToString([]byte("op:s3cret"))
	for name, srv := range map[string]*httptest.Server{"http": httptest.NewServer(handler), "https": httptest.NewTLSServer(handler)} {
		t.Run(name, func(t *testing.T) {
			defer srv.Close()
			w := newWorld(t, echo)
			cfg := w.config()
			var err error
			if cfg.Upstream, err = ParseUpstream(name + "://op:s3cret@" + srv.Listener.Addr().String()); err != nil {
				t.Fatal(err)
			}
			if name == "https" {
				cfg.Roots = srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			}
			g := open(t, cfg, []string{"*"}, []string{"denied.example"})
			if code, body := g.get("https://public.example/x"); code != 200 || body != "GET /x" {
				t.Error(code, body)
			}
			if got := <-seen; got != (asked{"CONNECT public.example:443", auth}) {
				t.Errorf("upstream was asked %+v", got)
			}
			if code, body := g.get("http://public.example/y"); code != 200 || body != "from upstream" {
				t.Error(code, body)
			}
			if got := <-seen; got != (asked{"GET http://public.example/y", auth}) {
				t.Errorf("upstream was asked %+v", got)
			}
			// A name that only the upstream knows is its to decide about.
			if code, body := g.get("http://unknown.example/"); code != 200 || body != "from upstream" {
				t.Error(code, body)
			}
			<-seen
			if got := g.say(connect("other.example:443")); !strings.HasPrefix(got, "HTTP/1.1 502 ") || !strings.Contains(got, "418") || strings.Contains(got, "s3cret") {
				t.Error(got)
			}
			<-seen
			for target, reason := range map[string]sandboxd.DenyReason{
				"169.254.169.254:80": sandboxd.DenyAddress, "metadata.example:80": sandboxd.DenyAddress, "metadata.google.internal:80": sandboxd.DenyAddress,
				"intranet:80": sandboxd.DenyAddress, "denied.example:80": sandboxd.DenyRule,
			} {
				g.refused(g.say(connect(target)), reason, "")
				g.refused(g.say("GET http://"+target+"/ HTTP/1.1\r\nHost: x\r\n\r\n"), reason, "")
			}
			if len(seen) != 0 || len(w.seen()) != 0 {
				t.Errorf("upstream saw %d refused requests; dialled %v", len(seen), w.seen())
			}
		})
	}
	for _, bad := range []string{"", "proxy:3128", "socks5://proxy:1080", "http://", "http://proxy/path", "http://op:s3cret@:x"} {
		if _, err := ParseUpstream(bad); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestABadListNamesItself(t *testing.T) {
	p := New(Config{})
	defer p.Close()
	if _, err := p.Gate([]string{"ok.example", "http://x"}, nil); sandboxd.ClassOf(err) != sandboxd.ClassInvalid || !strings.Contains(err.Error(), "network.allow") {
		t.Error(err)
	}
	if _, err := p.Gate(nil, []string{"0x7f.1"}); sandboxd.ClassOf(err) != sandboxd.ClassInvalid || !strings.Contains(err.Error(), "network.deny") {
		t.Error(err)
	}
}

func TestAStreamAfterTheEndIsClosed(t *testing.T) {
	p := New(Config{})
	g, err := p.Gate(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	here, there := net.Pipe()
	g.Serve(pipeStream{there})
	if _, err := here.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read %v", err)
	}
}

// pipeStream is a stream in memory; its half close is a whole one.
type pipeStream struct{ net.Conn }

func (p pipeStream) CloseWrite() error     { return p.Close() }
func (p pipeStream) Reset() error          { return p.Close() }
func (p pipeStream) Done() <-chan struct{} { return nil }

// tcpStream is a stream over a socket.
type tcpStream struct{ *net.TCPConn }

func (s tcpStream) Reset() error          { return relay.ResetTCP(s.TCPConn) }
func (s tcpStream) Done() <-chan struct{} { return nil }
