package egress

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, c := range []struct{ in, want string }{ // want "" is refused
		{"example.com:443", "example.com:443"},
		{"EXAMPLE.Com:443", "example.com:443"},
		{"example.com.:443", "example.com:443"},
		{"xn--bcher-kva.example:1", "xn--bcher-kva.example:1"},
		{"_dmarc.example.com:53", "_dmarc.example.com:53"},
		{"localhost:80", "localhost:80"},
		{"192.0.2.1:80", "192.0.2.1:80"},
		{"192.0.2.1.:80", "192.0.2.1:80"},
		{"[2001:DB8:0::1]:80", "[2001:db8::1]:80"},
		{"[::ffff:169.254.169.254]:80", "169.254.169.254:80"},
		{"[::ffff:a9fe:a9fe]:80", "169.254.169.254:80"},
		{"[64:ff9b::a9fe:a9fe]:80", "169.254.169.254:80"},
		{"[2002:a9fe:a9fe::1]:80", "169.254.169.254:80"},
		{long + ".example:80", long + ".example:80"},

		{"", ""}, {":80", ""}, {".:80", ""}, {"example.com", ""}, {"example.com:", ""}, {"example.com:0", ""},
		{"example.com:65536", ""}, {"example.com:+80", ""}, {"example.com:-1", ""}, {"example.com: 80", ""}, {"example.com:80:80", ""},
		{"example.com:٨٠", ""}, {"example..com:80", ""}, {"example.com..:80", ""}, {".example.com:80", ""},
		{"evil.example\x00.google.com:443", ""}, {"evil.example\r\n.google.com:443", ""}, {"exa mple.com:80", ""},
		{"user@example.com:80", ""}, {"example.com@evil.example:80", ""}, {"example.com%00.evil.example:80", ""},
		{"example.com/evil.example:80", ""}, {"example.com#evil.example:80", ""}, {"example.com\\evil.example:80", ""},
		{"bücher.example:80", ""}, {"ｅxample.com:80", ""}, {"example。com:80", ""},
		{long + "a.example:80", ""}, {strings.Repeat("abcdefg.", 32) + "example:80", ""},
		{"0177.0.0.1:80", ""}, {"127.0.0.01:80", ""}, {"127.1:80", ""}, {"127.0.1:80", ""}, {"2130706433:80", ""},
		{"0x7f000001:80", ""}, {"0x7f.1:80", ""}, {"0x7F.0.0.0x1:80", ""}, {"017700000001:80", ""}, {"256.1.1.1:80", ""},
		{"1.2.3.4.5:80", ""}, {"example.1:80", ""}, {"00.00.00.00:80", ""},
		{"[fe80::1%eth0]:80", ""}, {"[fe80::1%25eth0]:80", ""}, {"[127.0.0.1]:80", ""}, {"[example.com]:80", ""},
		{"[::1:80", ""}, {"::1:80", ""}, {"[]:80", ""}, {"[[::1]]:80", ""}, {"[::1]", ""}, {"[::1]80", ""}, {"[::1].:80", ""},
	} {
		got, err := ParseTarget(c.in, 0)
		switch {
		case c.want == "" && err == nil:
			t.Errorf("%q was read as %s", c.in, got)
		case c.want != "" && (err != nil || got.String() != c.want):
			t.Errorf("%q: %q, %v; want %q", c.in, got, err, c.want)
		}
	}
	if got, err := ParseTarget("[::ffff:192.0.2.1]", 80); err != nil || got.String() != "192.0.2.1:80" {
		t.Errorf("the port that is not given: %v, %v", got, err)
	}
}

// FuzzTarget: what is read once is read again as the same, holds nothing that a
// resolver or another parser takes for something else, and is one thing, a name or
// an address.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{"example.com:443", "[::ffff:1.2.3.4]:80", "0x7f.1:80", "a\x00.b:1", "A.B.:9", "[2002:0a00:1::]:5", "1.2.3.4:1", "x@y:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTarget(s, 0)
		if err != nil {
			return
		}
		again, err := ParseTarget(got.String(), 0)
		if err != nil || again != got {
			t.Fatalf("%q is %v, and that is %v, %v", s, got, again, err)
		}
		if (got.Name == "") == !got.Addr.IsValid() || got.Port == 0 {
			t.Fatalf("%q is %+v", s, got)
		}
		if got.Addr.IsValid() {
			if got.Addr.Zone() != "" || got.Addr.Is4In6() || meaning(got.Addr) != got.Addr {
				t.Fatalf("%q is the address %v", s, got.Addr)
			}
			return
		}
		if strings.Trim(got.Name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || got.Name != strings.Trim(got.Name, ".") || len(got.Name) > 253 {
			t.Fatalf("%q is the name %q", s, got.Name)
		}
		if _, err := netip.ParseAddr(got.Name); err == nil {
			t.Fatalf("%q is the name %q, which is an address", s, got.Name)
		}
		if last := got.Name[strings.LastIndexByte(got.Name, '.')+1:]; strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
			t.Fatalf("%q is the name %q, which inet_aton takes for an address", s, got.Name)
		}
	})
}

