package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Target is a place to connect to, in the one spelling that rules are asked about
// and that is resolved. Exactly one of Name and Addr is set.
type Target struct {
	Name string     // lower case, no dot at the end
	Addr netip.Addr // of a host that is an address; never a spelling of another one
	Port uint16
}

// Host is the name or address as it stands in a URL.
func (t Target) Host() string {
	switch {
	case t.Name != "":
		return t.Name
	case t.Addr.Is6():
		return "[" + t.Addr.String() + "]"
	}
	return t.Addr.String()
}

// String is host:port.
func (t Target) String() string { return t.Host() + ":" + strconv.Itoa(int(t.Port)) }

// ParseTarget reads the authority of a request: host, or host:port. Without a port
// it is fallback; 0 means that there must be one.
func ParseTarget(authority string, fallback uint16) (Target, error) {
	host, port, err := splitPort(authority)
	if err != nil {
		return Target{}, err
	}
	if port == 0 {
		port = fallback
	}
	if port == 0 {
		return Target{}, errors.New("the port is missing")
	}
	t := Target{Port: port}
	if strings.HasPrefix(host, "[") {
		t.Addr, err = parseAddr(strings.TrimSuffix(host[1:], "]"))
		if err == nil && (!strings.HasSuffix(host, "]") || !strings.Contains(host, ":")) {
			err = errors.New("only an IPv6 address stands in brackets")
		}
		return t, err
	}
	t.Name, t.Addr, err = parseHost(host)
	return t, err
}

// splitPort cuts a port off; 0 when there is none. An IPv6 address has to be in
// brackets.
func splitPort(s string) (string, uint16, error) {
	at := strings.LastIndexByte(s, ':')
	if at < 0 || strings.HasSuffix(s, "]") {
		return s, 0, nil
	}
	// Atoi would take a sign.
	port, err := strconv.ParseUint(s[at+1:], 10, 16)
	if err != nil || port == 0 || s[at+1] == '+' {
		return "", 0, fmt.Errorf("%q is no port", clip(s[at+1:]))
	}
	return s[:at], uint16(port), nil
}

// parseHost is the one reader of host names, of requests and of rules. What two
// programs could read differently is refused, not guessed: an address has four
// decimal parts, or is IPv6; everything else that a resolver might take for an
// address has no spelling here.
func parseHost(s string) (string, netip.Addr, error) {
	none := netip.Addr{}
	s = strings.TrimSuffix(s, ".")
	if s == "" {
		return "", none, errors.New("the host is missing")
	}
	if len(s) > 253 {
		return "", none, errors.New("a host name has at most 253 characters")
	}
	b := []byte(s)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z':
			b[i] = c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		case c >= 0x80:
			return "", none, errors.New("a host name outside ASCII is written as xn--..., its punycode")
		default:
			return "", none, fmt.Errorf("%q cannot be in a host name", c)
		}
	}
	name := string(b)
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 {
			return "", none, errors.New("between the dots of a host name are 1 to 63 characters")
		}
	}
	if !numeric(labels[len(labels)-1]) {
		return name, none, nil
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return "", none, errors.New("an address is written with four decimal numbers, as 192.0.2.1")
	}
	return "", addr, nil
}

// numeric says whether a last label makes some resolver read the name as an IPv4
// address: octal, hexadecimal and short forms all end in one like this.
func numeric(label string) bool {
	return strings.HasPrefix(label, "0x") || strings.Trim(label, "0123456789") == ""
}

// parseAddr reads an IPv6 address. One that spells an IPv4 address becomes that.
func parseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is6() {
		return netip.Addr{}, fmt.Errorf("%q is no IPv6 address", clip(s))
	}
	if addr.Zone() != "" {
		return netip.Addr{}, errors.New("an address with a zone is of one machine's interface")
	}
	return meaning(addr), nil
}

func clip(s string) string { return s[:min(len(s), 64)] }