func TestParseRule(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"*", "*"}, {"*:443", "*:443"}, {"Example.COM.", "example.com"}, {"example.com:443", "example.com:443"},
		{"*.Example.com", "*.example.com"}, {"*.example.com.:22", "*.example.com:22"},
		{"192.0.2.1", "192.0.2.1"}, {"192.0.2.1:80", "192.0.2.1:80"}, {"10.0.0.0/8", "10.0.0.0/8"}, {"10.0.0.0/8:443", "10.0.0.0/8:443"},
		{"::1", "::1"}, {"[::1]", "::1"}, {"[::1]:80", "[::1]:80"}, {"2001:DB8::/32", "2001:db8::/32"}, {"[2001:db8::/32]:443", "[2001:db8::/32]:443"},
		{"::ffff:10.0.0.1", "10.0.0.1"}, {"10.0.0.1/32", "10.0.0.1"},

		{"", ""}, {"**", ""}, {"*.", ""}, {"*.*.com", ""}, {"a.*.com", ""}, {"*example.com", ""}, {"*.10.0.0.1", ""}, {"http://example.com", ""},
		{"example.com/path", ""}, {"example.com:x", ""}, {"10.0.0.1/8", ""}, {"0x7f.1", ""}, {"10.1", ""}, {"::ffff:10.0.0.0/104", ""},
		{"fe80::1%eth0", ""}, {"user@example.com", ""}, {"exa mple.com", ""}, {"example.com,example.org", ""}, {"[10.0.0.0/8", ""},
	} {
		r, err := ParseRule(c.in)
		switch {
		case c.want == "" && err == nil:
			t.Errorf("%q was read as %s", c.in, r)
		case c.want != "" && (err != nil || r.String() != c.want):
			t.Errorf("%q: %q, %v; want %q", c.in, r, err, c.want)
		}
	}
}

// FuzzRule: a rule's canonical spelling is the same rule.
func FuzzRule(f *testing.F) {
	for _, s := range []string{"*", "*.example.com:443", "10.0.0.0/8", "[::1]:80", "::ffff:1.2.3.4", "[2001:db8::/32]:1", "A.b."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRule(s)
		if err != nil {
			return
		}
		again, err := ParseRule(r.String())
		if err != nil || again != r {
			t.Fatalf("%q is %q, and that is %q, %v", s, r, again, err)
		}
	})
}

func TestRulesCover(t *testing.T) {
	for _, c := range []struct {
		rule, target string
		want         bool
	}{
		{"example.com", "example.com:1", true}, {"example.com", "EXAMPLE.com.:1", true}, {"example.com", "a.example.com:1", false},
		{"example.com", "notexample.com:1", false}, {"example.com", "example.com.evil.example:1", false},
		{"*.example.com", "a.example.com:1", true}, {"*.example.com", "a.b.example.com:1", true}, {"*.example.com", "example.com:1", false},
		{"*.example.com", "notexample.com:1", false}, {"*", "anything.example:1", true}, {"*", "192.0.2.1:1", true},
		{"example.com:443", "example.com:443", true}, {"example.com:443", "example.com:80", false}, {"*:443", "192.0.2.1:80", false},
		{"192.0.2.0/24", "192.0.2.9:1", true}, {"192.0.2.0/24", "[::ffff:192.0.2.9]:1", true}, {"192.0.2.0/24", "[64:ff9b::c000:209]:1", true},
		{"192.0.2.0/24", "192.0.3.1:1", false}, {"192.0.2.0/24", "example.com:1", false}, {"::/0", "192.0.2.1:1", false}, {"example.com", "192.0.2.1:1", false},
	} {
		r, err := ParseRule(c.rule)
		if err != nil {
			t.Fatal(err)
		}
		target, err := ParseTarget(c.target, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.covers(target); got != c.want {
			t.Errorf("%s covers %s: %v", c.rule, c.target, got)
		}
	}
}

func TestNotPublic(t *testing.T) {
	for addr, public := range map[string]bool{
		"1.1.1.1": true, "8.8.8.8": true, "172.15.255.255": true, "172.32.0.0": true, "100.63.255.255": true, "100.128.0.0": true,
		"192.0.1.0": true, "198.17.255.255": true, "223.255.255.255": true, "2606:4700::1111": true, "2a00::1": true,
		"64:ff9b::1.1.1.1": true, "2002:101:101::1": true, "::ffff:1.1.1.1": true,

		"0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "10.255.255.255": false, "100.64.0.1": false, "100.100.100.200": false,
		"127.0.0.1": false, "127.255.255.254": false, "168.63.129.16": false, "169.254.169.254": false, "169.254.0.1": false,
		"172.16.0.1": false, "172.31.255.255": false, "192.0.0.192": false, "192.0.2.1": false, "192.88.99.1": false, "192.168.1.1": false,
		"198.18.0.1": false, "198.19.255.255": false, "198.51.100.1": false, "203.0.113.1": false, "224.0.0.1": false, "239.255.255.255": false,
		"240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "::7f00:1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::ffff:0:7f00:1": false,
		"64:ff9b::127.0.0.1": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b:1::1": false, "2002:7f00:1::": false, "2002:a9fe:a9fe::1": false,
		"2001::1": false, "2001:0:4136:e378:8000:63bf:3fff:fdd2": false, "2001:db8::1": false, "2001:20::1": false, "3fff::1": false,
		"100::1": false, "5f00::1": false, "fc00::1": false, "fd00:ec2::254": false, "fe80::1": false, "fec0::1": false, "ff02::1": false, "4000::1": false,
	} {
		if what, bad := notPublic(netip.MustParseAddr(addr)); bad == public {
			t.Errorf("%s: refused %v, %q", addr, bad, what)
		}
	}
}
